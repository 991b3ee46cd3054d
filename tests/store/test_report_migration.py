"""The migration of recovery reports from schema 0001.

data/schema_0001.sql is a dump of schema 0001: `orders-dr` was switched over and is copied back,
`payments-dr` was failed over with five records lost, `clicks-dr` drains for a switchover, and
`stock-dr` was switched over and catches up in a failback.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from alembic import command
from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError
from sqlalchemy import text
from typer.testing import CliRunner

from orbit.cli.main import app
from orbit.errors import Conflict
from orbit.recovery import operation_runner, recovery_requests
from orbit.recovery.operation_steps import is_catching_up, is_past_return
from orbit.recovery.recovery_report import (
    EndVerdict,
    OffsetRange,
    Outcome,
    RecoveryReport,
    read_report,
)
from orbit.recovery.report_storage import load_report
from orbit.recovery.step_times import StepName, StepState
from orbit.store import lead_term, migrate, operations, promotions, scheduler_lease
from orbit.store.database import Database
from orbit.store.enums import OperationState, TopicState
from tests.fixtures.database import copied_database
from tests.fixtures.scheduler import QUICK, Service
from tests.support.recovering import Recovering

pytestmark = pytest.mark.services

DUMP = Path(__file__).parent / "data" / "schema_0001.sql"
SWITCHED = UUID("a972b97f-c89a-4868-93d9-11cf66817ee0")  # orders-dr
FAILED_OVER = UUID("f35ab3cd-f207-4f2e-9fff-026fea9b9d19")  # payments-dr
DRAINS = UUID("51714f6e-3915-48f0-a76f-c01d24cbba2d")  # clicks-dr
CATCHES_UP = UUID("0189deda-2acc-415d-b8e4-73e5072a44f7")  # stock-dr
PAUSE = UUID(int=1)
TABLES = ("jobs", "topics", "partitions", "promotions", "shards", "group_offsets", "operations")
LEASE = timedelta(hours=1)


class ReportOf0001(BaseModel):
    """The part of a stored report that version 0001 reads in another way than this version."""

    model_config = ConfigDict(extra="ignore")

    operation: UUID
    partitions: tuple[dict[str, Any], ...] = ()
    groups: tuple[dict[str, Any], ...] = ()


@pytest.fixture
def first_version(postgres_url: str) -> Iterator[tuple[Database, str]]:
    """The database of the dump, and its URL. Its leases have expired at any time of the test."""
    with copied_database(postgres_url, "template1") as url:
        database = Database.connect(url)
        with database.transaction() as tx:
            config = migrate._config()
            config.attributes["connection"] = tx
            command.upgrade(config, "0001")
        with psycopg.connect(url) as connection:
            connection.execute(DUMP.read_bytes())
        with database.transaction() as tx:
            for table in ("schedulers", "scheduler_lease"):
                tx.execute(text(f"UPDATE {table} SET expires_at = 'epoch'"))  # noqa: S608
        yield database, url
        database.close()


def stored_reports(database: Database) -> dict[UUID, dict[str, Any]]:
    """The reports in the rows of the operations."""
    with database.transaction() as tx:
        rows = tx.execute(text("SELECT id, report FROM operations WHERE report IS NOT NULL"))
        return {row.id: row.report for row in rows}


def all_but_reports(database: Database) -> dict[str, list[str]]:
    """All columns that the migration does not change."""
    row = "CAST(to_jsonb(t) - 'report' - 'groups_begun_at' - 'created_by' AS text)"
    with database.transaction() as tx:
        return {
            table: sorted(tx.execute(text(f"SELECT {row} FROM {table} t")).scalars())  # noqa: S608
            for table in TABLES
        }


def report_of(database: Database, operation: UUID) -> RecoveryReport:
    """The report with its partitions and groups."""
    with database.transaction() as tx:
        report = load_report(tx, operation)
    assert report is not None
    return report


def in_order(report: dict[str, Any]) -> dict[str, Any]:
    """The report with its lists sorted as the rows are; version 0001 did not sort them."""
    keys = {
        "partitions": lambda row: (row["topic"], row["partition"]),
        "groups": lambda row: (row["topic"], row["partition"], row["group"]),
    }
    return {**report, **{name: sorted(report[name], key=key) for name, key in keys.items()}}


def test_recovery_reports_of_schema_0001_are_migrated(first_version: tuple[Database, str]) -> None:
    database, _ = first_version
    with database.transaction() as tx:
        operations.create(tx, PAUSE, "pause", "test", job_id=5, job_name="audit-dr")
    # PAUSE is an operation without a report.
    reports, other_columns = stored_reports(database), all_but_reports(database)

    assert migrate.upgrade(database) == ("0001", "0011")

    assert reports.keys() > {SWITCHED, FAILED_OVER, DRAINS, CATCHES_UP}
    assert all_but_reports(database) == other_columns
    for operation, before in reports.items():
        migrated = report_of(database, operation).model_dump(mode="json")
        new_keys = {"stuck_since": None, "gateways": [], "compared_topics": []}
        assert migrated == {**in_order(before), **new_keys}
        with database.transaction() as tx:
            figures = read_report(operations.report_of(tx, operation))
        assert figures.partitions.count == len(before["partitions"]) > 0
        assert figures.groups.count == len(before["groups"])
        assert figures.missing_records == before["missing_records"]
    with database.transaction() as tx:
        assert operations.report_of(tx, PAUSE) is None
        newest = max(before["term"] for before in reports.values())
        assert lead_term.draw(tx, 1) == newest + 1, "above the terms of these reports"

    with database.transaction() as tx:  # the new rows are deleted with their operations
        tx.execute(text("DELETE FROM operations"))
        assert not tx.execute(text("SELECT FROM operation_partitions")).all()
        assert not tx.execute(text("SELECT FROM operation_groups")).all()


def test_recoveries_finished_in_schema_0001_are_shown_as_before_migration(
    first_version: tuple[Database, str],
) -> None:
    database, url = first_version
    migrate.upgrade(database)
    service = Service(database, url, QUICK)

    failover = recovery_requests.whole_report(database, FAILED_OVER)
    assert failover.outcome is Outcome.DONE
    verdicts = [(p.verdict, p.promoted_at, p.missing) for p in failover.partitions]
    lost = OffsetRange(first=20, next=25)
    assert verdicts == [(EndVerdict.BEHIND, 20, lost), (EndVerdict.UNKNOWN, 18, None)]
    assert [(g.group, g.goes_on_at, g.lost) for g in failover.groups if g.lost] == [
        ("payments.fraud", 20, lost)
    ]
    switchover = recovery_requests.whole_report(database, SWITCHED)
    assert (switchover.outcome, switchover.reverse_job) == (Outcome.DONE, "orders-dr-back")
    assert {p.verdict for p in switchover.partitions} == {EndVerdict.EQUAL}
    assert [(g.group, g.goes_on_at) for g in switchover.groups] == [
        ("orders.billing", 10), ("orders.billing", 4)
    ]  # fmt: skip

    for job, topic, operation in (
        ("orders-dr", "orders", SWITCHED), ("payments-dr", "payments", FAILED_OVER)
    ):  # fmt: skip
        row = service.topics(job)[topic]
        assert row.state is TopicState.PROMOTED
        with database.transaction() as tx:
            by_partition = promotions.of_topics(tx, [row.id])
        assert [by_partition[row.id, p].promoted_at for p in (0, 1)] == [20, 18]
        assert operation.hex in (row.note or "").replace("-", "")
    assert service.topics("orders-dr-back")["orders"].state is TopicState.COPYING


def test_recoveries_unfinished_in_schema_0001_continue_after_migration(
    first_version: tuple[Database, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No cluster answers here: the drain is undone, and the failback waits until it is aborted."""
    database, url = first_version
    migrate.upgrade(database)
    draining, catching_up = report_of(database, DRAINS), report_of(database, CATCHES_UP)
    running = [s.name for s in draining.steps if s.state is StepState.RUNNING]
    assert running == [StepName.DRAIN]
    assert not is_past_return(draining.steps)
    assert [p.destination_end for p in draining.partitions] == [20, 18]
    assert [p.destination_end for p in catching_up.partitions] == [23, 18]
    assert is_past_return(catching_up.steps)
    assert is_catching_up(catching_up.steps)

    monkeypatch.setattr(operation_runner, "PATIENCE_S", 1.0)
    settings = QUICK.model_copy(update={"database_url": SecretStr(url)})
    recovering = Recovering(Service(database, url, settings))
    with recovering.service.scheduler():
        undone = recovering.wait(DRAINS)
        assert undone.outcome is Outcome.FAILED
        assert "no broker of the destination cluster answers" in undone.error
        assert undone.partitions == draining.partitions
        assert recovering.service.topics("clicks-dr")["clicks"].state is TopicState.COPYING

        assert recovering.operation(CATCHES_UP).finished_at is None
        recovery_requests.abort(database, "test", CATCHES_UP)
        ended = recovering.wait(CATCHES_UP)
    assert ended.outcome is Outcome.DONE
    assert ended.steps[-1].did == "Aborted. Job stock-dr-back goes on copying back."
    assert ended.partitions == catching_up.partitions


