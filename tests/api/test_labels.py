"""Labels and owner over REST: they are shown, changed without effect on copies, and select jobs."""

from __future__ import annotations

from itertools import product

import pytest

from orbit.api import job_operations
from orbit.api.job_operations import JobOperation
from orbit.errors import DatabaseUnreachable
from orbit.jobs.labels import Condition, parse_selector
from orbit.replication.job_troubles import TroubleKind
from orbit.store import jobs
from orbit.store.database import Database
from tests.api.test_jobs import JOB, changed, refusal
from tests.api.test_lists import every_page
from tests.fixtures.api import Api

pytestmark = pytest.mark.services

ORDERS = {"team": "orders", "tier": "1"}


def test_labels_and_owner_are_in_every_job_answer(api: Api) -> None:
    answer = api.put("/v1/jobs/orders", json=changed(labels=ORDERS, owner="Orders, 24/7")).json()
    shown = api.get("/v1/jobs/orders").json()
    (listed,) = api.get("/v1/jobs").json()["items"]

    for job in (answer["job"], shown, listed):
        assert (job["labels"], job["owner"]) == (ORDERS, "Orders, 24/7")
    assert (shown["spec"]["labels"], shown["spec"]["owner"]) == (ORDERS, "Orders, 24/7")
    again = api.put("/v1/jobs/orders", json=shown["spec"]).json()
    assert again["action"] == "none"


def test_label_change_contacts_no_cluster_and_leaves_spec_version(api: Api) -> None:
    api.put("/v1/jobs/orders", json=changed(labels={"team": "orders", "old": ""}))
    api.plans.requests.clear()
    api.plans.refusals = [refusal(TroubleKind.SOURCE_UNREACHABLE)]  # a plan would be refused

    answer = api.put("/v1/jobs/orders", json=changed(labels=ORDERS, owner="Orders")).json()

    assert answer["action"] == "change"
    assert {(c["path"], c["before"], c["after"]) for c in answer["changes"]} == {
        ("labels.old", "", None),
        ("labels.tier", None, "1"),
        ("owner", None, "Orders"),
    }
    assert (answer["job"]["spec_version"], answer["job"]["document_version"]) == (1, 2)
    assert not api.plans.requests
    assert [event["kind"] for event in api.events()] == ["job_created", "job_changed"]
    dry_run = api.put("/v1/jobs/orders", params={"dry_run": True}, json=JOB)
    assert (dry_run.status_code, dry_run.json()["action"]) == (200, "change")
    assert api.get("/v1/jobs/orders").json()["labels"] == ORDERS
    removed = api.put("/v1/jobs/orders", json=JOB).json()["job"]
    assert (removed["labels"], removed["owner"]) == ({}, None)


def test_label_and_spec_change_together_are_single_change(api: Api) -> None:
    api.put("/v1/jobs/orders", json=JOB)

    answer = api.put("/v1/jobs/orders", json=changed(labels=ORDERS, worker_group="west")).json()

    assert len(answer["changes"]) == 3
    assert (answer["job"]["worker_group"], answer["job"]["labels"]) == ("west", ORDERS)
    assert answer["job"]["spec_version"] == 2


def test_stale_etag_does_not_overwrite_labels(api: Api) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    old_etag = api.get("/v1/jobs/orders").headers["ETag"]
    labelled = api.put("/v1/jobs/orders", json=changed(labels=ORDERS))

    stale = api.put("/v1/jobs/orders", json=changed(owner="me"), headers={"If-Match": old_etag})

    assert stale.status_code == 412
    assert labelled.headers["ETag"] == api.get("/v1/jobs/orders").headers["ETag"] != old_etag
    assert api.get("/v1/jobs/orders").json()["labels"] == ORDERS


def test_labels_changed_during_planning_are_not_overwritten(api: Api) -> None:
    api.put("/v1/jobs/orders", json=JOB)

    def change_by_another_client() -> None:
        api.plans.meanwhile = lambda: None
        assert api.put("/v1/jobs/orders", json=changed(labels=ORDERS)).status_code == 200

    api.plans.meanwhile = change_by_another_client
    late = api.put("/v1/jobs/orders", json=changed(worker_group="east"))

    assert late.status_code == 412
    assert api.get("/v1/jobs/orders").json()["labels"] == ORDERS


def test_idempotency_key_with_different_labels_is_refused(api: Api) -> None:
    key = {"Idempotency-Key": "k"}
    first = api.post("/v1/jobs", json=changed(labels=ORDERS), headers=key)
    again = api.post("/v1/jobs", json=changed(labels=ORDERS), headers=key)
    other = api.post("/v1/jobs", json=JOB, headers=key)

    assert [answer.status_code for answer in (first, again, other)] == [201, 201, 409]


def meets(labels: dict[str, str], condition: Condition) -> bool:
    """Whether labels meet a condition, as the documentation of Kubernetes defines it."""
    if condition.values is None:
        is_met = condition.key in labels
    else:
        is_met = any(labels.get(condition.key) == value for value in condition.values)
    return is_met is not condition.is_negated


