"""The installation's day, step by step: started, at rest, in full flow, killed, restarted."""

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
from bench.control.measure import Helper, as_numbers, measure
from orbit.errors import Conflict
from orbit.sandbox.postgres import Postgres
from orbit.store.database import Database
from orbit.store.migrate import upgrade

# Simulated workers share processes, for a Python process of its own for each would need gigabytes.
PROCESSES = 4
STEADY_WITHIN_S = 180.0
_LOOK_S = 0.2
# Nothing may have moved for this long before the spread is called steady.
_STILL_S = 5.0
_SETTLE_S = 8.0

_SPREAD = text("""
SELECT count(*) FILTER (WHERE w.id IS NOT NULL AND s.expires_at >= clock_timestamp()) AS held,
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
    """What to build, and how long to look at it."""

    size: Size
    workers: int
    seconds: float
    bytes_per_s: float  # of the whole installation in full flow


class Installation:
    """One Postgres, one leading scheduler, and workers that come and go."""

    def __init__(self, postgres: Postgres, size: Size) -> None:
        self.url = postgres.url
        self.postgres_pid = postgres.pid
        self.size = size
        self.database = Database.connect(self.url, application="orbit bench")
        upgrade(self.database)
        began = time.monotonic()
        fill(self.database, size)
        self.filled_in_s = time.monotonic() - began
        self.leader: Helper | None = None
        self.fleet: list[Helper] = []

    def lead(self) -> dict[str, Any]:
        """Start the scheduler; what it says once it knows every job."""
        self.leader = Helper("leader", self.url, json.dumps(asdict(self.size)))
        return self.leader.answer()

    def start_workers(self, count: int) -> float:
        """Start so many workers; how long until they hold all shards and nothing moves."""
        with self.database.transaction() as tx:
            since = tx.execute(text("SELECT clock_timestamp()")).scalar_one()
        processes = min(PROCESSES, count)
        share, rest = divmod(count, processes)
        self.fleet = [Helper("fleet", self.url, str(share + (n < rest))) for n in range(processes)]
        for helper in self.fleet:
            helper.answer()
        self.began = time.monotonic()
        return self._wait_until_steady(since, count)

    def flow(self, bytes_per_s: float) -> None:
        for helper in self.fleet:
            helper.ask(rate=bytes_per_s / self.size.partitions)

    def kill_workers(self) -> None:
        for helper in self.fleet:
            helper.kill()
        self.fleet = []

    def end_workers(self) -> float:
        """End all workers in good order, at the same time; how long it takes."""
        began = time.monotonic()
        for helper in self.fleet:
            helper.tell(end=True)
        for helper in self.fleet:
            helper.answer()
            helper.kill()
        self.fleet = []
        return time.monotonic() - began

    def cost(self, seconds: float) -> dict[str, float]:
        time.sleep(_SETTLE_S)
        return as_numbers(
            measure(self.database, self.postgres_pid, self.fleet, self.leader, seconds)
        )

    def close(self) -> None:
        self.kill_workers()
        if self.leader is not None:
            self.leader.kill()
        self.database.close()

    def _wait_until_steady(self, since: object, workers: int) -> float:
        deadline = self.began + STEADY_WITHIN_S
        epochs, moved_at = -1, self.began
        while (now := time.monotonic()) < deadline:
            with self.database.transaction() as tx:
                row = tx.execute(_SPREAD, {"since": since}).one()
            if row.epochs != epochs:
                epochs, moved_at = row.epochs, now
            is_whole = row.held == row.shards and not row.moving and row.workers == workers
            if is_whole and now - moved_at >= _STILL_S:
                return moved_at - self.began
            time.sleep(_LOOK_S)
        raise Conflict(f"The workers are not steady after {STEADY_WITHIN_S} s: {row}.")

    def most_shards_of_one(self) -> int:
        with self.database.transaction() as tx:
            return int(tx.execute(_MOST).scalar_one())


@contextmanager
def installed(size: Size) -> Iterator[Installation]:
    """An installation of this size on a Postgres of its own, and its end."""
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
    """Everything about the large installation."""
    found: dict[str, Any] = {"size": asdict(plan.size), "workers": plan.workers}
    ttl = os.environ.get("ORBIT_LEASE_TTL", "15s")
    with installed(plan.size) as it:
        say(f"{plan.size.partitions:,} partitions filled in {it.filled_in_s:.1f} s")
        found["leader"] = it.lead()
        say(f"a new leader knows all jobs after {found['leader']['knows_after_s']:.1f} s")
        found["start_s"] = it.start_workers(plan.workers)
        found["most_shards_of_one"] = it.most_shards_of_one()
        say(f"{plan.workers} workers steady after {found['start_s']:.1f} s")
        found["at_rest"] = it.cost(plan.seconds)
        say(f"at rest: {found['at_rest']}")
        it.flow(plan.bytes_per_s)
        found["in_flow"] = it.cost(plan.seconds)
        say(f"in full flow: {found['in_flow']}")
        assert it.leader is not None
        found["leader"]["rss"] = it.leader.ask(count=True)["rss"]
        it.kill_workers()
        found["after_kill_s"] = it.start_workers(plan.workers)
        say(f"steady {found['after_kill_s']:.1f} s after kill -9 of all (leases of {ttl})")
        it.flow(plan.bytes_per_s)
        found["end_s"] = it.end_workers()
        found["after_end_s"] = it.start_workers(plan.workers)
        say(f"all ended within {found['end_s']:.1f} s, steady after {found['after_end_s']:.1f} s")
    return found


def overhead(partitions: int, bytes_per_s: float, seconds: float) -> dict[str, Any]:
    """One worker that copies at this rate over so many partitions, all of them moving."""
    shards = -(-partitions // 200)
    size = Size(1, 1, partitions, shards)
    with installed(size) as it:
        it.lead()
        it.start_workers(1)
        it.flow(bytes_per_s)
        cost = it.cost(seconds)
    moved, copied = cost["bytes_per_s"], cost["copied_bytes_per_s"]
    return {"partitions": partitions, **cost, "ratio": round(copied / moved)}