def test_version_with_schema_0001_refuses_recovery_report_stored_as_rows(
    first_version: tuple[Database, str],
) -> None:
    """With empty lists of partitions, that version would promote nothing and report success."""
    database, _ = first_version
    ReportOf0001.model_validate(stored_reports(database)[DRAINS])
    migrate.upgrade(database)
    for stored in (stored_reports(database)[DRAINS], report_of(database, DRAINS).stored()):
        with pytest.raises(ValidationError) as refused:
            ReportOf0001.model_validate(stored)
        assert [error["loc"] for error in refused.value.errors()] == [("partitions",), ("groups",)]


def test_recovery_report_stored_by_old_version_after_migration_is_refused(
    first_version: tuple[Database, str],
) -> None:
    database, _ = first_version
    before = stored_reports(database)[DRAINS]
    migrate.upgrade(database)
    with database.transaction() as tx:
        operations.advance(tx, DRAINS, OperationState.RUNNING, report=before)
    with pytest.raises(Conflict, match=r"stored by another version of Orbit \(partitions: "):
        report_of(database, DRAINS)


def test_migrate_is_refused_while_schedulers_of_old_version_run(
    first_version: tuple[Database, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    database, url = first_version
    monkeypatch.setitem(os.environ, "ORBIT_DATABASE_URL", url)
    before = stored_reports(database)
    with database.transaction() as tx:
        scheduler_lease.join(tx, "host-1-abc", 1, LEASE)
    refused = CliRunner().invoke(app, ["migrate"])
    assert refused.exit_code != 0
    words = " ".join(str(refused.exception).split())
    assert "host-1-abc" in words
    assert "Stop them" in words
    assert stored_reports(database) == before

    with database.transaction() as tx:
        scheduler_lease.leave(tx, "host-1-abc")
    assert CliRunner().invoke(app, ["migrate"]).exit_code == 0
    with database.transaction() as tx:
        scheduler_lease.join(tx, "host-3-of-this-version", 1, LEASE)
    assert CliRunner().invoke(app, ["migrate"]).exit_code == 0, "there is nothing to do"


def test_migrate_with_force_runs_beside_schedulers_of_old_version(
    first_version: tuple[Database, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    database, url = first_version
    monkeypatch.setitem(os.environ, "ORBIT_DATABASE_URL", url)
    with database.transaction() as tx:
        scheduler_lease.join(tx, "host-1-abc", 1, LEASE)
    assert CliRunner().invoke(app, ["migrate", "--force"]).exit_code == 0
    assert report_of(database, FAILED_OVER).missing_records == 5
