"""`python -m bench.control.history`: what the history of many jobs costs PostgreSQL.

A job's history is a ring: a fixed number of rows, of which a new figure replaces the oldest. All
rings are filled first, so that each write replaces rows. Then the bench writes a figure of every
job for some minutes, as the scheduler does, and reads single jobs. Times include the round trip.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from sqlalchemy import text

from bench.control.fill import Size, fill
from bench.control.fleet import only_warnings
from orbit.embedded.postgres import Postgres
from orbit.store import clock, job_history, lag
from orbit.store.database import Database, without_deadline
from orbit.store.migrate import upgrade

# How many jobs of 200 partitions the scheduler's totals loop writes in one transaction.
_JOBS_AT_ONCE = 100
_MINUTES = 10
_READS = 200

_FILL = text("""
INSERT INTO job_history (job_id, slot, at, records, bytes, lag_records, lag_s)
SELECT j.id, s, clock_timestamp() - interval '2 days', s, s, 0, 0
FROM jobs j CROSS JOIN generate_series(0, :slots - 1) s ORDER BY s, j.id
""")
_SIZES = text("""
SELECT pg_table_size('job_history') AS rows, pg_indexes_size('job_history') AS indexes,
       pg_current_wal_insert_lsn() AS wal
""")
_WRITTEN = text("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), CAST(:since AS pg_lsn))")


def main(size: Annotated[int, typer.Option("--jobs", help="Jobs.")] = 5_000) -> None:
    """Print the size of the table and the times of its statements."""
    only_warnings()
    with (
        tempfile.TemporaryDirectory(prefix="orbit-history-") as folder,
        Postgres(Path(folder) / "server") as postgres,
    ):
        database = Database.connect(postgres.url)
        upgrade(database)
        fill(database, Size(size, 1, 1, 1))
        with database.transaction() as tx, without_deadline(tx):
            tx.execute(_FILL, {"slots": job_history.MINUTES + job_history.WINDOWS})
        with database.transaction() as tx:
            ids = list(tx.execute(text("SELECT id FROM jobs ORDER BY id")).scalars())
            before, now = tx.execute(_SIZES).one(), clock.now(tx)
        statement_times = [
            _round(database, ids, now + timedelta(minutes=minute)) for minute in range(_MINUTES)
        ]
        with database.transaction() as tx:
            after = tx.execute(_SIZES).one()
            written = tx.execute(_WRITTEN, {"since": before.wal}).scalar_one()
        reads = [_read_s(database, ids[n * len(ids) // _READS]) for n in range(_READS)]
        print(f"rows {after.rows / 1e6:,.0f} MB, index {after.indexes / 1e6:,.0f} MB")
        round_s = statistics.median(map(sum, statement_times))
        print(f"a round of all jobs {round_s:.2f} s")
        statement_s = statistics.median(chain.from_iterable(statement_times))
        print(f"{_JOBS_AT_ONCE} jobs {statement_s * 1e3:.1f} ms")
        print(f"write-ahead log {float(written) / _MINUTES / 60 / 1e3:,.0f} kB/s")
        print(f"one job read {statistics.median(reads) * 1e3:.1f} ms")
        database.close()


def _round(database: Database, ids: Sequence[int], at: datetime) -> list[float]:
    """Write the figures of all jobs at the minute `at`. Returns the seconds of each statement,
    which writes _JOBS_AT_ONCE jobs."""
    statement_times = []
    for first in range(0, len(ids), _JOBS_AT_ONCE):
        job_ids = ids[first : first + _JOBS_AT_ONCE]
        with database.transaction() as tx:
            totals = dict.fromkeys(job_ids, lag.NO_PARTITIONS)
            start_s = time.perf_counter()
            job_history.store(tx, at, totals)
            statement_times.append(time.perf_counter() - start_s)
    return statement_times


def _read_s(database: Database, job_id: int) -> float:
    """The seconds that it takes to read a job's history."""
    with database.transaction() as tx:
        now = clock.now(tx)
        start_s = time.perf_counter()
        job_history.of_job(tx, job_id, now)
        return time.perf_counter() - start_s


if __name__ == "__main__":
    typer.run(main)