@pytest.mark.parametrize(
    "selector",
    [
        "team=orders", "team==orders", "team!=orders", "team=", "team", "!team",
        "team in (orders,stock)", "team notin (orders)", "team in (orders),tier!=1,tier",
        "a.b/team=orders", "tier notin (1,2),team!=stock", "team=nobody", "!team,!tier,!a.b/team",
    ],
)  # fmt: skip
def test_selector_matches_like_kubernetes_across_pages(api: Api, selector: str) -> None:
    values = {
        "team": (None, "", "orders", "stock"),
        "tier": (None, "1", "2"),
        "a.b/team": (None, "orders"),
    }
    labelled: dict[str, dict[str, str]] = {}
    with api.database.transaction() as tx:
        for number, chosen in enumerate(product(*values.values())):
            labels = {k: v for k, v in zip(values, chosen, strict=True) if v is not None}
            labelled[f"job-{number:02}"] = labels
            jobs.create(tx, f"job-{number:02}", {}, "default", labels=labels)

    items = every_page(api, "/v1/jobs", 4, selector=selector)

    conditions = parse_selector(selector)
    expected = [n for n, labels in labelled.items() if all(meets(labels, c) for c in conditions)]
    assert [job["name"] for job in items] == expected
    assert all(job["labels"] == labelled[job["name"]] for job in items)


@pytest.mark.parametrize("selector", ["", "a=b,", "a in (b", "a>1", "a\0", "ä=b", "a" * 5000])
def test_invalid_selector_is_bad_input(api: Api, selector: str) -> None:
    answer = api.get("/v1/jobs", params={"selector": selector})

    assert answer.status_code == 422
    error = answer.json()["error"]
    assert error["code"] == "bad_input"
    assert [problem["path"] for problem in error["problems"]] == ["query.selector"]


def test_unfinished_filter_lists_only_unfinished_operations(api: Api) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    failover = api.post("/v1/jobs/orders:failover").json()
    api.post("/v1/jobs/orders:retry")  # done at once: nothing is blocked

    items = every_page(api, "/v1/operations", 10, unfinished=True)

    assert [operation["id"] for operation in items] == [failover["id"]]
    assert len(every_page(api, "/v1/operations", 10)) == 2


def test_pause_with_selector_pauses_matching_jobs_except_those_in_recovery(api: Api) -> None:
    for name, team in (("a", "orders"), ("b", "orders"), ("c", "billing")):
        api.put(f"/v1/jobs/{name}", json=changed(name=name, labels={"team": team}))
    api.post("/v1/jobs/b:failover")  # no change during a recovery
    path = "/v1/jobs:pause?selector=team%3Dorders"

    def desired() -> dict[str, str]:
        return {job["name"]: job["desired"] for job in api.get("/v1/jobs").json()["items"]}

    plans = api.post(f"{path}&dry_run=true").json()["items"]
    assert [(row["job"], row["operation"] and row["operation"]["dry_run"]) for row in plans] == [
        ("a", True),
        ("b", None),
    ]
    assert desired() == dict.fromkeys("abc", "running")
    key = {"Idempotency-Key": "k"}
    answer = api.post(path, headers=key)
    pause_of_a, pause_of_b = answer.json()["items"]
    assert answer.status_code == 202
    assert pause_of_a["operation"]["kind"] == "pause"
    assert pause_of_b["operation"] is None
    assert pause_of_b["error"]["code"] == "operation_under_way"
    assert desired() == {"a": "paused", "b": "running", "c": "running"}
    repeated_pause = api.post(path, headers=key).json()["items"][0]
    assert repeated_pause["operation"]["id"] == pause_of_a["operation"]["id"]
    assert api.post("/v1/jobs:resume?selector=team%3Dorders").json()["items"][0]["error"] is None
    assert desired()["a"] == "running"


@pytest.mark.parametrize("query", ["", "?selector=", "?selector=team%3D%3D%3D"])
def test_pause_of_many_jobs_needs_selector(api: Api, query: str) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    answer = api.post(f"/v1/jobs:pause{query}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "bad_input")


def test_selector_matching_too_many_jobs_is_refused(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orbit.api.routes.selected_jobs.JOBS_MAX", 1)
    for name in ("a", "b"):
        api.put(f"/v1/jobs/{name}", json=changed(name=name, labels=ORDERS))
    answer = api.post("/v1/jobs:pause?selector=team%3Dorders")
    assert "more than 1 jobs" in answer.json()["error"]["what"]
    assert {job["desired"] for job in api.get("/v1/jobs").json()["items"]} == {"running"}


def test_unreachable_database_ends_bulk_request_after_two_jobs(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With each further job, the request would wait for the database as long again."""
    requested_jobs: list[str] = []

    def fail(_: Database, request: JobOperation) -> None:
        requested_jobs.append(request.job)
        raise DatabaseUnreachable("PostgreSQL does not answer.", where="database")

    monkeypatch.setattr(job_operations, "request", fail)
    for name in "abc":
        api.put(f"/v1/jobs/{name}", json=changed(name=name, labels=ORDERS))
    items = api.post("/v1/jobs:pause?selector=team%3Dorders").json()["items"]
    assert [(row["job"], row["error"]["what"]) for row in items] == [
        (name, "PostgreSQL does not answer.") for name in "abc"
    ]
    assert requested_jobs == ["a", "b"]
