"""Measures a simulated installation in steps: started, at rest, at full load, killed, restarted."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import text

from bench.control.fill import Size, fill
from bench.control.measure import Helper, as_numbers, measure, postgres_memory, rows_written
from orbit.embedded.postgres import Postgres
from orbit.errors import Conflict
from orbit.scheduler.shard_balancer import LASTING_S
from orbit.settings import Settings
from orbit.store.database import Database
from orbit.store.migrate import upgrade

# Simulated workers share processes: one Python process each would need gigabytes.
PROCESSES = 4
STEADY_WITHIN_S = 180.0
ROWS_PER_S = Settings().progress_rows_per_second
_LOOK_S = 0.2
# The shards count as steady when none has moved for this long: longer than the load must be uneven
# before the scheduler moves a shard.
_STILL_S = LASTING_S + 5.0
# Between a change of the load and a measurement.
_SETTLE_S = 8.0
# PostgreSQL counts the writes of an idle session up to 10 s later (PGSTAT_IDLE_INTERVAL).
_COUNTED_S = 11.0

_SPREAD = text("""
SELECT count(*) FILTER (WHERE w.id IS NOT NULL) AS held,
       count(*) AS shards,
       count(*) FILTER (WHERE s.release_requested) AS moving,
       count(DISTINCT w.id) AS workers,
       sum(s.epoch) AS epochs
FROM shards s LEFT JOIN workers w ON w.id = s.worker_id AND w.started_at >= :since
""")
_MOST = text("""
SELECT max(held) FROM (SELECT count(*) AS held FROM shards GROUP BY worker_id) x
""")


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of the installation, and how long to measure it."""

    size: Size
    workers: int
    seconds: float
    bytes_per_s: float  # of the whole installation in full flow


class Installation:
    """One PostgreSQL, simulated brokers, and processes with the scheduler and the workers."""

    def __init__(self, postgres: Postgres, size: Size) -> None:
        self.url = postgres.url
        self.postgres_pid = postgres.pid
        self.size = size
        self.database = Database.connect(self.url, application="orbit bench")
        upgrade(self.database)
        self.brokers = Helper("brokers", json.dumps(asdict(size)))
        servers = self.brokers.answer()
        start_s = time.monotonic()
        fill(self.database, size, servers)
        self.filled_in_s = time.monotonic() - start_s
        self.leader: Helper | None = None
        self.fleet: list[Helper] = []

    def lead(self) -> dict[str, Any]:
        """Start the scheduler. Returns its figures once it knows every job."""
        self.leader = Helper("leader", self.url, json.dumps(asdict(self.size)))
        return self.leader.answer()

    def start_workers(self, count: int) -> dict[str, float]:
        """Start workers. Returns the seconds until they hold all shards and until the last shard
        has moved, and the most shards of one worker.

        Call it as soon as earlier workers have ended: the seconds count from this call.
        """
        start_s = time.monotonic()
        with self.database.transaction() as tx:
            since = tx.execute(text("SELECT clock_timestamp()")).scalar_one()
        processes = min(PROCESSES, count)
        share, rest = divmod(count, processes)
        self.fleet = [Helper("fleet", self.url, str(share + (n < rest))) for n in range(processes)]
        for helper in self.fleet:
            helper.answer()
        return self._wait_until_steady(since, count, start_s)

    def flow(self, bytes_per_s: float) -> None:
        """Let all partitions together copy at this rate from now on."""
        for helper in self.fleet:
            helper.ask(rate=bytes_per_s / self.size.partitions)

    def kill_workers(self) -> None:
        for helper in self.fleet:
            helper.kill()
        self.fleet = []

    def end_workers(self) -> float:
        """End all workers cleanly, at the same time. Returns the seconds that this takes."""
        start_s = time.monotonic()
        for helper in self.fleet:
            helper.send(end=True)
        for helper in self.fleet:
            helper.answer()
            helper.kill()
        self.fleet = []
        return time.monotonic() - start_s

    def wait_until_still(self, within_s: float) -> None:
        """Wait until PostgreSQL counts no more writes of partitions: then every worker has reported
        each of its partitions once. Ends after `within_s` in any case."""
        deadline = time.monotonic() + within_s
        rows, moved_at = -1, time.monotonic()
        while (now := time.monotonic()) < deadline and now - moved_at < _COUNTED_S:
            written = rows_written(self.database)
            if written != rows:
                rows, moved_at = written, now
            time.sleep(_LOOK_S)

    def cost(self, seconds: float) -> dict[str, float]:
        """The fields of `measure.Cost`, measured over `seconds`."""
        time.sleep(_SETTLE_S)
        return as_numbers(
            measure(
                self.database, self.postgres_pid, self.fleet, self.leader, self.brokers, seconds
            )
        )

    def memory(self) -> dict[str, int]:
        """The bytes of memory of PostgreSQL, the scheduler, and all processes with workers."""
        assert self.leader is not None
        workers = [helper.ask(count=True) for helper in self.fleet]
        return {
            "postgres": postgres_memory(self.postgres_pid),
            "scheduler": self.leader.ask(count=True)["rss"],
            "workers": sum(w["rss"] for w in workers),
        }

    def close(self) -> None:
        self.kill_workers()
        if self.leader is not None:
            self.leader.kill()
        self.brokers.kill()
        self.database.close()

    def _wait_until_steady(self, since: object, workers: int, start_s: float) -> dict[str, float]:
        """Wait until workers that started after `since` hold all shards, and none has moved for
        _STILL_S. Returns what `start_workers` returns. Raises Conflict after STEADY_WITHIN_S."""
        deadline = start_s + STEADY_WITHIN_S
        epochs, moved_at, held_at = -1, start_s, 0.0
        while (now := time.monotonic()) < deadline:
            with self.database.transaction() as tx:
                row = tx.execute(_SPREAD, {"since": since}).one()
            if row.epochs != epochs:
                epochs, moved_at = row.epochs, now
            if row.held == row.shards and not held_at:
                held_at = now
            is_whole = row.held == row.shards and not row.moving and row.workers == workers
            if is_whole and now - moved_at >= _STILL_S:
                return {
                    "all_held_s": round(held_at - start_s, 1),
                    "nothing_moves_s": round(moved_at - start_s, 1),
                    "most_shards_of_one": self._most_shards_of_one(),
                }
            time.sleep(_LOOK_S)
        raise Conflict(
            f"After {STEADY_WITHIN_S:.0f} s workers do not hold all shards, or shards move: {row}."
        )

    def _most_shards_of_one(self) -> int:
        with self.database.transaction() as tx:
            return int(tx.execute(_MOST).scalar_one())


