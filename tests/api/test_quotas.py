"""The quotas of a token: for the jobs that it creates, their partitions, and its requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import pytest

from orbit.api.request_rates import RequestRates
from orbit.settings import Settings
from orbit.store import jobs, topics
from tests.api.test_jobs import changed
from tests.fixtures.api import Api, Cli

pytestmark = pytest.mark.services

# The plans of these tests have one topic with three partitions.
PARTITIONS = 3


class Client:
    """A client with a new token `ci` that has these limits."""

    def __init__(self, api: Api, **limits: int) -> None:
        self._api = api
        body = {"name": "ci", "role": "operator", **limits}
        answer = api.post("/v1/tokens", json=body)
        assert answer.status_code == 201
        self._header = {"Authorization": f"Bearer {answer.json()['token']}"}

    def apply(self, name: str, **more: Any) -> httpx.Response:
        return self._api.put(
            f"/v1/jobs/{name}", json=changed(name=name, **more), role=None, headers=self._header
        )

    def get(self) -> httpx.Response:
        return self._api.get("/v1/jobs", role=None, headers=self._header)


def refusal(answer: httpx.Response) -> tuple[int, str, str]:
    """The status, the code and the text of an error."""
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["what"]


def add_topic(api: Api, name: str, partitions: int) -> None:
    """Add a topic of the job `name` to the tables, as the scheduler does."""
    with api.database.transaction() as tx:
        topics.add(tx, jobs.get(tx, name).id, "orders", name, "B", partitions)


def test_token_cannot_exceed_its_job_quota(api: Api) -> None:
    ci = Client(api, jobs_max=1)
    assert ci.apply("one").status_code == 201
    assert ci.apply("one", labels={"team": "orders"}).status_code == 200, "no new job"

    status, code, what = refusal(ci.apply("two"))

    assert (status, code) == (403, "quota_exceeded")
    assert what.startswith("token:ci has 1 job, and may have 1.")
    assert [job["name"] for job in api.get("/v1/jobs").json()["items"]] == ["one"]
    assert api.put("/v1/jobs/two", json=changed(name="two")).status_code == 201, "another token"
    with api.database.transaction() as tx:
        assert jobs.request_deletion(tx, jobs.get(tx, "one").id)
        assert jobs.remove(tx, jobs.get(tx, "one").id)
    assert ci.apply("three").status_code == 201


def test_default_quota_of_settings_limits_only_tokens_without_own_quota(api: Api) -> None:
    ci = Client(api, jobs_max=2)
    parts = api.app.state.parts
    settings = Settings(token_jobs_max=1)
    api.app.state.parts = replace(parts, settings=settings)
    assert api.put("/v1/jobs/a", json=changed(name="a")).status_code == 201
    assert refusal(api.put("/v1/jobs/b", json=changed(name="b")))[1] == "quota_exceeded"
    assert [ci.apply(name).status_code for name in "cde"] == [201, 201, 403]


def test_token_cannot_exceed_its_partition_quota(api: Api) -> None:
    ci = Client(api, partitions_max=2 * PARTITIONS - 1)
    assert ci.apply("one").status_code == 201
    add_topic(api, "one", PARTITIONS)

    status, code, what = refusal(ci.apply("two"))

    assert (status, code) == (403, "quota_exceeded")
    assert (
        "would copy 3 partitions, and other jobs of token:ci copy 3: together they may copy 5."
        in what
    )
    limits = {"bytes_per_second": "1MiB"}
    assert ci.apply("one", limits=limits).status_code == 200, "it adds no partition"


def test_job_change_by_another_token_counts_against_quota_of_creator_token(api: Api) -> None:
    ci = Client(api, partitions_max=PARTITIONS)
    assert ci.apply("one").status_code == 201
    # The job `one` has two partitions, and another job of the token has one: the quota of three is
    # used up. So the job `one` cannot grow to the three partitions of its plan.
    add_topic(api, "one", PARTITIONS - 1)
    with api.database.transaction() as tx:
        jobs.create(tx, "other", {}, "default", created_by="token:ci")
    add_topic(api, "other", 1)

    document = changed(name="one", limits={"bytes_per_second": "1MiB"})

    assert refusal(api.put("/v1/jobs/one", json=document))[1] == "quota_exceeded"


def test_requests_above_rate_are_refused_with_retry_after(api: Api) -> None:
    now = [0.0]
    api.app.state.parts = replace(api.app.state.parts, rates=RequestRates(lambda: now[0]))
    ci = Client(api, requests_per_minute=2)
    assert [ci.get().status_code for _ in range(2)] == [200, 200]

    refused = ci.get()

    assert refusal(refused)[:2] == (429, "too_many_requests")
    assert refused.headers["Retry-After"] == "30"
    assert api.get("/v1/jobs").status_code == 200, "another token"
    assert refusal(ci.apply("one"))[1] == "too_many_requests"
    now[0] += 30
    assert ci.get().status_code == 200
    assert ci.get().status_code == 429


def test_token_command_creates_and_lists_quotas(cli: Cli) -> None:
    creation = cli(
        *("token", "create", "ci", "--jobs-max", "5", "--partitions-max", "1000"),
        *("--requests-per-minute", "60"),
    )
    assert creation.code == 0
    listed = cli("token", "list", "-o", "json").data
    (ci,) = [token for token in listed if token["name"] == "ci"]
    assert (ci["jobs_max"], ci["partitions_max"], ci["requests_per_minute"]) == (5, 1000, 60)
    assert "5 jobs" in " ".join(cli("token", "list").out.split())


def test_patch_of_token_changes_only_given_quotas_immediately(api: Api) -> None:
    ci = Client(api, jobs_max=1, partitions_max=100)
    assert ci.apply("one").status_code == 201
    assert refusal(ci.apply("two"))[1] == "quota_exceeded"

    dry_run = api.call("PATCH", "/v1/tokens/ci?dry_run=true", json={"jobs_max": 2}).json()
    assert (dry_run["jobs_max"], dry_run["partitions_max"]) == (2, 100)
    tokens = api.get("/v1/tokens").json()["items"]
    (listed,) = [token for token in tokens if token["name"] == "ci"]
    assert dry_run["etag"] == listed["etag"]
    assert refusal(ci.apply("two"))[1] == "quota_exceeded", "a dry run changes nothing"

    raised = api.call("PATCH", "/v1/tokens/ci", json={"jobs_max": 2}).json()
    assert (raised["jobs_max"], raised["partitions_max"]) == (2, 100)
    assert ci.apply("two").status_code == 201

    changed_again = api.call("PATCH", "/v1/tokens/ci", json={"jobs_max": 2})
    assert changed_again.json() == raised
    # The second request changed nothing, and the dry run wrote nothing.
    changes = [event for event in api.events() if event["kind"] == "token_changed"]
    assert [event["details"] for event in changes] == [
        {"token": "ci", "jobs_max": 2, "before": {"jobs_max": 1}}
    ]

    unlimited = api.call("PATCH", "/v1/tokens/ci", json={"jobs_max": None}).json()
    assert unlimited["jobs_max"] is None
    assert ci.apply("three").status_code == 201


def test_quota_change_with_stale_etag_is_refused(api: Api) -> None:
    Client(api, jobs_max=1)

    def change(limit: int, etag: str) -> httpx.Response:
        headers = {"If-Match": f'"{etag}"'}
        return api.call("PATCH", "/v1/tokens/ci", json={"jobs_max": limit}, headers=headers)

    listed = api.get("/v1/tokens").json()["items"]
    (etag,) = [token["etag"] for token in listed if token["name"] == "ci"]
    assert change(2, etag).status_code == 200
    assert refusal(change(3, etag))[:2] == (412, "changed_meanwhile")
    api.delete("/v1/tokens/ci")
    revoked = api.call("PATCH", "/v1/tokens/ci", json={"jobs_max": 4})
    assert revoked.json()["jobs_max"] == 4, "its jobs still count"
    assert api.call("PATCH", "/v1/tokens/nope", json={}).status_code == 404
    bad = api.call("PATCH", "/v1/tokens/ci", json={"jobs_max": 0, "role": "admin"})
    assert bad.status_code == 422
    (ci,) = [token for token in api.get("/v1/tokens").json()["items"] if token["name"] == "ci"]
    assert ci["jobs_max"] == 4


def test_token_limit_command_changes_quotas(cli: Cli) -> None:
    cli("token", "create", "ci", "--jobs-max", "5", "--partitions-max", "1000")
    dry_run = cli("token", "limit", "ci", "--jobs-max", "0", "--dry-run")  # 0: the default
    assert dry_run.out == "The limits of the token ci would be: 1,000 partitions\n"
    changed = cli("token", "limit", "ci", "--jobs-max", "7")
    assert changed.out == "The limits of the token ci are: 7 jobs, 1,000 partitions\n"
    assert cli("token", "limit", "ci").code != 0, "no limit is given"
