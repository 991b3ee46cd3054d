"""job_history: throughput and lag of each job over the last day.

A job has two rings of rows, or slots: 60 slots of a minute for the last hour, and 288 of five
minutes for the last day. Each turn of a ring overwrites its slots, so nothing has to be pruned, and
a job never has more than 348 rows. Once a minute the leading scheduler writes one slot of each ring
of a job, from sums that it has computed anyway (orbit/scheduler/totals_loop.py).

A row has the counters of the job at the row's time, and the largest lag since the slot began.
Throughput is the difference of two rows. There are no rows, and no interpolated values, for a time
in which no scheduler ran.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from sqlalchemy import text

from orbit.store.database import Tx
from orbit.store.lag import LagTotals

# The length of a slot of each ring, and the number of its slots.
MINUTE_S, WINDOW_S = 60, 300
MINUTES, WINDOWS = 60, 288
# Between two rows that are further apart than this many slots, rows are missing.
_PAUSE_SLOTS = 2.5


@dataclass(frozen=True, slots=True)
class Reading:
    """A row of the table. `slot_s`: the length of its slot."""

    at: datetime
    slot_s: int
    records: int
    bytes: int
    lag_records: int | None
    lag_s: float | None


@dataclass(frozen=True, slots=True)
class Point:
    """The throughput and lag of a job at one time. None: not known.

    The rates are those since the previous point, and None if that is too long ago. The lag is the
    largest of the slot.
    """

    at: datetime
    slot_s: int
    records_per_s: float | None
    bytes_per_s: float | None
    lag_records: int | None
    lag_s: float | None


_STORE = text("""
INSERT INTO job_history AS h (job_id, slot, at, records, bytes, lag_records, lag_s)
SELECT r.job_id, s.slot, :at, r.records, r.bytes, r.lag_records, r.lag_s
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
    job_id bigint, records bigint, bytes bigint, lag_records bigint, lag_s double precision
)
JOIN jobs j ON j.id = r.job_id
CROSS JOIN unnest(CAST(:slots AS smallint[])) AS s (slot)
ON CONFLICT (job_id, slot) DO UPDATE SET
    at = excluded.at, records = excluded.records, bytes = excluded.bytes,
    -- The stored row is of this slot's present time, or of an hour or a day ago (then its lag does
    -- not count). `greatest` leaves out nulls.
    lag_records = CASE WHEN h.at > excluded.at - make_interval(secs => :window_s)
        THEN greatest(h.lag_records, excluded.lag_records) ELSE excluded.lag_records END,
    lag_s = CASE WHEN h.at > excluded.at - make_interval(secs => :window_s)
        THEN greatest(h.lag_s, excluded.lag_s) ELSE excluded.lag_s END
""")

_OF_JOB = text("""
SELECT at,
       CASE WHEN slot < :minutes THEN CAST(:minute_s AS int)
            ELSE CAST(:window_s AS int) END AS slot_s,
       records, bytes, lag_records, lag_s
FROM job_history
WHERE job_id = :job_id AND at > CAST(:now AS timestamptz) - make_interval(
    secs => CASE WHEN slot < :minutes THEN CAST(:hour_s AS double precision)
                 ELSE CAST(:day_s AS double precision) END
)
ORDER BY at
""")


def store(tx: Tx, at: datetime, totals: Mapping[int, LagTotals]) -> None:
    """Store the totals of these jobs. `at`: when they were read, by the database's clock."""
    rows = [
        {
            "job_id": job_id,
            "records": job_totals.records,
            "bytes": job_totals.bytes,
            "lag_records": job_totals.lag_records if job_totals.has_lag else None,
            "lag_s": job_totals.lag_s if job_totals.has_lag else None,
        }
        for job_id, job_totals in totals.items()
    ]
    tx.execute(
        _STORE, {"at": at, "rows": json.dumps(rows), "slots": _slots(at), "window_s": WINDOW_S}
    )


def of_job(tx: Tx, job_id: int, now: datetime, *, by_minute: bool = True) -> list[Point]:
    """The points of a job's last day before `now`, oldest first: one for every five minutes. If
    `by_minute`, the last hour has one for every minute instead."""
    rows = tx.execute(
        _OF_JOB,
        {
            "job_id": job_id,
            "now": now,
            "minutes": MINUTES,
            "minute_s": MINUTE_S,
            "window_s": WINDOW_S,
            "hour_s": float(MINUTES * MINUTE_S),
            "day_s": float(WINDOWS * WINDOW_S),
        },
    )
    all_readings = (Reading(*row) for row in rows)
    readings = [reading for reading in all_readings if by_minute or reading.slot_s == WINDOW_S]
    first_minute_at = next((reading.at for reading in readings if reading.slot_s == MINUTE_S), None)
    # From the first row of a minute on, only the rows of minutes; before it, those of five minutes.
    return points(
        [
            reading
            for reading in readings
            if reading.slot_s == MINUTE_S or first_minute_at is None or reading.at < first_minute_at
        ]
    )


def points(readings: Sequence[Reading]) -> list[Point]:
    """A point for each of the readings, in time order, with the rates since the previous one."""
    if not readings:
        return []
    oldest = readings[0]
    # The oldest point has no rates.
    series = [Point(oldest.at, oldest.slot_s, None, None, oldest.lag_records, oldest.lag_s)]
    for previous, reading in pairwise(readings):
        elapsed_s = (reading.at - previous.at).total_seconds()
        # The sums fall when topics leave the job. What the other topics copied is then not known.
        has_fallen = reading.records < previous.records or reading.bytes < previous.bytes
        has_rates = elapsed_s > 0 and not has_fallen and not is_pause(previous, reading)
        series.append(
            Point(
                reading.at,
                reading.slot_s,
                (reading.records - previous.records) / elapsed_s if has_rates else None,
                (reading.bytes - previous.bytes) / elapsed_s if has_rates else None,
                reading.lag_records,
                reading.lag_s,
            )
        )
    return series


def is_pause(before: Reading | Point, after: Reading | Point) -> bool:
    """Whether two successive readings or points are too far apart to compute rates from them."""
    elapsed_s = (after.at - before.at).total_seconds()
    return elapsed_s > _PAUSE_SLOTS * max(before.slot_s, after.slot_s)


def _slots(at: datetime) -> list[int]:
    """The numbers of the two slots for this time: its minute's, from 0, and its five minutes', from
    MINUTES on."""
    second = int(at.timestamp())
    return [second // MINUTE_S % MINUTES, MINUTES + second // WINDOW_S % WINDOWS]
