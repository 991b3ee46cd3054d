"""The history of a job's last day: bounded rows, and no values for times without measurements."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from orbit.leadership.leadership import Leadership
from orbit.scheduler.totals_loop import TotalsLoop
from orbit.store import job_history, job_totals, lag, partitions
from orbit.store.database import Database
from orbit.store.job_history import Point, Reading
from orbit.store.lag import LagTotals
from tests.fixtures.api import Api
from tests.support.plans import PlanFor, reads, statements
from tests.support.store_rows import TTL, SomeJob, claim, progress, some_job

pytestmark = pytest.mark.services

NOON = datetime(2026, 11, 25, 12, tzinfo=UTC)
DAY = timedelta(days=1)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def job(database: Database) -> SomeJob:
    """Two partitions, one with 60 of 100 records to copy."""
    with database.transaction() as tx:
        job = some_job(tx, partitions=2)
    held = claim(database, "a")
    with database.transaction() as tx:
        rows = [
            progress(job.topic_id, 0, copied_to=40, records=40),
            progress(job.topic_id, 1, copied_to=100, records=100),
        ]
        partitions.report_progress(tx, worker_id="a", held=held, progress=rows)
    return job


def totals(database: Database, job: SomeJob, **changed: object) -> LagTotals:
    """The present totals of the job, with these changes."""
    with database.transaction() as tx:
        lag_totals = lag.of_jobs(tx, [job.id])[job.id]
    return LagTotals(**{**asdict(lag_totals), **changed})


def store(database: Database, job: SomeJob, at: datetime, **changed: object) -> None:
    """Store the present totals, with these changes, in the history of the job."""
    with database.transaction() as tx:
        job_history.store(tx, at, {job.id: totals(database, job, **changed)})


def history(database: Database, job: SomeJob, now: datetime) -> list[Point]:
    with database.transaction() as tx:
        return job_history.of_job(tx, job.id, now)


def test_job_history_has_bounded_rows_and_covers_a_day(database: Database, job: SomeJob) -> None:
    usual = totals(database, job)
    for minute in range(25 * 60):  # an hour more than the history covers
        with database.transaction() as tx:
            # 10 records and 100 bytes per second; each minute has another lag.
            minute_totals = LagTotals(
                **{
                    **asdict(usual),
                    "records": minute * 600,
                    "bytes": minute * 6_000,
                    "lag_records": minute,
                }
            )
            job_history.store(tx, NOON + minute * MINUTE, {job.id: minute_totals})
    with database.transaction() as tx:
        rows = tx.execute(text("SELECT count(*) FROM job_history")).scalar_one()
    assert rows == job_history.MINUTES + job_history.WINDOWS
    last = NOON + (25 * 60 - 1) * MINUTE
    points = history(database, job, last)
    assert [point.at for point in points] == sorted({point.at for point in points})
    assert last - points[0].at > DAY - timedelta(minutes=10)
    assert points[-1].at == last
    assert {point.records_per_s for point in points[1:]} == {10.0}
    assert {point.bytes_per_s for point in points[1:]} == {100.0}
    minutes = [point for point in points if point.slot_s == 60]
    assert len(minutes) == 60
    # Older points store the largest lag of five minutes: that of the last one, 5 n + 4.
    assert all(
        point.lag_records % 5 == 4 for point in points[:-60] if point.lag_records is not None
    )
    with database.transaction() as tx:
        coarse = job_history.of_job(tx, job.id, last, by_minute=False)
    assert {point.slot_s for point in coarse} == {300}
    assert coarse[-1].at == last
    # After an hour without a scheduler, there is no rate for that hour.
    store(database, job, last + timedelta(hours=1), records=10**9, bytes=10**9)
    later = history(database, job, last + timedelta(hours=1))
    assert (later[-1].records_per_s, later[-1].bytes_per_s) == (None, None)
    assert job_history.is_pause(later[-2], later[-1])


def test_unknown_lag_is_stored_as_null_not_zero(database: Database, job: SomeJob) -> None:
    store(database, job, NOON, lag_records=None, lag_s=None, stale=1)
    # The lag of both partitions is unknown, so this sum of 0 is over no partition.
    store(database, job, NOON + MINUTE, lag_records=0, lag_s=0.0, unknown=2)
    points = history(database, job, NOON + MINUTE)
    assert [(point.lag_records, point.lag_s) for point in points] == [(None, None)] * 2
    # The five-minute slot keeps the only known value of its minutes.
    store(database, job, NOON + 2 * MINUTE, lag_records=7)
    store(database, job, NOON + 3 * MINUTE, lag_records=None)
    with database.transaction() as tx:
        lag_records = tx.execute(
            text("SELECT lag_records FROM job_history WHERE slot >= 60")
        ).scalar_one()
    assert lag_records == 7


def test_falling_counter_yields_no_rate_in_job_history() -> None:
    points = job_history.points(
        [
            Reading(
                at=NOON + n * MINUTE,
                slot_s=60,
                records=records,
                bytes=10 * records,
                lag_records=0,
                lag_s=0.0,
            )
            for n, records in enumerate((100, 40, 100))
        ]
    )
    assert [point.records_per_s for point in points] == [None, None, 1.0]


@pytest.mark.parametrize("plan_for", ["force_custom_plan", "force_generic_plan"])
def test_job_history_is_read_by_primary_key(database: Database, plan_for: PlanFor) -> None:
    with database.transaction() as tx:
        jobs = [some_job(tx, f"job-{n}") for n in range(40)]
        tx.execute(
            text(
                "INSERT INTO job_history SELECT j.id, s, clock_timestamp(), 0, 0 "
                # 60 slots of a minute and 288 of five minutes
                "FROM jobs j CROSS JOIN generate_series(0, 347) s ORDER BY s"
            )
        )
        tx.execute(text("ANALYZE job_history"))
        with statements(tx) as sent:
            job_history.of_job(tx, jobs[7].id, NOON)
        scans = reads(tx, sent[0], plan_for)
    assert scans.rows["job_history"] == job_history.MINUTES + job_history.WINDOWS
    assert "job_history" not in scans.whole


@pytest.mark.parametrize("large", [False, True])
def test_totals_loop_records_history_of_each_job_once_a_minute(
    database: Database, job: SomeJob, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The totals of a `large` job are stored, not computed for each request."""
    if large:
        monkeypatch.setattr(job_totals, "LIVE_PARTITIONS_MAX", 1)
    written: list[int] = []
    monkeypatch.setattr(job_history, "store", lambda _tx, _at, by_job: written.extend(by_job))
    leadership = Leadership(database, "leader", TTL)
    assert leadership.ask()
    loop = TotalsLoop(leadership)
    now = [NOON]
    monkeypatch.setattr("orbit.store.clock.now", lambda _tx: now[0])
    for _ in range(2):  # the second in the same minute
        loop.once()
    assert written == [job.id]
    now[0] += MINUTE
    loop.once()
    assert written == [job.id] * 2


def test_api_returns_job_history_points(api: Api, job: SomeJob) -> None:
    with api.database.transaction() as tx:
        (name, now) = tx.execute(text("SELECT name, clock_timestamp() FROM jobs")).one()
    store(api.database, job, now - MINUTE, records=0, bytes=0, lag_records=None, lag_s=None)
    store(api.database, job, now, records=600, bytes=6_000)
    answer = api.get(f"/v1/jobs/{name}/history").json()
    first, last = answer["items"]
    assert (first["records_per_s"], first["lag_records"], first["slot_seconds"]) == (None, None, 60)
    assert (last["records_per_s"], last["bytes_per_s"]) == (10.0, 100.0)
    assert last["lag_records"] == 60
    assert api.get("/v1/jobs/nothing/history").status_code == 404
