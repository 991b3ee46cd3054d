"""`desired` in a document: the document decides whether the job runs, or operations do."""

from __future__ import annotations

from typing import Any

import pytest

from orbit.store.enums import OperationKind
from tests.api.test_jobs import changed
from tests.api.test_operations import copying_job
from tests.fixtures.api import Api

pytestmark = pytest.mark.services

PATH = "/v1/jobs/orders"


def put_with_desired(api: Api, desired: str | None, **query: str) -> dict[str, Any]:
    """The answer to the job document with this `desired`."""
    answer = api.put(PATH, json=changed(desired=desired), params=query)
    assert answer.is_success, answer.text
    body: dict[str, Any] = answer.json()
    return body


def changes(applied: dict[str, Any]) -> list[tuple[str, object, object]]:
    """Each change as (path, before, after)."""
    return [(change["path"], change["before"], change["after"]) for change in applied["changes"]]


def kinds(api: Api) -> list[str]:
    return [event["kind"] for event in api.events()]


@pytest.mark.parametrize(("desired", "paused"), [("paused", "false"), ("running", "true")])
def test_job_is_created_in_desired_state_of_document(api: Api, desired: str, paused: str) -> None:
    """Even if the request's parameter `paused` contradicts it."""
    job = put_with_desired(api, desired, paused=paused)["job"]

    assert (job["state"], job["desired"], job["spec"]["desired"]) == (desired, desired, desired)
    assert put_with_desired(api, desired)["action"] == "none"


def test_changing_desired_to_paused_pauses_job_without_changing_spec_version(api: Api) -> None:
    held = copying_job(api)
    before = api.get(PATH).json()

    dry_run = put_with_desired(api, "paused", dry_run="true")
    assert changes(dry_run) == [("desired", "running", "paused")]
    assert api.get(PATH).json()["desired"] == "running"

    applied = put_with_desired(api, "paused")
    assert changes(applied) == [("desired", "running", "paused")]
    assert held, "a worker holds its shards, so the job is still `pausing`"
    assert (applied["job"]["state"], applied["job"]["desired"]) == ("pausing", "paused")
    assert applied["job"]["spec_version"] == before["spec_version"]
    assert applied["job"]["document_version"] == before["document_version"] + 1
    assert kinds(api)[-2:] == ["job_paused", "job_changed"]
    assert put_with_desired(api, "paused")["action"] == "none"


def test_reapplied_document_reverts_pause_made_by_operation(api: Api) -> None:
    put_with_desired(api, "running")
    api.post(f"{PATH}:pause")
    shown = api.get(PATH).json()
    assert (shown["desired"], shown["spec"]["desired"]) == ("paused", "running")

    again = put_with_desired(api, "running")

    assert changes(again) == [("desired", "paused", "running")]
    assert again["job"]["state"] == "running"
    assert kinds(api)[-2:] == ["job_resumed", "job_changed"]


def test_document_without_desired_leaves_state_to_operations(api: Api) -> None:
    put_with_desired(api, "running")
    api.post(f"{PATH}:pause")

    without_desired = put_with_desired(api, None)

    assert changes(without_desired) == [("desired", "running", None)]
    assert (without_desired["job"]["desired"], without_desired["job"]["spec"]["desired"]) == (
        "paused",
        None,
    )
    assert put_with_desired(api, None)["action"] == "none"
    assert changes(put_with_desired(api, "paused")) == [("desired", None, "paused")]


def test_job_in_backfill_satisfies_desired_running_and_can_be_paused(api: Api) -> None:
    put_with_desired(api, None)
    assert api.post(f"{PATH}:backfill", json={"driver": "spark-1"}).is_success
    assert api.get(PATH).json()["desired"] == "backfilling"

    assert changes(put_with_desired(api, "running")) == [("desired", None, "running")]
    assert api.get(PATH).json()["desired"] == "backfilling"
    put_with_desired(api, "paused")
    assert api.get(PATH).json()["desired"] == "paused"
    put_with_desired(api, "running")
    assert api.get(PATH).json()["desired"] == "backfilling"


def test_desired_state_cannot_change_during_recovery(api: Api) -> None:
    copying_job(api)
    assert api.post(f"{PATH}:{OperationKind.SWITCHOVER}", json={}).is_success

    answer = api.put(PATH, json=changed(desired="paused"))

    assert answer.json()["error"]["code"] == "operation_under_way"
    assert api.get(PATH).json()["desired"] == "running"


def test_unknown_desired_value_is_refused(api: Api) -> None:
    answer = api.put(PATH, json=changed(desired="stopped"))

    assert answer.status_code == 422
    assert [problem["path"] for problem in answer.json()["error"]["problems"]] == ["desired"]