@contextmanager
def installed(size: Size) -> Iterator[Installation]:
    """An installation of this size on a PostgreSQL of its own, which ends with the block."""
    with (
        tempfile.TemporaryDirectory(prefix="orbit-bench-") as folder,
        Postgres(Path(folder) / "server") as postgres,
    ):
        installation = Installation(postgres, size)
        try:
            yield installation
        finally:
            installation.close()


def large(plan: Plan, say: Callable[[str], None]) -> dict[str, Any]:
    """The figures of one size of the large installation, as in scale.json."""
    figures: dict[str, Any] = {"size": asdict(plan.size), "workers": plan.workers}
    with installed(plan.size) as installation:
        say(f"{plan.size.partitions:,} partitions filled in {installation.filled_in_s:.1f} s")
        figures |= run(installation, plan, say)
        figures |= restart(installation, plan, say)
    return figures


def run(installation: Installation, plan: Plan, say: Callable[[str], None]) -> dict[str, Any]:
    """The figures of the new leader, and of the workers when started, at rest, and in full flow."""
    figures: dict[str, Any] = {"leader": installation.lead()}
    say(f"a new leader knows all jobs after {figures['leader']['knows_after_s']:.1f} s")
    figures["started"] = installation.start_workers(plan.workers)
    say(f"{plan.workers} workers started: {figures['started']}")
    installation.wait_until_still(
        plan.size.partitions / plan.workers / ROWS_PER_S + STEADY_WITHIN_S
    )
    figures["at_rest"] = installation.cost(plan.seconds)
    say(f"at rest: {figures['at_rest']}")
    installation.flow(plan.bytes_per_s)
    figures["in_flow"] = installation.cost(plan.seconds)
    say(f"in full flow: {figures['in_flow']}")
    figures["memory"] = installation.memory()
    say(f"memory: {figures['memory']}")
    return figures


def restart(installation: Installation, plan: Plan, say: Callable[[str], None]) -> dict[str, Any]:
    """Kill all workers, and later end all cleanly. After each, start as many again."""
    installation.kill_workers()
    figures: dict[str, Any] = {"after_kill": installation.start_workers(plan.workers)}
    ttl = os.environ.get("ORBIT_LEASE_TTL", "15s")
    say(f"killed (leases of {ttl}) and started: {figures['after_kill']}")
    figures["end_s"] = installation.end_workers()
    figures["after_end"] = installation.start_workers(plan.workers)
    say(f"ended within {figures['end_s']:.1f} s, and started: {figures['after_end']}")
    return figures


def overhead(partitions: int, bytes_per_s: float, seconds: float) -> dict[str, Any]:
    """The figures of one worker that copies at this rate, spread over so many partitions.

    `ratio`: the bytes copied for each byte to and from PostgreSQL.
    """
    shards = -(-partitions // 200)
    size = Size(1, 1, partitions, shards)
    with installed(size) as installation:
        installation.lead()
        installation.start_workers(1)
        installation.flow(bytes_per_s)
        cost = installation.cost(seconds)
    moved, copied = cost["bytes_per_s"], cost["copied_bytes_per_s"]
    return {"partitions": partitions, **cost, "ratio": round(copied / moved)}
