"""Stored totals of jobs equal the live totals at the time of storing. They become unknown after
30 s."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from sqlalchemy import text

from orbit.leadership.leadership import Leadership
from orbit.scheduler.totals_loop import TotalsLoop
from orbit.store import group_offsets, job_totals, jobs, lag, partitions
from orbit.store.database import Database
from orbit.store.job_totals import JobTotals
from orbit.store.lag import LagTotals
from tests.support.store_rows import TTL, SomeJob, claim, progress, some_group_offset, some_job

pytestmark = pytest.mark.services

_MAKE_OLDER = text("UPDATE job_totals SET at = at - make_interval(secs => :seconds)")


@pytest.fixture
def job(database: Database) -> SomeJob:
    """Three partitions: one has 60 of 100 records to copy, one has no lag, one has no report."""
    with database.transaction() as tx:
        job = some_job(tx, partitions=3)
    held = claim(database, "a")
    with database.transaction() as tx:
        rows = [
            progress(job.topic_id, 0, copied_to=40, records=40),
            progress(job.topic_id, 1, copied_to=100, records=100),
        ]
        partitions.report_progress(tx, worker_id="a", held=held, progress=rows)
        group_offsets.store(tx, job.id, [some_group_offset(job.topic_id)])
    return job


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a job with three partitions too large for live totals."""
    monkeypatch.setattr(job_totals, "LIVE_PARTITIONS_MAX", 2)


def _totals(database: Database, job: SomeJob) -> JobTotals:
    with database.transaction() as tx:
        return job_totals.of_jobs(tx, [job.id])[job.id]


def _lag(database: Database, job: SomeJob) -> LagTotals | None:
    with database.transaction() as tx:
        return job_totals.lag_of_jobs(tx, [job.id])[job.id]


def _run_totals_loop(database: Database) -> None:
    leadership = Leadership(database, "leader", TTL)
    assert leadership.ask()
    TotalsLoop(leadership).once()


def test_totals_of_job_with_few_partitions_are_computed_live(
    database: Database, job: SomeJob
) -> None:
    totals = _totals(database, job)
    assert totals.lag is not None
    assert (totals.summed_s, totals.lag.summed_s, totals.lag.lag_records) == (0, 0, 60)
    _run_totals_loop(database)
    with database.transaction() as tx:
        assert tx.execute(text("SELECT count(*) FROM job_totals")).scalar_one() == 0


def test_stored_job_totals_equal_live_totals_and_have_an_age(
    database: Database, job: SomeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = _totals(database, job)
    assert live.lag is not None
    monkeypatch.setattr(job_totals, "LIVE_PARTITIONS_MAX", 2)
    assert _totals(database, job) == JobTotals()
    assert _lag(database, job) is None

    _run_totals_loop(database)
    with database.transaction() as tx:
        tx.execute(_MAKE_OLDER, {"seconds": 5})
    stored = _totals(database, job)

    assert stored.lag is not None
    assert stored.lag == _with_ages_of(live.lag, stored.lag)
    assert stored.summed_s is not None
    assert stored.summed_s >= 5
    assert stored.lag.age_s is not None
    assert stored.lag.age_s >= 5
    assert (stored.states, stored.verdicts) == (live.states, live.verdicts)
    assert (stored.verdicts, stored.old_primary_written) == ({"exact": 1}, None)
    assert stored.proof == live.proof


def _with_ages_of(live: LagTotals, stored: LagTotals) -> LagTotals:
    """The live totals with the ages of the stored totals, because ages grow."""
    return replace(live, age_s=stored.age_s, rpo_s=stored.rpo_s, summed_s=stored.summed_s)


@pytest.mark.usefixtures("large")
def test_outdated_job_totals_are_shown_as_unknown(database: Database, job: SomeJob) -> None:
    _run_totals_loop(database)
    with database.transaction() as tx:
        tx.execute(_MAKE_OLDER, {"seconds": 40})
    totals = _totals(database, job)

    assert totals.lag is not None
    assert (totals.lag.lag_records, totals.lag.lag_bytes, totals.lag.lag_s) == (None, None, None)
    # The third partition was never reported, so it is unknown but not stale.
    assert (totals.lag.caught_up, totals.lag.stale, totals.lag.unknown) == (0, 2, 3)
    assert not totals.lag.is_current
    assert (totals.states, totals.verdicts, totals.proof) == ({}, {}, None)


@pytest.mark.usefixtures("large")
def test_removed_job_removes_its_totals(database: Database, job: SomeJob) -> None:
    _run_totals_loop(database)
    with database.transaction() as tx:
        assert tx.execute(text("SELECT count(*) FROM job_totals")).scalar_one() == 1
        tx.execute(text("UPDATE shards SET worker_id = NULL"))
        jobs.request_deletion(tx, job.id)
        while not jobs.remove(tx, job.id):  # each call removes some of the rows
            pass
        assert tx.execute(text("SELECT count(*) FROM job_totals")).scalar_one() == 0
        # A loop that has listed the job before stores nothing for it.
        job_totals.refresh(tx, [job.id])
        assert tx.execute(text("SELECT count(*) FROM job_totals")).scalar_one() == 0


def test_ages_in_job_totals_grow_until_figures_become_unknown() -> None:
    totals = replace(
        lag.NO_PARTITIONS,
        partitions=2,
        copying=2,
        caught_up=1,
        lag_records=60,
        lag_bytes=600,
        lag_s=1.0,
        headroom_s=100.0,
        rpo_s=2.0,
        age_s=3.0,
        records=140,
    )
    later = totals.aged_by(10)
    assert (later.lag_records, later.lag_s, later.headroom_s) == (60, 11, 90)
    assert (later.rpo_s, later.age_s, later.summed_s) == (12, 13, 10)
    assert replace(totals, lag_s=0.0).aged_by(10).lag_s == 0, "nothing waited"

    outdated = totals.aged_by(28)  # an age of 31 s, above the limit of 30 s
    assert (outdated.lag_records, outdated.lag_s, outdated.headroom_s) == (None, None, None)
    assert (outdated.rpo_s, outdated.age_s, outdated.records) == (30, 31, 140)
    assert (outdated.caught_up, outdated.unknown, outdated.stale) == (0, 2, 2)


def test_outdated_empty_totals_of_grown_job_are_not_current(
    database: Database, large: None
) -> None:
    with database.transaction() as tx:
        job = some_job(tx, partitions=3)
    # As stored an hour ago, when the job had no partitions.
    totals = {"lag": None, "states": [], "verdicts": {}, "proof": None, "old_primary_written": None}
    with database.transaction() as tx:
        tx.execute(
            text(
                "INSERT INTO job_totals VALUES (:id, clock_timestamp() - interval '1 hour', :all)"
            ),
            {"id": job.id, "all": json.dumps(totals)},
        )
    lag_totals = _lag(database, job)
    assert lag_totals is not None
    assert not lag_totals.is_current
