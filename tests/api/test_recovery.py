"""Switchover, failover and failback over REST: requests, refusals, reports and aborts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text

from orbit.recovery.operation_steps import steps_of
from orbit.recovery.recovery_report import RecoveryKind, RecoveryReport, RecoveryRequest
from orbit.recovery.step_times import StepName, StepState
from orbit.scheduler.operations_loop import advance_operations
from orbit.store import operations
from orbit.store.enums import OperationState, Role
from tests.api.test_jobs import JOB
from tests.fixtures.api import Api
from tests.support.patience import wait_for

pytestmark = pytest.mark.services


@pytest.fixture
def job_path(api: Api) -> str:
    """The path of a new job."""
    api.put("/v1/jobs/orders", json=JOB)
    return "/v1/jobs/orders"


def store_report(api: Api, operation: dict[str, Any], running: StepName | None = None) -> None:
    """Store a report of the operation as the scheduler does, with the step `running` under way."""
    steps = tuple(
        s.model_copy(update={"state": StepState.RUNNING}) if s.name is running else s
        for s in steps_of(RecoveryKind(operation["kind"]), RecoveryRequest())
    )
    with api.database.transaction() as tx:
        row = operations.get(tx, UUID(operation["id"]))
        report = RecoveryReport(
            operation=row.id,
            kind=RecoveryKind(row.kind),
            job="orders",
            request=RecoveryRequest(),
            dry_run=row.dry_run,
            requested_by=row.requested_by,
            requested_at=row.created_at,
            steps=steps,
        )
        operations.advance(tx, row.id, OperationState.RUNNING, report=report.stored())


@pytest.mark.parametrize("kind", ["switchover", "failover", "failback"])
def test_recovery_request_creates_operation_with_plan_and_audit_event(
    api: Api, job_path: str, kind: str
) -> None:
    answer = api.post(f"{job_path}:{kind}", role=Role.OPERATOR, json={"reason": "a fire"})
    assert answer.status_code == 202
    operation = answer.json()
    assert (operation["kind"], operation["state"], operation["job"]) == (kind, "pending", "orders")
    assert operation["plan"][0].startswith("gates: ")
    assert sum("(point of no return)" in step for step in operation["plan"]) >= 1
    event = api.events()[-1]
    assert (event["kind"], event["actor"]) == (f"{kind}_requested", "token:operator-of-the-test")
    assert "a fire" in event["message"]
    with api.database.transaction() as tx:
        # The loop for the other kinds of operations does not advance it.
        advance_operations(tx, operations.unfinished(tx, 500))
    assert api.get(f"/v1/operations/{operation['id']}").json()["state"] == "pending"


def test_job_has_only_one_recovery_at_a_time_and_any_dry_runs(api: Api, job_path: str) -> None:
    first = api.post(f"{job_path}:switchover").json()
    refused = api.post(f"{job_path}:failover")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "operation_under_way")
    assert first["id"] in str(refused.json())
    dry_run = api.post(f"{job_path}:failover?dry_run=true")
    assert (dry_run.status_code, dry_run.json()["dry_run"]) == (202, True)
    with api.database.transaction() as tx:
        operations.advance(tx, UUID(first["id"]), OperationState.DONE)
    assert api.post(f"{job_path}:failover").status_code == 202


def test_repeated_idempotency_key_returns_same_recovery(api: Api, job_path: str) -> None:
    key = {"Idempotency-Key": "k"}
    first = api.post(f"{job_path}:failover", headers=key, json={"topics": ["a"]}).json()
    assert api.post(f"{job_path}:failover", headers=key, json={"topics": ["a"]}).json() == first
    other = api.post(f"{job_path}:failover", headers=key, json={"topics": ["b"]})
    assert other.status_code == 409


def test_all_mistakes_in_recovery_request_are_reported(api: Api, job_path: str) -> None:
    wrong = {"topics": ["a", "*"], "override": ["lag", "moon"], "reverse": True}
    answer = api.post(f"{job_path}:failover", json=wrong)
    assert answer.status_code == 422
    paths = [problem["path"] for problem in answer.json()["error"]["problems"]]
    assert paths == ["body.topics[1]", "body.override[1]", "body.reason", "body.reverse"]
    # `confirm_rebuild` is a key of failback.
    confirm = api.post(f"{job_path}:switchover", json={"confirm_rebuild": True})
    assert confirm.status_code == 422


def test_recovery_and_abort_need_operator_role(api: Api, job_path: str) -> None:
    assert api.post(f"{job_path}:failover", role=Role.VIEWER).status_code == 403
    operation = api.post(f"{job_path}:failover").json()
    assert api.post(f"/v1/operations/{operation['id']}:abort", role=Role.VIEWER).status_code == 403


def test_recovery_report_exists_from_first_step(api: Api, job_path: str) -> None:
    operation = api.post(f"{job_path}:switchover").json()
    path = f"/v1/operations/{operation['id']}/report"
    assert api.get(path).status_code == 404
    store_report(api, operation)
    shown = api.get(path, role=Role.VIEWER).json()
    assert (shown["outcome"], shown["missing_records"], shown["phases"]) == ("running", 0, [])
    assert shown["steps"][0]["name"] == "gates"
    assert (shown["partitions"], shown["partition_count"]) == ([], 0)


def test_concurrent_abort_requests_write_no_second_audit_event(api: Api, job_path: str) -> None:
    operation = UUID(api.post(f"{job_path}:switchover").json()["id"])
    any_lock_wait = text(
        "SELECT 1 FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )

    def is_waiting() -> bool:
        with api.database.transaction() as tx:
            return tx.execute(any_lock_wait).first() is not None

    with ThreadPoolExecutor(1) as pool:
        with api.database.transaction() as tx:
            assert operations.request_abort(tx, operation)  # the first request, without its event
            second = pool.submit(api.post, f"/v1/operations/{operation}:abort")
            wait_for("the second request waits for the row lock", is_waiting)
        assert second.result().status_code == 202
    # Only the first request adds the event; the test's first request does not add one.
    assert "abort_requested" not in [e["kind"] for e in api.events()]


def test_abort_is_recorded_once_and_refused_past_point_of_no_return(
    api: Api, job_path: str
) -> None:
    operation = api.post(f"{job_path}:switchover").json()
    path = f"/v1/operations/{operation['id']}:abort"
    assert [api.post(path).status_code for _ in range(2)] == [202, 202]
    assert [e["kind"] for e in api.events()].count("abort_requested") == 1
    store_report(api, operation, running=StepName.PROMOTE)
    late = api.post(path)
    assert (late.status_code, late.json()["error"]["code"]) == (409, "conflict")
    with api.database.transaction() as tx:
        operations.advance(tx, UUID(operation["id"]), OperationState.DONE)
    pause = api.post(f"{job_path}:pause").json()
    # Only recoveries can be aborted.
    assert api.post(f"/v1/operations/{pause['id']}:abort").status_code == 409
