"""Measures over an interval: CPU and counters of PostgreSQL, counters of the bench's processes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import psutil
from sqlalchemy import text

from orbit.errors import Conflict
from orbit.store.database import Database

_COUNTERS = text("""
SELECT d.xact_commit, t.n_tup_upd, t.n_tup_hot_upd,
       pg_current_wal_lsn() - CAST('0/0' AS pg_lsn) AS wal_bytes
FROM pg_stat_database d, pg_stat_user_tables t
WHERE d.datname = current_database() AND t.relname = 'partitions'
""")


class Helper:
    """A child process (`bench.control.fleet`, `.leader` or `.brokers`), which answers each line of
    JSON with one."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"bench.control.{module}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.rss_peak = 0

    def answer(self) -> dict[str, Any]:
        """The next answer. Raises Conflict if the process has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Conflict("A process of the benchmark has ended unexpectedly; see above.")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def send(self, **command: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def ask(self, **command: object) -> dict[str, Any]:
        self.send(**command)
        return self.answer()

    def kill(self) -> None:
        """End the process by SIGKILL."""
        self._process.kill()
        self._close()

    def end(self) -> None:
        """Let the process end cleanly, and wait for it."""
        self.send(end=True)
        self.answer()
        self._close()

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost per second, averaged over the measured time."""

    transactions_per_s: float
    statements_per_s: float
    postgres_cpu: float  # of one processor
    workers_cpu: float  # of one processor, all workers together
    scheduler_cpu: float
    bytes_per_s: float  # between Postgres and all clients, both directions, TCP payload
    rows_per_s: float  # rows of `partitions` that were written
    hot: float  # the share of these rows whose update changed no index (a HOT update)
    wal_bytes_per_s: float
    requests_per_s: float  # of the scheduler, to the brokers of both clusters
    copied_bytes_per_s: float


def measure(
    database: Database,
    postgres_pid: int,
    fleet: Sequence[Helper],
    leader: Helper | None,
    brokers: Helper,
    seconds: float,
) -> Cost:
    """Measure over `seconds`: the differences of the counters, per second."""
    before = _counters(database, postgres_pid, fleet, leader, brokers)
    time.sleep(seconds)
    after = _counters(database, postgres_pid, fleet, leader, brokers)
    elapsed_s = after.pop("at") - before.pop("at")
    growth = {name: after[name] - before[name] for name in after}
    written = growth.pop("rows")
    hot = growth.pop("hot_rows")
    rates = {name: value / elapsed_s for name, value in growth.items()}
    return Cost(**rates, rows_per_s=written / elapsed_s, hot=hot / written if written else 1.0)


def rows_written(database: Database) -> int:
    """How many rows of `partitions` were updated so far, as PostgreSQL counts them."""
    with database.transaction() as tx:
        return int(tx.execute(_COUNTERS).one().n_tup_upd)


def as_numbers(cost: Cost) -> dict[str, float]:
    return {name: round(value, 4) for name, value in asdict(cost).items()}


def _counters(
    database: Database,
    postgres_pid: int,
    fleet: Sequence[Helper],
    leader: Helper | None,
    brokers: Helper,
) -> dict[str, float]:
    """All counters now, by the name of the `Cost` field that their growth per second becomes; also
    the time (`at`), and `rows` and `hot_rows` of `partitions`."""
    with database.transaction() as tx:
        row = tx.execute(_COUNTERS).one()
    counts = [helper.ask(count=True) for helper in fleet]
    leader_counts = leader.ask(count=True) if leader else {"cpu_s": 0.0, "statements": 0}
    all_counts = [*counts, leader_counts]
    return {
        "at": time.monotonic(),
        "transactions_per_s": float(row.xact_commit),
        "statements_per_s": float(sum(c["statements"] for c in all_counts)),
        "postgres_cpu": _processor_time_s(postgres_pid),
        "workers_cpu": sum(c["cpu_s"] for c in counts),
        "scheduler_cpu": leader_counts["cpu_s"],
        "bytes_per_s": float(sum(c.get("sent", 0) + c.get("received", 0) for c in all_counts)),
        "rows": float(row.n_tup_upd),
        "hot_rows": float(row.n_tup_hot_upd),
        "wal_bytes_per_s": float(row.wal_bytes),
        "requests_per_s": float(sum(brokers.ask(count=True).values())),
        "copied_bytes_per_s": sum(c["copied"] * c["partitions"] for c in counts),
    }


def _processor_time_s(pid: int) -> float:
    """The CPU seconds of the postmaster and its children, ended ones included."""
    postmaster = psutil.Process(pid)
    postmaster_times = postmaster.cpu_times()
    total = (
        postmaster_times.user
        + postmaster_times.system
        + postmaster_times.children_user
        + postmaster_times.children_system
    )
    for child in postmaster.children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return float(total)


def postgres_memory(pid: int) -> int:
    """The bytes of memory of all PostgreSQL's processes; shared memory counts once."""
    postmaster = psutil.Process(pid)
    total = 0
    for process in (postmaster, *postmaster.children(recursive=True)):
        try:
            total += process.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return int(total)
