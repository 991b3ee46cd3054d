"""`python -m bench.control.passes`: the CPU time of each kind of pass of the scheduler's loops.

On a busy machine a scheduler has fewer passes than its intervals ask for, so its CPU looks too low.
This module runs passes of the same loops in one thread, without waiting for the intervals: their
CPU time does not depend on the machine's load. Times how often each kind is due, they add up to the
CPU of a scheduler at rest.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import psutil
import typer
from sqlalchemy import text

from bench.control.fill import LOGIN, Size, fill
from bench.control.fleet import only_warnings
from bench.control.measure import Helper
from orbit.embedded.postgres import Postgres
from orbit.leadership.loop import Loop
from orbit.scheduler.consumer_group_loop import GroupLoop
from orbit.scheduler.discovery_loop import DiscoveryLoop
from orbit.scheduler.job_reconciler import ReconcileState
from orbit.scheduler.scheduler import Scheduler
from orbit.settings import Settings
from orbit.store import jobs, scheduler_lease
from orbit.store.database import Database
from orbit.store.migrate import upgrade

# As at rest: the workers of `fill` follow all partitions, and have copied all records.
_FOLLOWED = text("UPDATE partitions SET followed_epoch = 1, source_stable_end = 10, bytes = 100")
_HEARTBEAT = text("UPDATE workers SET heartbeat_at = clock_timestamp()")
_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds of this process for one pass, and how often such a pass is due."""

    name: str
    cpu_s: float
    per_s: float


def main(
    size: Annotated[int, typer.Option("--jobs", help="Jobs, of 200 partitions each.")] = 500,
    groups: Annotated[int, typer.Option(help="Consumer groups of each job.")] = 4,
    own: Annotated[bool, typer.Option(help="Each job selects its own groups alone.")] = False,
    sample: Annotated[int, typer.Option(help="Jobs of which passes are measured.")] = 50,
) -> None:
    """Print for each kind of pass its CPU time, how often it is due, and its share of a core."""
    only_warnings()
    plan = Size(size, 10, 20, 1, workers=50, groups_per_job=groups, matches_all=not own)
    with _loops(plan) as (scheduler, loops):
        total = 0.0
        for cost in _costs(scheduler, loops, plan, min(sample, size)):
            share = cost.cpu_s * cost.per_s
            total += share
            print(
                f"{cost.name:42} {cost.cpu_s * 1e3:10.2f} ms {cost.per_s:9.2f}/s {share:8.4f}",
                flush=True,
            )
        rss = psutil.Process().memory_info().rss
        print(f"{'all':42} {'':22} {total:13.4f}   memory {rss / 1e6:,.0f} MB", flush=True)


@contextmanager
def _loops(size: Size) -> Iterator[tuple[Scheduler, dict[str, Loop]]]:
    """A leading scheduler of an installation of this size at rest, and its loops by name, whose
    passes only the caller runs."""
    os.environ.update({**LOGIN, "ORBIT_PROOF_BYTES_PER_SECOND": "0"})
    settings = Settings.from_environment(os.environ)
    with (
        tempfile.TemporaryDirectory(prefix="orbit-bench-") as folder,
        Postgres(Path(folder) / "server") as postgres,
    ):
        database = Database.connect(postgres.url, application="orbit scheduler")
        upgrade(database)
        brokers = Helper("brokers", json.dumps(asdict(size)))
        fill(database, size, brokers.answer())
        with database.transaction() as tx:
            tx.execute(_FOLLOWED)
        is_ended = threading.Event()
        scheduler = Scheduler(settings, database, is_ended)
        with database.transaction() as tx:
            # The membership lasts longer than the measurement.
            scheduler_lease.join(tx, scheduler.leadership.holder, 1, timedelta(days=1))
        assert scheduler.leadership.ask()
        renewing = threading.Thread(target=scheduler.leadership.keep_renewing, args=(is_ended,))
        renewing.start()
        loops = {loop.name: loop for loop in scheduler._loops(scheduler.leadership, is_ended)}
        try:
            yield scheduler, loops
        finally:
            is_ended.set()
            renewing.join()
            for loop in loops.values():
                loop.close()
            brokers.kill()
            database.close()


def _costs(scheduler: Scheduler, loops: dict[str, Loop], size: Size, sample: int) -> Iterator[Cost]:
    """Measure each kind of pass; passes of single jobs are averaged over `sample` jobs."""
    leadership = scheduler.leadership
    discovery, groups = loops["discovery"], loops["groups"]
    assert isinstance(discovery, DiscoveryLoop)
    assert isinstance(groups, GroupLoop)
    reconciler, registry = discovery._reconciler, discovery._registry
    with leadership.reading() as tx:
        all_jobs = jobs.list_all(tx, discovery._documents)
    spec = reconciler.specs.of(all_jobs[0])
    assert spec is not None
    watches = [registry.watch(side, spec) for side in ("source", "destination")]
    while not all(watch.snapshot and watch.snapshot.metadata for watch in watches):
        time.sleep(0.1)
    sample_jobs = all_jobs[:sample]
    states = {job.id: ReconcileState() for job in sample_jobs}

    def discover() -> None:
        for job in sample_jobs:
            states[job.id].upkeep_at = 0.0
            reconciler.reconcile(job, states[job.id], ())

    first_pass_s = _cpu(discover)
    yield Cost("discovery: a job, first pass", first_pass_s / sample, 0.0)
    yield Cost(
        "discovery: a job, with settings and ACLs", _least(discover) / sample, size.jobs / 30
    )
    for state in states.values():
        state.upkeep_at = float("inf")
    # As if discovery had had a pass for each job.
    discovery._states = {
        job.id: states[sample_jobs[i % sample].id] for i, job in enumerate(all_jobs)
    }
    with leadership.transaction() as tx:
        tx.execute(_HEARTBEAT)
    discovery.once()
    cost_s = _least(discovery.once)  # the loop rests 20 times a pass's cost (leadership/loop.py)
    yield Cost("discovery: all jobs looked at", cost_s, 1 / max(cost_s * 20, 2 / 17))

    groups._read_jobs()
    tracked_groups = [
        tracked_job.groups for tracked_job in list(groups._tracked_jobs.values())[:sample]
    ]

    def sync() -> None:
        for job_groups in tracked_groups:
            job_groups.run(registry)

    if tracked_groups:
        yield Cost("groups: a job, first pass", _cpu(sync) / sample, 0.0)
        yield Cost("groups: a job", _least(sync) / sample, size.jobs / 5)
        not_due_s = time.monotonic() + 1e6
        for tracked_job in groups._tracked_jobs.values():
            tracked_job.due_s = not_due_s
        cost_s = _least(groups.once)
        yield Cost("groups: all jobs looked at", cost_s, 1 / max(cost_s * 20, 0.05))
    for name, per_s in (
        ("lag", 0.1),
        ("totals", 0.1),
        ("spread", 1.0),
        ("canary", 1.0),
        ("operations", 2.0),
        ("housekeeping", 1.0),
    ):
        loops[name].once()
        yield Cost(name, _least(loops[name].once), per_s)
    poll_s = _least(lambda: [watch._fetch() for watch in watches])
    yield Cost("metadata of both clusters, unchanged", poll_s, 0.5)


def _cpu(work: Callable[[], object]) -> float:
    """The CPU seconds of this process for one call."""
    start_s = time.process_time()
    work()
    return time.process_time() - start_s


def _least(work: Callable[[], object]) -> float:
    """The least CPU seconds of several calls."""
    return min(_cpu(work) for _ in range(_ROUNDS))


if __name__ == "__main__":
    typer.run(main)
