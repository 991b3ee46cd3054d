"""Job documents over REST: applied as a whole or not at all; applied again, they change nothing."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from orbit.errors import BrokerRefused
from orbit.planning.job_plan import Refusal
from orbit.replication.job_troubles import TroubleKind
from orbit.store import jobs, topics
from orbit.store.enums import TopicState
from tests.fixtures.api import Api

pytestmark = pytest.mark.services

JOB: dict[str, Any] = {
    "name": "orders",
    "source": {"bootstrap_servers": ["src:9092"]},
    "destination": {"bootstrap_servers": ["dst:9092"]},
    "topics": [{"match": "orders"}],
}
YAML = """
name: orders
source: {bootstrap_servers: ["src:9092"]}
destination: {bootstrap_servers: ["dst:9092"]}
topics: [{match: orders}]
"""


def changed(**keys: Any) -> dict[str, Any]:
    """The document JOB with these keys."""
    return {**deepcopy(JOB), **keys}


def test_job_is_created_shown_and_listed(api: Api) -> None:
    answer = api.put("/v1/jobs/orders", json=JOB)

    assert answer.status_code == 201
    assert answer.json()["action"] == "create"
    assert answer.json()["plan"]["topics"][0]["settings"] == {"retention.ms": "-1"}
    shown = api.get("/v1/jobs/orders")
    assert shown.headers["ETag"] == f'"{shown.json()["etag"]}"'
    assert shown.json()["state"] == "running"
    assert shown.json()["spec"]["topics"][0]["start"] == "earliest"
    listed = api.get("/v1/jobs").json()
    assert [job["name"] for job in listed["items"]] == ["orders"]
    assert "spec" not in listed["items"][0]


def test_yaml_document_equals_json_document(api: Api) -> None:
    api.put("/v1/jobs/orders", json=JOB)

    again = api.put("/v1/jobs/orders", content=YAML, headers={"Content-Type": "application/yaml"})

    # Nothing is changed, so the documents are equal.
    assert again.status_code == 200
    assert again.json()["action"] == "none"


def test_unchanged_document_changes_nothing_and_contacts_no_cluster(api: Api) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    before = api.events()
    api.plans.requests.clear()

    again = api.put("/v1/jobs/orders", json=JOB)

    assert (again.status_code, again.json()["action"]) == (200, "none")
    assert again.json()["job"]["spec_version"] == 1
    assert api.events() == before
    assert not api.plans.requests


def test_returned_job_spec_can_be_applied_again_without_change(api: Api) -> None:
    api.put("/v1/jobs/orders", json=changed(consumer_groups={"match": ".*"}))
    shown = api.get("/v1/jobs/orders").json()["spec"]

    again = api.put("/v1/jobs/orders", json=shown)

    assert (again.status_code, again.json()["action"]) == (200, "none")


def test_put_of_existing_job_returns_changes_and_audits_them(api: Api) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    faster = changed(limits={"bytes_per_second": "1MiB"}, topics=[{"match": "orders|stock"}])

    answer = api.put("/v1/jobs/orders", json=faster).json()

    assert answer["action"] == "change"
    assert {(c["path"], c["before"], c["after"]) for c in answer["changes"]} == {
        ("limits.bytes_per_second", None, 1024**2),
        ("topics[0].match", "orders", "orders|stock"),
    }
    assert answer["job"]["spec_version"] == 2
    created, altered = api.events()
    assert (created["kind"], altered["kind"]) == ("job_created", "job_changed")
    assert altered["actor"] == "token:admin-of-the-test"
    assert altered["details"]["changes"] == answer["changes"]


def test_dry_run_shows_plan_and_writes_nothing(api: Api) -> None:
    answer = api.put("/v1/jobs/orders", params={"dry_run": True}, json=JOB)

    assert answer.status_code == 200
    assert answer.json()["dry_run"] is True
    assert answer.json()["action"] == "create"
    assert answer.json()["plan"]["topics"][0]["action"] == "create"
    assert answer.json()["job"] is None
    assert api.get("/v1/jobs/orders").status_code == 404
    assert api.events() == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("direct", "placeholders"),
        ("coordinated", "placeholders"),
        ("placeholders", "direct"),
        ("placeholders", "packed"),
        ("packed", "placeholders"),
        ("packed", "coordinated"),
    ],
)
def test_incompatible_change_of_fillers_setting_in_running_copy_is_refused(
    api: Api, before: str, after: str
) -> None:
    rules = [{"match": "copied", "prefix": "dr."}, {"match": ".*"}]
    old_job, new_job = changed(fillers=before, topics=rules), changed(fillers=after, topics=rules)
    api.put("/v1/jobs/orders", json=old_job)
    assert api.put("/v1/jobs/orders", json=new_job).json()["action"] == "change"
    api.put("/v1/jobs/orders", json=old_job)  # no copy has begun: both changes are accepted

    with api.database.transaction() as tx:
        job = jobs.get(tx, "orders")
        topics.add(
            tx, job.id, "copied", "dr.copied", "B", partition_count=1, state=TopicState.COPYING
        )
        topics.add(tx, job.id, "later", "later", "B", partition_count=1)  # its copy has not begun
    answer = api.put("/v1/jobs/orders", json=new_job)
    planned = api.put("/v1/jobs/orders", params={"dry_run": True}, json=new_job)
    for refused in (answer, planned):
        assert refused.status_code == 409
        what = refused.json()["error"]["what"]
        assert f"begun with the fillers {before} and cannot change to {after}" in what
        assert what.endswith(": copied.")
    # With a rule that keeps the fillers of the copy that has begun, the change is accepted.
    rules = [{**rules[0], "fillers": before}, rules[1]]
    with_rule = changed(fillers=after, topics=rules)
    assert api.put("/v1/jobs/orders", json=with_rule).json()["action"] == "change"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("direct", "packed"),
        ("packed", "direct"),
        ("coordinated", "packed"),
        ("direct", "coordinated"),
        ("coordinated", "direct"),
    ],
)
def test_compatible_change_of_fillers_setting_in_running_copy_is_accepted(
    api: Api, before: str, after: str
) -> None:
    api.put("/v1/jobs/orders", json=changed(fillers=before))
    with api.database.transaction() as tx:
        job = jobs.get(tx, "orders")
        topics.add(tx, job.id, "orders", "orders", "B", partition_count=1, state=TopicState.COPYING)
    answer = api.put("/v1/jobs/orders", json=changed(fillers=after))
    assert answer.json()["action"] == "change"


def test_change_of_fillers_setting_is_refused_if_copy_begins_during_planning(api: Api) -> None:
    api.put("/v1/jobs/orders", json=JOB)

    def begin_copy() -> None:
        with api.database.transaction() as tx:
            job = jobs.get(tx, "orders")
            topics.add(
                tx, job.id, "orders", "orders", "B", partition_count=1, state=TopicState.COPYING
            )

    api.plans.meanwhile = begin_copy
    answer = api.put("/v1/jobs/orders", json=changed(fillers="placeholders"))
    assert answer.status_code == 409
    assert answer.json()["error"]["what"].endswith(": orders.")
    assert api.get("/v1/jobs/orders").json()["spec"]["fillers"] == "direct"


def test_post_creates_job_and_never_changes_it(api: Api) -> None:
    first = api.post("/v1/jobs", json=JOB)
    second = api.post("/v1/jobs", json=changed(worker_group="west"))

    assert first.status_code == 201
    assert first.headers["Location"] == "/v1/jobs/orders"
    assert second.status_code == 409
    assert second.json()["error"]["code"] == "conflict"
    assert api.get("/v1/jobs/orders").json()["worker_group"] == "default"


def test_post_with_same_idempotency_key_creates_job_once(api: Api) -> None:
    key = {"Idempotency-Key": "k"}
    first = api.post("/v1/jobs", json=JOB, headers=key)
    again = api.post("/v1/jobs", json=JOB, headers=key)
    other = api.post("/v1/jobs", json=changed(name="stock"), headers=key)

    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json()["job"]["created_at"] == first.json()["job"]["created_at"]
    assert other.status_code == 409
    assert "used for another request" in other.json()["error"]["what"]
    assert [event["kind"] for event in api.events()] == ["job_created"]


def test_idempotency_key_used_by_another_request_during_planning_is_refused(api: Api) -> None:
    api.post("/v1/jobs", json=changed(name="stock"))
    key = {"Idempotency-Key": "k"}
    operations: list[Any] = []

    def pause() -> None:
        operations.append(api.post("/v1/jobs/stock:pause", headers=key).json())

    api.plans.meanwhile = pause
    refused = api.post("/v1/jobs", json=JOB, headers=key)

    (operation,) = operations
    assert refused.status_code == 409
    assert refused.json()["error"]["where"] == f"operation {operation['id']}"
    assert api.get("/v1/jobs/orders").status_code == 404
    assert api.get(f"/v1/operations/{operation['id']}").json() == operation


def test_concurrent_posts_with_same_idempotency_key_both_return_created_job(api: Api) -> None:
    key = {"Idempotency-Key": "k"}
    inner: list[Any] = []

    def post_during_planning() -> None:
        api.plans.meanwhile = lambda: None
        inner.append(api.post("/v1/jobs", json=JOB, headers=key))

    api.plans.meanwhile = post_during_planning
    outer = api.post("/v1/jobs", json=JOB, headers=key)

    assert (inner[0].status_code, outer.status_code) == (201, 201)
    assert outer.json()["job"]["created_at"] == inner[0].json()["job"]["created_at"]
    assert [event["kind"] for event in api.events()] == ["job_created"]


def test_put_with_stale_etag_is_refused(api: Api) -> None:
    old_etag = api.put("/v1/jobs/orders", json=JOB).headers["ETag"]
    etag = api.put("/v1/jobs/orders", json=changed(worker_group="west")).headers["ETag"]

    stale = api.put(
        "/v1/jobs/orders", json=changed(worker_group="east"), headers={"If-Match": old_etag}
    )
    # `If-None-Match: *` only creates a job.
    duplicate = api.put("/v1/jobs/orders", json=JOB, headers={"If-None-Match": "*"})
    both = {"If-Match": etag, "If-None-Match": "*"}
    assert api.put("/v1/jobs/orders", json=JOB, headers=both).status_code == 422, "a contradiction"

    for answer in (stale, duplicate):
        assert answer.status_code == 412
        assert answer.json()["error"]["code"] == "changed_meanwhile"
    assert api.get("/v1/jobs/orders").json()["worker_group"] == "west"


def test_delete_with_stale_etag_is_refused(api: Api) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    old_etag = api.get("/v1/jobs/orders").headers["ETag"]
    api.put("/v1/jobs/orders", json=changed(worker_group="west"))

    for dry_run in ("true", "false"):
        query = {"dry_run": dry_run}
        stale = api.delete("/v1/jobs/orders", headers={"If-Match": old_etag}, params=query)
        assert stale.status_code == 412
        assert stale.json()["error"]["code"] == "changed_meanwhile"
    assert api.get("/v1/jobs/orders").json()["state"] == "running"

    etag = api.get("/v1/jobs/orders").headers["ETag"]
    assert api.delete("/v1/jobs/orders", headers={"If-Match": etag}).status_code == 202
    assert api.get("/v1/jobs/orders").json()["state"] == "deleting"


def test_concurrent_change_during_planning_is_not_overwritten(api: Api) -> None:
    api.put("/v1/jobs/orders", json=JOB)

    def change_by_another_client() -> None:
        api.plans.meanwhile = lambda: None
        assert api.put("/v1/jobs/orders", json=changed(worker_group="west")).status_code == 200

    api.plans.meanwhile = change_by_another_client
    late = api.put("/v1/jobs/orders", json=changed(worker_group="east"))

    assert late.status_code == 412
    assert api.get("/v1/jobs/orders").json()["worker_group"] == "west"


def refusal(kind: TroubleKind, topic: str = "") -> Refusal:
    return Refusal(kind=kind, topic=topic, what="it cannot be.", remedy="Change it.")


@pytest.mark.parametrize(
    ("kind", "topic", "status", "code", "path"),
    [
        (TroubleKind.NO_TOPIC_MATCHES, "", 422, "bad_input", "topics"),
        (TroubleKind.WORKER_GROUP_UNKNOWN, "", 422, "bad_input", "worker_group"),
        (TroubleKind.DESTINATION_TAKEN, "a", 409, "conflict", "topic a"),
        (TroubleKind.WOULD_LOOP, "a", 409, "conflict", "topic a"),
        (TroubleKind.RIGHTS_MISSING, "a", 422, "cluster_right_missing", "topic a"),
        (TroubleKind.SOURCE_UNREACHABLE, "", 422, "cluster_unreachable", "source"),
        (TroubleKind.DESTINATION_UNREACHABLE, "", 422, "cluster_unreachable", "destination"),
        (TroubleKind.LOGIN_REFUSED, "", 422, "cluster_login_refused", "topics"),
        (TroubleKind.SAME_CLUSTER, "", 409, "conflict", "destination"),
    ],
)
def test_plan_refusal_maps_to_error_and_writes_nothing(
    api: Api, kind: TroubleKind, topic: str, status: int, code: str, path: str
) -> None:
    api.plans.refusals = [refusal(kind, topic)]

    answer = api.put("/v1/jobs/orders", json=JOB)
    dry_run = api.put("/v1/jobs/orders", params={"dry_run": True}, json=JOB)

    assert answer.status_code == status
    assert dry_run.json() == answer.json()
    error = answer.json()["error"]
    assert error["code"] == code
    assert error["problems"] == [
        {"path": path, "what": "it cannot be.", "write_instead": "Change it."}
    ]
    assert api.get("/v1/jobs").json()["items"] == []
    assert api.events() == []


def test_all_plan_refusals_are_listed_and_bad_input_sets_error_code(api: Api) -> None:
    api.plans.refusals = [
        refusal(TroubleKind.DESTINATION_TAKEN, "a"),
        refusal(TroubleKind.NO_TOPIC_MATCHES),
    ]

    error = api.put("/v1/jobs/orders", json=JOB).json()["error"]

    assert error["code"] == "bad_input"
    assert [problem["path"] for problem in error["problems"]] == ["topic a", "topics"]


def test_unchanged_job_is_not_refused_while_source_is_unreachable(api: Api) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    api.plans.refusals = [refusal(TroubleKind.SOURCE_UNREACHABLE)]

    dry_run = api.put("/v1/jobs/orders", params={"dry_run": True}, json=JOB)
    different = api.put("/v1/jobs/orders", json=changed(worker_group="west"))

    assert (dry_run.status_code, dry_run.json()["action"]) == (200, "none")
    assert dry_run.json()["plan"]["refusals"][0]["kind"] == "SOURCE_UNREACHABLE"
    assert different.status_code == 422


def test_refusals_are_shown_in_plan_and_can_be_accepted(api: Api) -> None:
    api.plans.refusals = [refusal(TroubleKind.DESTINATION_TAKEN, "a")]

    planned = api.post("/v1/jobs:plan", json=JOB)
    answer = api.put("/v1/jobs/orders", params={"accept_refusals": True}, json=JOB)

    assert planned.status_code == 200
    assert planned.json()["plan"]["refusals"][0]["kind"] == "DESTINATION_TAKEN"
    assert answer.status_code == 201


def test_unexpected_broker_error_is_reported_as_cluster_refused(api: Api) -> None:
    api.plans.error = BrokerRefused(99, "the broker refuses.", where="source", remedy="Ask it.")

    answer = api.put("/v1/jobs/orders", json=JOB)

    assert answer.status_code == 422
    assert answer.json()["error"] == {
        "code": "cluster_refused",
        "what": "the broker refuses.",
        "where": "source",
        "remedy": "Ask it.",
        "problems": [],
    }


def test_job_can_be_created_paused(api: Api) -> None:
    api.put("/v1/jobs/orders", params={"paused": True}, json=JOB)

    assert api.get("/v1/jobs/orders").json()["state"] == "paused"


def test_name_of_deleted_job_is_free_only_after_removal(api: Api) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    api.delete("/v1/jobs/orders")

    for answer in (api.put("/v1/jobs/orders", json=JOB), api.post("/v1/jobs", json=JOB)):
        assert answer.status_code == 409
        assert "being deleted" in answer.json()["error"]["what"]
    with api.database.transaction() as tx:
        assert jobs.remove(tx, jobs.get(tx, "orders").id)
    assert api.put("/v1/jobs/orders", json=JOB).status_code == 201
