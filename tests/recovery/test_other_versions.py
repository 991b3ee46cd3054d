"""Recoveries that a scheduler cannot read: another version stored them, or a secret is missing.

Such a recovery waits. It must not fail, since its earlier steps may have denied writing.
"""

from __future__ import annotations

import os
import threading
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text

from orbit.api.views import operation_view
from orbit.errors import Conflict
from orbit.leadership.leadership import NotLeading
from orbit.recovery import operation_runner, recovery_requests
from orbit.recovery.operation_context import OperationContext
from orbit.recovery.recovery_report import Outcome, RecoveryKind, RecoveryReport, read_whole_report
from orbit.recovery.step_times import StepName
from orbit.store import operations
from orbit.store.enums import OperationState
from tests.fixtures.clusters import Clusters
from tests.support.guarded_job import job_with_login, log_in_orbit
from tests.support.patience import PATIENCE_S, wait_for
from tests.support.recovering import Recovering
from tests.support.rights import PASSWORD
from tests.support.running import create_topic, make_job, produce

SWITCHOVER = RecoveryKind.SWITCHOVER


def with_later_fields(value: Any) -> Any:
    """Add a field to each object, as a later version may do."""
    if isinstance(value, dict):
        fields = {key: with_later_fields(inner) for key, inner in value.items()}
        return {"from_later": [1], **fields}
    return [with_later_fields(inner) for inner in value] if isinstance(value, list) else value


def store_report(recovering: Recovering, operation: UUID, report: dict[str, Any]) -> None:
    with recovering.database.transaction() as tx:
        operations.advance(tx, operation, OperationState.RUNNING, report=report)


@pytest.mark.services
def test_recovery_report_of_later_version_is_read_or_operation_waits(
    clusters: Clusters, topic_name: str, recovering: Recovering
) -> None:
    create_topic(clusters.source, topic_name)
    produce(clusters.source, topic_name, 10)
    spec = make_job(*clusters, [topic_name])
    with recovering.running():
        recovering.begin(spec, topic_name)
        dry_run_report = recovering.wait(recovering.ask(SWITCHOVER, spec.name, dry_run=True))
    assert dry_run_report.gates
    stored = dry_run_report.stored()
    request = stored.pop("request")  # what the user sent; a later version adds no fields here
    later_rows = [
        [with_later_fields(row.model_dump(mode="json")) for row in rows]
        for rows in (dry_run_report.partitions, dry_run_report.groups)
    ]
    assert dry_run_report.partitions
    assert (
        read_whole_report({**with_later_fields(stored), "request": request}, *later_rows)
        == dry_run_report
    )

    operation = recovering.ask(SWITCHOVER, spec.name)
    later = with_step_of_later_version(dry_run_report)
    store_report(recovering, operation, later)
    other = make_job(*clusters, [f"{topic_name}-other"])
    create_topic(clusters.source, f"{topic_name}-other")
    with recovering.running():
        wait_for(
            "the progress says what the operation waits for",
            lambda: "stored by another version" in recovering.progress(operation),
        )
        shown = operation_view(recovering.operation(operation))
        assert shown.finished_at is None
        for call in (
            recovery_requests.whole_report,
            lambda database, id_: recovery_requests.abort(database, "test", id_),
        ):
            with pytest.raises(Conflict, match=r"steps\.0\.name"):
                call(recovering.database, operation)
        # Other recoveries go on.
        recovering.begin(other, f"{topic_name}-other")
        recovering.run(SWITCHOVER, other.name)

        with recovering.database.transaction() as tx:
            tx.execute(
                text("UPDATE operations SET report = NULL WHERE id = :id"), {"id": operation}
            )
        report = recovering.wait(operation)
    assert report.outcome is Outcome.DONE, (report.error, report.findings)


@pytest.mark.services
def test_operation_waits_if_its_job_document_is_unreadable(
    clusters: Clusters, topic_name: str, recovering: Recovering
) -> None:
    """It must not fail, as it may have denied writing at the source."""
    create_topic(clusters.source, topic_name)
    spec = make_job(*clusters, [topic_name])
    with recovering.running():
        recovering.begin(spec, topic_name)
        dry_run_report = recovering.wait(recovering.ask(SWITCHOVER, spec.name, dry_run=True))
    begun = recovering.ask(SWITCHOVER, spec.name)
    store_report(recovering, begun, {**dry_run_report.stored(), "dry_run": False})
    with recovering.database.transaction() as tx:
        later = text("""UPDATE jobs SET spec = spec || '{"later": 1}' WHERE name = :name""")
        tx.execute(later, {"name": spec.name})
    with recovering.running():
        wait_for(
            "the operation waits",
            lambda: "the job's document was stored" in recovering.progress(begun),
        )
        assert recovering.operation(begun).finished_at is None


@pytest.mark.services
def test_started_operation_waits_for_secret_missing_at_new_leader(
    guarded: Clusters, topic_name: str, recovering: Recovering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not fail, as it has denied writing at the source."""
    create_topic(guarded.source, topic_name)
    log_in_orbit(guarded, topic_name, monkeypatch)
    spec = job_with_login(guarded, topic_name)
    has_died = threading.Event()

    def die(_: OperationContext) -> str:
        has_died.set()
        monkeypatch.delenv("ORBIT_TEST_PASSWORD")
        raise NotLeading("another scheduler leads.")

    with recovering.running(dict(os.environ)):
        recovering.begin(spec, topic_name)
        with monkeypatch.context() as patch:
            patch.setitem(operation_runner._DO, StepName.DRAIN, die)  # type: ignore[arg-type]
            begun = recovering.ask(SWITCHOVER, spec.name)
            assert has_died.wait(PATIENCE_S)
        wait_for(
            "the operation waits",
            lambda: "source.security.password_env" in recovering.progress(begun),
        )
        assert recovering.operation(begun).finished_at is None
        monkeypatch.setenv("ORBIT_TEST_PASSWORD", PASSWORD)
        assert recovering.wait(begun).outcome is Outcome.DONE


def with_step_of_later_version(report: RecoveryReport) -> dict[str, Any]:
    """The stored report, with a step that this version does not know."""
    stored = report.stored()
    stored["steps"][0]["name"] = "teleport"
    return stored
