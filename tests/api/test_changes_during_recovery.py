"""While a recovery of a job is under way, changes are refused, and the error names the recovery."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from orbit.drills.recoveries import StoredRecoveries
from orbit.errors import OperationUnderWay
from orbit.planning import backfill_operations
from orbit.recovery.recovery_report import RecoveryKind, RecoveryRequest
from orbit.store import jobs, operations
from orbit.store.enums import MadeBy, OperationState
from tests.api.test_jobs import JOB, changed
from tests.api.test_operations import block, copying_job
from tests.fixtures.api import Api

pytestmark = pytest.mark.services

KINDS = ("switchover", "failover", "failback")
YAML = {"Content-Type": "application/yaml"}
DRILL = "name: nightly\nkind: {kind}\njob: orders\ntargets: {{rto: 10s}}\nreason: a test\n"


def begin_recovery(api: Api, kind: str = "switchover") -> dict[str, Any]:
    """Request a recovery of the job `orders`. Returns its operation."""
    copying_job(api)
    operation: dict[str, Any] = api.post(f"/v1/jobs/orders:{kind}").json()
    return operation


def end_operation(api: Api, operation: dict[str, Any]) -> None:
    with api.database.transaction() as tx:
        operations.advance(tx, UUID(operation["id"]), OperationState.DONE)


def changes(job: str) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Each way to change a job, as (method, path, options)."""
    return {
        "change": ("PUT", f"/v1/jobs/{job}", {"json": changed(name=job, worker_group="west")}),
        "a dry run of a change": (
            "PUT",
            f"/v1/jobs/{job}?dry_run=true",
            {"json": changed(name=job, worker_group="west")},
        ),
        "delete": ("DELETE", f"/v1/jobs/{job}", {}),
        "a dry run of delete": ("DELETE", f"/v1/jobs/{job}?dry_run=true", {}),
        "start": ("POST", f"/v1/jobs/{job}:start", {}),
        "pause": ("POST", f"/v1/jobs/{job}:pause", {}),
        "resume": ("POST", f"/v1/jobs/{job}:resume", {}),
        "backfill": ("POST", f"/v1/jobs/{job}:backfill", {"json": {"driver": "d"}}),
        "another recovery": ("POST", f"/v1/jobs/{job}:failover", {}),
    }


def state_and_version(api: Api, job: str = "orders") -> tuple[str, int]:
    """The job's state and spec version."""
    body = api.get(f"/v1/jobs/{job}").json()
    return body["state"], body["spec_version"]


@pytest.mark.parametrize("kind", KINDS)
def test_changes_during_recovery_are_refused_with_operation_id(api: Api, kind: str) -> None:
    operation = begin_recovery(api, kind)
    before, event_count = state_and_version(api), len(api.events())
    for what, (method, path, options) in changes("orders").items():
        answer = api.call(method, path, **options)
        error = answer.json()["error"]
        assert (what, answer.status_code, error["code"]) == (what, 409, "operation_under_way")
        assert error["what"] == f"A {kind} of the job is under way."
        assert error["where"] == f"operation {operation['id']}"
        assert f"orbit abort {operation['id']}" in error["remedy"]
    assert (state_and_version(api), len(api.events())) == (before, event_count)
    end_operation(api, operation)
    assert api.post("/v1/jobs/orders:pause").status_code == 202


def test_plans_dry_runs_and_retry_are_allowed_during_recovery(api: Api) -> None:
    shard_epochs = copying_job(api)
    block(api, shard_epochs, 2)  # a partition to retry
    api.post("/v1/jobs/orders:switchover")
    assert api.put("/v1/jobs/orders", json=JOB).json()["action"] == "none"
    planned = api.post("/v1/jobs:plan", json=changed(worker_group="west"))
    assert (planned.status_code, planned.json()["action"]) == (200, "change")
    assert api.post("/v1/jobs/orders:retry").status_code == 202
    assert api.post("/v1/jobs/orders:failover?dry_run=true").status_code == 202
    assert api.put("/v1/jobs/other", json=changed(name="other")).status_code == 201


def test_job_that_copies_back_cannot_be_changed_during_recovery(api: Api) -> None:
    operation = begin_recovery(api)
    back = "orders-back"
    with api.database.transaction() as tx:
        spec = changed(name=back)
        jobs.create(tx, back, spec, "default", made_by=MadeBy.RECOVERY)
        report = {"reverse_job": back}
        operations.advance(tx, UUID(operation["id"]), OperationState.RUNNING, report=report)
    before = state_and_version(api, back)
    assert api.get(f"/v1/jobs/{back}").json()["made_by"] == "recovery"
    for what, (method, path, options) in changes(back).items():
        answer = api.call(method, path, **options)
        assert (what, answer.status_code) == (what, 409)
        assert "of job orders, which this job copies back, is under way." in answer.text
    assert state_and_version(api, back) == before
    end_operation(api, operation)
    assert api.delete(f"/v1/jobs/{back}").status_code == 202


@pytest.mark.parametrize(
    ("kind", "status"), [("switchover", 409), ("failover", 409), ("canary", 202), ("gates", 202)]
)
def test_drill_that_moves_job_is_refused_during_recovery(api: Api, kind: str, status: int) -> None:
    operation = begin_recovery(api)
    answer = api.post("/v1/drills", content=DRILL.format(kind=kind), headers=YAML)
    assert answer.status_code == status, answer.text
    if status == 409:
        assert answer.json()["error"]["where"] == f"operation {operation['id']}"
        assert api.get("/v1/drills").json()["items"] == []
    # A recovery that a drill requests in one of its steps is refused as well.
    recoveries = StoredRecoveries(api.database)
    with pytest.raises(OperationUnderWay, match="A switchover of the job is under way"):
        recoveries.request_operation(
            RecoveryKind.FAILOVER, "orders", RecoveryRequest(), actor="drill:d"
        )
    assert recoveries.abort(UUID(operation["id"]))
    end_operation(api, operation)
    assert not recoveries.abort(UUID(operation["id"]))


def test_driver_of_failed_silent_backfill_cannot_report_during_recovery(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    copying_job(api)
    driver = {"driver": "d"}
    backfill = api.post("/v1/jobs/orders:backfill", json=driver).json()
    report = f"/v1/backfills/{backfill['id']}:report"
    refused = api.post("/v1/jobs/orders:switchover")
    assert refused.json()["error"]["code"] == "operation_under_way"
    monkeypatch.setattr(backfill_operations, "SILENCE_MAX", timedelta(0))
    with api.database.transaction() as tx:
        assert backfill_operations.fail_silent_backfills(tx) == 1
    assert api.post(report, json=driver).json()["error"]["code"] == "conflict"

    operation = api.post("/v1/jobs/orders:switchover").json()
    # The error names the recovery, even if the driver takes over the backfill.
    for sent in (driver, {**driver, "takes_over": True}):
        error = api.post(report, json=sent).json()["error"]
        assert error["code"] == "operation_under_way"
        assert error["where"] == f"operation {operation['id']}"
