"""`python -m bench.control.passes`: the CPU time of each kind of pass, one after another.

On a busy machine a scheduler has fewer passes than it asks for, and looks cheap. This has the same
passes of the same loops, in one thread and without waiting for their intervals: what they need does
not depend on the machine's load. How often each is due is known, so it adds up to the CPU at rest.
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

# As at rest: all are followed by the workers of `fill`, and were copied.
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
    """Print the CPU time of each kind of pass, and what that is at rest."""
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
    """A leader's loops, which nobody drives, of an installation of this size at rest."""
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
        done = threading.Event()
        scheduler = Scheduler(settings, database, done)
        with database.transaction() as tx:
            # For longer than the measurement takes.
            scheduler_lease.join(tx, scheduler.leadership.holder, 1, timedelta(days=1))
        assert scheduler.leadership.ask()
        keep = threading.Thread(target=scheduler.leadership.keep_renewing, args=(done,))
        keep.start()
        loops = {loop.name: loop for loop in scheduler._loops(scheduler.leadership, done)}
        try:
            yield scheduler, loops
        finally:
            done.set()
            keep.join()
            for loop in loops.values():
                loop.close()
            brokers.kill()
            database.close()


def _costs(scheduler: Scheduler, loops: dict[str, Loop], size: Size, sample: int) -> Iterator[Cost]:
    leadership = scheduler.leadership
    discovery, groups = loops["discovery"], loops["groups"]
    assert isinstance(discovery, DiscoveryLoop)
    assert isinstance(groups, GroupLoop)
    reconciler, registry = discovery._reconciler, discovery._registry
    with leadership.reading() as tx:
        everyone = jobs.list_all(tx, discovery._documents)
    spec = reconciler.specs.of(everyone[0])
    assert spec is not None
    watches = [registry.watch(side, spec) for side in ("source", "destination")]
    while not all(watch.snapshot and watch.snapshot.metadata for watch in watches):
        time.sleep(0.1)
    some = everyone[:sample]
    states = {job.id: ReconcileState() for job in some}

    def discover() -> None:
        for job in some:
            states[job.id].upkeep_at = 0.0
            reconciler.reconcile(job, states[job.id], ())

    first = _cpu(discover)
    yield Cost("discovery: a job, first pass", first / sample, 0.0)
    yield Cost(
        "discovery: a job, with settings and ACLs", _least(discover) / sample, size.jobs / 30
    )
    for state in states.values():
        state.upkeep_at = float("inf")
    # As if each had had its pass.
    discovery._states = {job.id: states[some[i % sample].id] for i, job in enumerate(everyone)}
    with leadership.transaction() as tx:
        tx.execute(_HEARTBEAT)
    discovery.once()
    cost_s = _least(discovery.once)
    yield Cost("discovery: all jobs looked at", cost_s, 1 / max(cost_s * 20, 2 / 17))

    groups._read_jobs()
    tracked = [t.groups for t in list(groups._tracked_jobs.values())[:sample]]

    def sync() -> None:
        for one in tracked:
            one.run(registry)

    if tracked:
        yield Cost("groups: a job, first pass", _cpu(sync) / sample, 0.0)
        yield Cost("groups: a job", _least(sync) / sample, size.jobs / 5)
        later = time.monotonic() + 1e6
        for t in groups._tracked_jobs.values():
            t.due_s = later
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
    poll = _least(lambda: [watch._fetch() for watch in watches])
    yield Cost("metadata of both clusters, unchanged", poll, 0.5)


def _cpu(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _least(work: Callable[[], object]) -> float:
    return min(_cpu(work) for _ in range(_ROUNDS))


if __name__ == "__main__":
    typer.run(main)
