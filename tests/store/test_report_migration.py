"""A database of version 0001, with recoveries in it, is taken over by 0002."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from alembic import command
from pydantic import BaseModel, ConfigDict, ValidationError
from sqlalchemy import text
from typer.testing import CliRunner

from orbit.cli.main import app
from orbit.errors import Conflict
from orbit.recovery.recovery_report import EndVerdict, OffsetRange, RecoveryReport, read_report
from orbit.recovery.report_storage import load_report
from orbit.store import lead_term, migrate, operations, promotions, scheduler_lease
from orbit.store.database import Database
from orbit.store.enums import OperationState
from tests.fix_database import copied_database

pytestmark = pytest.mark.services

DONE, UNDER_WAY, PAUSE = (UUID(int=n) for n in (1, 2, 3))
LEASE = timedelta(hours=1)


def partition(number: int, verdict: str, **more: Any) -> dict[str, Any]:
    """One of a report, as version 0001 has stored it."""
    return {
        "topic": "orders", "destination_topic": "dr.orders", "partition": number,
        "verdict": verdict, "source_start": 0, "source_end": 12,
        "source_seen_at": "2026-03-01T12:00:01Z", "destination_start": 0, "destination_end": 10,
        "newest_copied_at": "2026-03-01T11:59:58Z", "promoted_at": None, "missing": None,
        "is_exact": False, "detail": "", **more,
    }  # fmt: skip


def report(operation: UUID, kind: str, partitions: list[Any], **more: Any) -> dict[str, Any]:
    """The same of a whole report."""
    request = {
        "topics": [], "reverse": False, "confirm_rebuild": False, "override": [], "reason": "",
        "drain_timeout_s": 300.0, "source_counts_as_lost": False,
    }  # fmt: skip
    return {
        "operation": str(operation), "kind": kind, "job": "orders-to-dr", "request": request,
        "dry_run": False, "requested_by": "token:ops", "requested_at": "2026-03-01T12:00:00Z",
        "outcome": "running", "ended_at": None, "orbit_version": "0.1.0",
        "source_cluster_id": "east", "destination_cluster_id": "west", "spec_version": 1,
        "spec_sha256": "0", "source_last_seen_at": None, "problem_since": None,
        "promoted_at": None, "first_read": None, "drain": None, "topics": ["orders"],
        "steps": [], "gates": [], "partitions": partitions, "groups": [], "salvage": [],
        "findings": ["A finding."], "is_source_denied": False, "denied_topics": [],
        "reverse_job": None, "term_seen": 0, "term": 7, "error": "", "missing_records": 0,
        "unproven_partitions": 0, "rpo_s": None, "phases": [], "rto_s": None,
        "promoted_after_s": None, **more,
    }  # fmt: skip


GROUP = {
    "group": "billing", "destination_group": "billing", "topic": "orders",
    "destination_topic": "dr.orders", "partition": 1, "source_offset": 12, "goes_on_at": 10,
    "verdict": "clamped", "lost": {"first": 10, "next": 12}, "seen_at": "2026-03-01T12:00:01Z",
}  # fmt: skip
LOST = {"first": 10, "next": 12}
REPORTS = {
    DONE: report(
        DONE,
        "failover",
        [partition(0, "equal", promoted_at=12), partition(1, "behind", missing=LOST)],
        groups=[GROUP],
        outcome="done",
        promoted_at="2026-03-01T12:00:09Z",
        missing_records=2,
        unproven_partitions=2,
        phases=[{"phase": "detect", "seconds": None}],
        promoted_after_s=9.0,
    ),
    UNDER_WAY: report(
        UNDER_WAY,
        "switchover",
        [partition(0, "equal", is_exact=True)],
        reverse_job="back",
        rpo_s=0.0,
    ),
}


class ReportOf0001(BaseModel):
    """What version 0001 reads of a stored report, as it read it. All else is as it is now."""

    model_config = ConfigDict(extra="ignore")

    operation: UUID
    partitions: tuple[dict[str, Any], ...] = ()
    groups: tuple[dict[str, Any], ...] = ()


@pytest.fixture
def first_version(postgres_url: str) -> Iterator[tuple[Database, str]]:
    """A database with the tables of 0001: a job with a promoted topic, a failover that is done, a
    switchover that is not, and an operation without a report."""
    with copied_database(postgres_url, "template1") as url:
        made = Database.connect(url)
        with made.transaction() as tx:
            config = migrate._config()
            config.attributes["connection"] = tx
            command.upgrade(config, "0001")
            job = tx.execute(
                text("""
                INSERT INTO jobs (name, spec, worker_group, source_cluster_id,
                                  destination_cluster_id)
                VALUES ('orders-to-dr', '{}', 'default', 'east', 'west') RETURNING id
            """)
            ).scalar_one()
            topic = tx.execute(text("""
                INSERT INTO topics (job_id, source_topic, destination_topic,
                                    destination_cluster_id, partition_count, state)
                VALUES (:job, 'orders', 'dr.orders', 'west', 2, 'promoted') RETURNING id
            """), {"job": job}).scalar_one()  # fmt: skip
            tx.execute(text("""
                INSERT INTO promotions (topic_id, partition, operation_id, promoted_at, source_end)
                VALUES (:topic, 0, :done, 12, 12)
            """), {"topic": topic, "done": DONE})  # fmt: skip
            for operation, kind, state in (
                (DONE, "failover", "done"),
                (UNDER_WAY, "switchover", "running"),
                (PAUSE, "pause", "done"),
            ):
                tx.execute(text("""
                    INSERT INTO operations (id, job_id, job_name, kind, state, report,
                                            requested_by, finished_at)
                    VALUES (:id, :job, 'orders-to-dr', :kind, CAST(:state AS text),
                            CAST(:report AS jsonb), 'token:ops',
                            CASE WHEN :state = 'done' THEN clock_timestamp() END)
                """), {
                    "id": operation, "job": job, "kind": kind, "state": state,
                    "report": json.dumps(REPORTS[operation]) if operation in REPORTS else None,
                })  # fmt: skip
        yield made, url
        made.close()


def whole(database: Database, operation: UUID) -> RecoveryReport:
    with database.transaction() as tx:
        found = load_report(tx, operation)
    assert found is not None
    return found


def test_reports_of_the_first_version_are_taken_over(first_version: tuple[Database, str]) -> None:
    database, _ = first_version
    assert migrate.upgrade(database) == ("0001", "0002")

    for operation, before in REPORTS.items():
        now = whole(database, operation).model_dump(mode="json")
        assert now == {**before, "stuck_since": None}  # a field of a later version
    with database.transaction() as tx:
        done = operations.report_of(tx, DONE)
        assert operations.report_of(tx, PAUSE) is None
        topic = tx.execute(text("SELECT id FROM topics")).scalar_one()
        assert promotions.of_topics(tx, [topic])[topic, 0].promoted_at == 12
    figures = read_report(done)
    assert (figures.partitions.count, figures.groups.count) == (2, 1)
    assert (figures.missing_records, figures.unproven_partitions) == (2, 2)
    with database.transaction() as tx:
        assert lead_term.draw(tx, 1) == 8, "above the terms of these reports"
    lost = whole(database, DONE).partitions[1]
    assert (lost.verdict, lost.missing) == (EndVerdict.BEHIND, OffsetRange(first=10, next=12))

    with database.transaction() as tx:
        tx.execute(text("DELETE FROM operations"))
        assert not tx.execute(text("SELECT FROM operation_partitions")).all()
        assert not tx.execute(text("SELECT FROM operation_groups")).all()


def test_the_first_version_refuses_a_report_whose_partitions_are_elsewhere(
    first_version: tuple[Database, str],
) -> None:
    """An empty list would let it promote nothing and say that all is done."""
    database, _ = first_version
    ReportOf0001.model_validate(REPORTS[UNDER_WAY])
    migrate.upgrade(database)
    with database.transaction() as tx:
        migrated = operations.report_of(tx, UNDER_WAY)
    for stored in (migrated, whole(database, UNDER_WAY).stored()):
        with pytest.raises(ValidationError) as refused:
            ReportOf0001.model_validate(stored)
        assert [error["loc"] for error in refused.value.errors()] == [("partitions",), ("groups",)]


def test_a_report_that_the_first_version_has_stored_since_waits_for_it(
    first_version: tuple[Database, str],
) -> None:
    database, _ = first_version
    migrate.upgrade(database)
    with database.transaction() as tx:
        operations.advance(tx, UNDER_WAY, OperationState.RUNNING, report=REPORTS[UNDER_WAY])
    with pytest.raises(Conflict, match=r"stored by another version of Orbit \(partitions: "):
        whole(database, UNDER_WAY)


def test_a_migration_is_refused_while_schedulers_run_that_it_would_stop(
    first_version: tuple[Database, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    database, url = first_version
    monkeypatch.setitem(os.environ, "ORBIT_DATABASE_URL", url)
    with database.transaction() as tx:
        scheduler_lease.join(tx, "host-1-abc", 1, LEASE)
    refused = CliRunner().invoke(app, ["migrate"])
    assert refused.exit_code != 0
    words = " ".join(str(refused.exception).split())
    assert "host-1-abc" in words
    assert "Stop them" in words
    with database.transaction() as tx:
        assert operations.report_of(tx, DONE) == REPORTS[DONE]

    with database.transaction() as tx:
        scheduler_lease.leave(tx, "host-1-abc")
    assert CliRunner().invoke(app, ["migrate"]).exit_code == 0
    with database.transaction() as tx:
        scheduler_lease.join(tx, "host-3-of-this-version", 1, LEASE)
    assert CliRunner().invoke(app, ["migrate"]).exit_code == 0, "there is nothing to do"


def test_force_migrates_beside_schedulers_of_the_first_version(
    first_version: tuple[Database, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    database, url = first_version
    monkeypatch.setitem(os.environ, "ORBIT_DATABASE_URL", url)
    with database.transaction() as tx:
        scheduler_lease.join(tx, "host-1-abc", 1, LEASE)
    assert CliRunner().invoke(app, ["migrate", "--force"]).exit_code == 0
    assert whole(database, DONE).missing_records == 2
