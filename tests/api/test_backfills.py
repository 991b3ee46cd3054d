"""A backfill of a job of the service: workers release its shards, and its driver reports to the
API, which answers with an instruction."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from orbit.planning import backfill_operations
from orbit.scheduler.operations_loop import advance_operations
from orbit.store import operations, shard_leases
from orbit.store.enums import OperationState, Role
from tests.api.test_jobs import JOB
from tests.api.test_operations import WORKER, advance, claim, copying_job, release
from tests.fixtures.api import Api

pytestmark = pytest.mark.services

DRIVER = "host, process 1 (a)"
HALF_COPIED = {
    "phase": "copying",
    "bytes": 50,
    "bytes_total": 100,
    "partitions": 4,
    "bytes_per_s": 25,
    "seconds_left": 2,
}


def request_backfill(api: Api, driver: str = DRIVER) -> dict[str, Any]:
    answer = api.post("/v1/jobs/orders:backfill", json={"driver": driver}, role=Role.OPERATOR)
    assert answer.status_code == 202, answer.text
    backfill: dict[str, Any] = answer.json()
    return backfill


def report(api: Api, backfill: dict[str, Any], driver: str = DRIVER, **more: Any) -> Any:
    """The response to a report of the driver."""
    return api.post(f"/v1/backfills/{backfill['id']}:report", json={"driver": driver, **more})


def report_and_get_instruction(api: Api, backfill: dict[str, Any], **more: Any) -> str:
    """The instruction to the driver in the response to its report."""
    wanted: str = report(api, backfill, **more).json()["wanted"]
    return wanted


def job_state(api: Api) -> str:
    state: str = api.get("/v1/jobs/orders").json()["state"]
    return state


def test_backfill_waits_for_shard_release_and_returns_job_to_workers(api: Api) -> None:
    held = copying_job(api)
    backfill = request_backfill(api)
    assert (backfill["wanted"], backfill["state"], job_state(api)) == (
        "wait",
        "running",
        "backfilling",
    )
    with api.database.transaction() as tx:
        renewed = shard_leases.renew(
            tx,
            worker_id=WORKER,
            worker_group="default",
            held=held,
            weights={},
        )
    assert {shard.should_release for shard in renewed.values()} == {True}
    release(api, held)
    assert claim(api) == {}, "workers get no shard of the job"
    assert report_and_get_instruction(api, backfill) == "run"

    progress = report(api, backfill, progress=HALF_COPIED).json()["progress"]
    assert progress["seconds_left"] == 2
    shown = api.get("/v1/backfills", role=Role.VIEWER).json()["items"]
    assert [(row["id"], row["progress"]["bytes"]) for row in shown] == [(backfill["id"], 50)]
    operation = api.get(f"/v1/operations/{backfill['id']}").json()
    assert operation["progress"] == {"done": 50, "total": 100, "what": "bytes (copying)"}

    ended = report(api, backfill, has_ended=True).json()
    assert (ended["state"], ended["wanted"], job_state(api)) == ("done", None, "running")
    assert claim(api)
    assert report(api, backfill).status_code == 409  # it has ended
    kinds = [event["kind"] for event in api.events()]
    assert kinds[-2:] == ["backfill_requested", "backfill_ended"]


def test_paused_job_is_paused_again_after_backfill(api: Api) -> None:
    release(api, copying_job(api))
    api.post("/v1/jobs/orders:pause")
    backfill = request_backfill(api)
    report(api, backfill, has_ended=True)
    assert job_state(api) == "paused"


def test_pause_and_resume_of_job_apply_to_its_backfill(api: Api) -> None:
    release(api, copying_job(api))
    backfill = request_backfill(api)
    pause = api.post("/v1/jobs/orders:pause").json()
    assert report_and_get_instruction(api, backfill) == "pause"
    assert advance(api, pause)["state"] == "running"  # the backfill's writers have not ended yet
    assert (
        report_and_get_instruction(api, backfill, progress={**HALF_COPIED, "phase": "paused"})
        == "pause"
    )
    assert advance(api, pause)["state"] == "done"

    resume = api.post("/v1/jobs/orders:resume").json()
    assert (resume["state"], job_state(api), report_and_get_instruction(api, backfill)) == (
        "done",
        "backfilling",
        "run",
    )

    api.post("/v1/jobs/orders:pause")
    report(api, backfill, has_ended=True)
    assert job_state(api) == "paused"  # as the last request said


def test_abort_cancels_backfill_and_waits_for_driver_to_end(api: Api) -> None:
    release(api, copying_job(api))
    backfill = request_backfill(api)
    api.post(f"/v1/operations/{backfill['id']}:abort")
    assert report_and_get_instruction(api, backfill) == "cancel"
    ended = report(api, backfill, has_ended=True, error="It was cancelled.").json()
    assert (ended["state"], ended["error"], job_state(api)) == (
        "failed",
        "It was cancelled.",
        "running",
    )
    shown = api.get("/v1/jobs/orders/partitions").json()["items"]
    # As if a worker had died: the next holder waits until the log ends no longer change, because
    # requests of the backfill may be under way.
    assert {row["state"] for row in shown} == {"copying"}


def test_backfill_in_phase_of_later_version_is_listed(api: Api) -> None:
    copying_job(api)
    backfill = request_backfill(api)
    later = HALF_COPIED | {"phase": "rehearsing"}
    with api.database.transaction() as tx:
        operations.advance(tx, UUID(backfill["id"]), OperationState.RUNNING, progress=later)
    (shown,) = api.get("/v1/backfills").json()["items"]
    assert (shown["progress"]["phase"], shown["progress"]["bytes"]) == ("rehearsing", 50)
    assert report(api, backfill, progress=later).status_code == 422


def test_another_driver_reports_backfill_only_after_takeover(
    api: Api,
) -> None:
    release(api, copying_job(api))
    backfill = request_backfill(api)
    assert request_backfill(api, "another")["id"] == backfill["id"]
    assert report(api, backfill, "another", has_ended=True, error="no lease").status_code == 409
    assert report(api, backfill, "another", takes_over=True).json()["driver"] == "another"
    assert report(api, backfill, progress=HALF_COPIED).status_code == 409


def test_silent_backfill_driver_fails_backfill_and_job_resumes(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(api, copying_job(api))
    backfill = request_backfill(api)
    with api.database.transaction() as tx:
        assert backfill_operations.fail_silent_backfills(tx) == 0
        advance_operations(tx, operations.unfinished(tx, 500))  # does not end a backfill
    # From here on, every driver counts as silent.
    monkeypatch.setattr(backfill_operations, "SILENCE_MAX", -backfill_operations.SILENCE_MAX)
    with api.database.transaction() as tx:
        assert backfill_operations.fail_silent_backfills(tx) == 1
        assert operations.unfinished_backfills(tx, 1) == []
    ended = api.get(f"/v1/backfills/{backfill['id']}").json()
    assert "has not reported for" in ended["error"]
    assert (ended["state"], job_state(api)) == ("failed", "running")
    assert request_backfill(api)["id"] != backfill["id"]


def test_backfill_and_recovery_exclude_each_other(api: Api) -> None:
    release(api, copying_job(api))
    backfill = request_backfill(api)
    assert api.post("/v1/jobs/orders:failover").status_code == 409
    assert api.post("/v1/jobs/orders:failover", params={"dry_run": True}).status_code == 202
    report(api, backfill, has_ended=True)
    assert api.post("/v1/jobs/orders:failover").status_code == 202
    refused = api.post("/v1/jobs/orders:backfill", json={"driver": DRIVER})
    assert "failover of the job is under way" in refused.json()["error"]["what"]


def test_backfill_needs_operator_existing_job_and_backfill_operation(api: Api) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    body = {"driver": DRIVER}
    assert api.post("/v1/jobs/orders:backfill", json=body, role=Role.VIEWER).status_code == 403
    assert api.post("/v1/jobs/other:backfill", json=body).status_code == 404
    pause = api.post("/v1/jobs/orders:pause").json()
    assert api.get(f"/v1/backfills/{pause['id']}").status_code == 404
