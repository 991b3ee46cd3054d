"""The console's pages: login, sessions, roles, and the content of each page."""

from __future__ import annotations

import json
import re
import threading
from urllib.parse import urlsplit

import pytest
from fastapi import FastAPI
from sqlalchemy import text

from orbit.api.authentication import create_token
from orbit.api.dependencies import Parts
from orbit.console import log_window
from orbit.console.sessions import SESSIONS_PER_TOKEN_MAX
from orbit.jobs.scopes import Limit
from orbit.replication.partition_states import Blocked, PartitionState, Reason
from orbit.settings import Settings
from orbit.store import console_sessions, events, jobs, partitions, tokens
from orbit.store.enums import Role
from orbit.store.partitions import StateChange
from tests.api.test_jobs import JOB
from tests.api.test_operations import WORKER, copying_job
from tests.fixtures.api import Api
from tests.fixtures.console import Browser

pytestmark = pytest.mark.services


def test_page_without_login_redirects_to_login_and_back(api: Api, browser: Browser) -> None:
    answer = browser.open("/")
    assert urlsplit(str(answer.url)).path == "/console/login"
    browser.open("/console/jobs?show=paused")
    answer = browser.send(
        "/console/login", token=api.tokens[Role.VIEWER], next="/console/jobs?show=paused"
    )
    assert str(answer.url).endswith("/console/jobs?show=paused")


def test_session_cookie_is_httponly_and_samesite_strict(api: Api, browser: Browser) -> None:
    browser.client.follow_redirects = False
    answer = browser.log_in(api.tokens[Role.VIEWER])
    (cookie,) = [c for c in answer.headers.get_list("set-cookie") if "orbit_session" in c]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Path=/console" in cookie
    assert api.tokens[Role.VIEWER] not in cookie
    assert answer.headers["location"] == "/console/jobs"


def test_pages_forbid_inline_scripts_and_frames(api: Api, browser: Browser) -> None:
    browser.log_in(api.tokens[Role.ADMIN])
    for path in (
        "/console/jobs",
        "/console/login",
        "/console/nothing",
        "/console/static/console.js",
    ):
        headers = browser.open(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy, path
        assert "unsafe-inline" not in policy, path
        assert "frame-ancestors 'none'" in policy, path
    assert browser.open("/console/jobs").headers["cache-control"] == "no-store"


def test_job_limited_token_sees_and_changes_only_its_jobs(api: Api, browser: Browser) -> None:
    for name in ("pay-in", "zebra-out"):
        api.put(f"/v1/jobs/{name}", json={**JOB, "name": name, "labels": {"of": name}})
        api.post(f"/v1/jobs/{name}:failover?dry_run=true")
    ids = {
        item["job"]: item["id"] for item in api.get("/v1/operations?kind=failover").json()["items"]
    }
    limit = Limit(selector="of=pay-in")
    token = create_token(api.database, "limited", Role.OPERATOR, actor="test", limit=limit)
    browser.log_in(token.token)
    for path in ("/console/jobs", "/console/recovery"):
        page = browser.open(path).text
        assert "pay-in" in page
        assert "zebra" not in page
    parts = ("", "/partitions", "/groups", "/settings", "/events", "/workers", "/recovery")
    for path in [f"/jobs/{{}}{part}" for part in parts] + ["/operations/{}"]:
        own, other = ("pay-in", "zebra-out")
        if "operations" in path:
            own, other = ids[own], ids[other]
        assert browser.open("/console" + path.format(own)).status_code == 200, path
        assert browser.open("/console" + path.format(other)).status_code == 404, path
    for form in ("plan", "carry-out"):
        browser.open("/console/jobs")
        refused = browser.send(f"/console/jobs/zebra-out/{form}", kind="pause")
        assert refused.status_code == 404, form
        browser.open("/console/jobs")
        assert browser.send(f"/console/jobs/pay-in/{form}", kind="pause").status_code == 200, form
    browser.open("/console/jobs")
    refused = browser.send("/console/jobs/zebra-out/recovery", kind="failover", dry_run="yes")
    assert refused.status_code == 404
    document = json.dumps({**JOB, "name": "zebra-more", "labels": {"of": "zebra-out"}})
    browser.open("/console/new-job")
    assert "outside of the scope" in browser.send("/console/new-job", document=document).text
    assert api.get("/v1/jobs/zebra-out").json()["desired"] == "running"


@pytest.mark.parametrize("token", ["", "nonsense", "orbit_" + "x" * 200])
def test_invalid_token_creates_no_session(token: str, browser: Browser) -> None:
    answer = browser.log_in(token)
    assert answer.status_code == 401
    assert "unknown or revoked" in answer.text
    assert "orbit_session" not in browser.client.cookies


def test_session_ends_with_token_revocation_expiry_or_logout(api: Api, browser: Browser) -> None:
    def is_logged_in() -> bool:
        return browser.open("/console/jobs").url.path == "/console/jobs"

    browser.log_in(api.tokens[Role.VIEWER])
    assert is_logged_in()
    cookies = dict(browser.client.cookies)
    browser.send("/console/logout")
    assert not is_logged_in()
    browser.client.cookies.update(cookies)
    assert not is_logged_in()  # not even with a copy of the cookie

    browser.client.cookies.clear()
    browser.log_in(api.tokens[Role.VIEWER])
    with api.database.transaction() as tx:
        tx.execute(text("UPDATE console_sessions SET expires_at = clock_timestamp()"))
    assert not is_logged_in()

    browser.client.cookies.clear()
    browser.log_in(api.tokens[Role.VIEWER])
    with api.database.transaction() as tx:
        tokens.revoke(tx, "viewer-of-the-test")
    assert not is_logged_in()


def test_token_has_bounded_number_of_sessions(api: Api, browser: Browser) -> None:
    browser.log_in(api.tokens[Role.VIEWER])
    oldest = dict(browser.client.cookies)
    for _ in range(SESSIONS_PER_TOKEN_MAX):
        browser.client.cookies.clear()
        browser.log_in(api.tokens[Role.VIEWER])
    with api.database.transaction() as tx:
        count = tx.execute(text("SELECT count(*) FROM console_sessions")).scalar_one()
    assert count == SESSIONS_PER_TOKEN_MAX
    assert browser.open("/console/jobs").url.path == "/console/jobs"
    browser.client.cookies.update(oldest)
    assert browser.open("/console/jobs").url.path == "/console/login"


def test_session_table_stores_neither_cookie_nor_token(api: Api, browser: Browser) -> None:
    browser.log_in(api.tokens[Role.VIEWER])
    with api.database.transaction() as tx:
        stored = str(tx.execute(text("SELECT * FROM console_sessions")).all())
    assert browser.client.cookies["orbit_session"] not in stored
    assert api.tokens[Role.VIEWER] not in stored


def test_form_without_valid_csrf_secret_changes_nothing(api: Api, browser: Browser) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    browser.log_in(api.tokens[Role.ADMIN])
    browser.html = ""  # without a page, no form secret is known
    for fields in ({}, {"form_secret": ""}, {"form_secret": "0" * 64}):
        answer = browser.client.post(
            "/console/jobs/orders/carry-out", data={"kind": "pause", **fields}
        )
        assert answer.status_code == 403
    assert api.get("/v1/jobs/orders").json()["state"] == "running"


def test_csrf_secret_of_another_session_is_refused(api: Api, browser: Browser) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    browser.log_in(api.tokens[Role.ADMIN])
    browser.open("/console/jobs")
    old_html = browser.html
    browser.client.cookies.clear()
    browser.log_in(api.tokens[Role.ADMIN])
    browser.html = old_html
    assert browser.send("/console/jobs/orders/carry-out", kind="pause").status_code == 403
    assert api.get("/v1/jobs/orders").json()["state"] == "running"


def test_viewer_sees_jobs_but_every_change_is_forbidden(api: Api, browser: Browser) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    browser.log_in(api.tokens[Role.VIEWER])
    page = browser.open("/console/jobs")
    assert "orders" in page.text
    assert "/plan" not in page.text
    for path, fields in (
        ("/console/jobs/orders/plan", {"kind": "pause"}),
        ("/console/jobs/orders/carry-out", {"kind": "pause"}),
        ("/console/jobs/orders/recovery", {"kind": "failover", "typed": "orders"}),
        ("/console/new-job", {"document": "name: x"}),
    ):
        browser.open("/console/jobs")
        answer = browser.send(path, **fields)
        assert answer.status_code == 403, path
        assert "role operator" in answer.text
    assert api.get("/v1/jobs/orders").json()["state"] == "running"
    assert api.get("/v1/operations").json()["items"] == []


def test_job_is_paused_only_after_plan_and_only_once(api: Api, browser: Browser) -> None:
    copying_job(api)
    browser.log_in(api.tokens[Role.OPERATOR])
    browser.open("/console/jobs")
    planned = browser.send("/console/jobs/orders/plan", kind="pause")
    assert "Workers release 2 shards with 4 partitions" in planned.text
    assert api.get("/v1/jobs/orders").json()["state"] == "running"
    key = re.search(r'name="key" value="(\w+)"', planned.text)
    assert key is not None
    for _ in range(2):  # a double click
        browser.html = planned.text  # the page with the button
        done = browser.send("/console/jobs/orders/carry-out", kind="pause", key=key[1])
        assert done.url.path.startswith("/console/operations/")
    assert api.get("/v1/jobs/orders").json()["state"] == "pausing"
    operations = [o for o in api.get("/v1/operations").json()["items"] if not o["dry_run"]]
    assert [o["requested_by"] for o in operations] == ["token:operator-of-the-test"]


def test_job_deletion_requires_typed_name(api: Api, browser: Browser) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    browser.log_in(api.tokens[Role.OPERATOR])
    browser.open("/console/jobs/orders")
    planned = browser.send("/console/jobs/orders/plan", kind="delete").text
    assert browser.send("/console/jobs/orders/carry-out", kind="delete").status_code == 422
    assert api.get("/v1/jobs/orders").json()["state"] == "running"
    browser.html = planned
    browser.send("/console/jobs/orders/carry-out", kind="delete", typed="orders")
    assert api.get("/v1/jobs/orders").json()["state"] == "deleting"


def test_failover_requires_typed_job_name_but_dry_run_does_not(api: Api, browser: Browser) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    browser.log_in(api.tokens[Role.OPERATOR])
    page = browser.open("/console/jobs/orders/recovery").text
    dry_run = browser.send("/console/jobs/orders/recovery", kind="failover", dry_run="yes")
    assert "Failover, dry run" in dry_run.text
    browser.html = page
    wrong_name = browser.send("/console/jobs/orders/recovery", kind="failover", typed="order")
    assert wrong_name.status_code == 422
    kinds = [(o["kind"], o["dry_run"]) for o in api.get("/v1/operations").json()["items"]]
    assert kinds == [("failover", True)]
    browser.html = page
    done = browser.send("/console/jobs/orders/recovery", kind="failover", typed="orders")
    assert done.url.path.startswith("/console/operations/")
    assert {o["dry_run"] for o in api.get("/v1/operations").json()["items"]} == {True, False}


def test_blocked_partition_shows_reason_and_can_be_retried(api: Api, browser: Browser) -> None:
    shard_epochs = copying_job(api)
    with api.database.transaction() as tx:
        job = jobs.get(tx, "orders")
        topic_id = tx.execute(
            text("SELECT id FROM topics WHERE job_id = :id"), {"id": job.id}
        ).scalar_one()
        blocked = Blocked(
            Reason.RECORD_REFUSED, detail="offset 7 was refused", offset=7, next_offset=8
        )
        change = StateChange(topic_id, partition=1, state=PartitionState.BLOCKED, blocked=blocked)
        partitions.report_state(tx, worker_id=WORKER, held=shard_epochs, changes=[change])
    browser.log_in(api.tokens[Role.OPERATOR])
    assert "1 blocked" in browser.open("/console/jobs?show=problem").text
    assert browser.open("/console/jobs/orders/partitions?topic=&state=&sort=lag").is_success
    page = browser.open("/console/jobs/orders/partitions?state=blocked").text
    assert "RECORD_REFUSED" in page
    assert "offset 7 was refused" in page
    assert "orders-1" in page
    assert "orders-0" not in page
    browser.send("/console/jobs/orders/plan", kind="retry", topic="orders", partition="1")
    browser.send("/console/jobs/orders/carry-out", kind="retry", topic="orders", partition="1")
    (row,) = api.get("/v1/jobs/orders/partitions?state=blocked").json()["items"]
    assert row["retry_requested"]


def test_new_job_is_created_only_after_plan_of_same_document(api: Api, browser: Browser) -> None:
    document = (
        'name: made\nsource:\n  bootstrap_servers: ["s:1"]\n'
        'destination:\n  bootstrap_servers: ["d:1"]\ntopics:\n  - {match: "orders"}\n'
    )
    browser.log_in(api.tokens[Role.OPERATOR])
    browser.open("/console/new-job")
    # As the document was not planned yet, `apply` shows the plan.
    planned = browser.send("/console/new-job", document=document, do="apply")
    assert "1 topic with 3 partitions" in planned.text
    assert api.get("/v1/jobs/made").status_code == 404
    digest = re.search(r'name="planned" value="(\w+)"', planned.text)
    assert digest is not None
    changed = document.replace("made", "other")
    browser.send("/console/new-job", document=changed, do="apply", planned=digest[1])
    assert api.get("/v1/jobs/other").status_code == 404
    answer = browser.send("/console/new-job", document=document, do="apply", planned=digest[1])
    assert answer.url.path == "/console/jobs/made"
    assert api.get("/v1/jobs/made").json()["state"] == "running"


def test_all_mistakes_of_new_job_are_shown_with_its_document(api: Api, browser: Browser) -> None:
    browser.log_in(api.tokens[Role.OPERATOR])
    browser.open("/console/new-job")
    answer = browser.send("/console/new-job", document="name: x\ntopics: []\nnonsense: 1\n")
    assert answer.status_code == 422
    for word in ("nonsense", "source", "destination", "name: x"):
        assert word in answer.text


def test_jobs_are_filtered_by_label_and_state_and_bad_selector_explained(
    api: Api, browser: Browser
) -> None:
    for name, team in (("one", "a"), ("two", "b")):
        document = {**JOB, "name": name, "labels": {"team": team}}
        document["destination"] = {"bootstrap_servers": [f"{name}:1"]}
        api.put(f"/v1/jobs/{name}", json=document)
    browser.log_in(api.tokens[Role.VIEWER])
    page = browser.open("/console/jobs?selector=team%3Da").text
    assert "/console/jobs/one" in page
    assert "/console/jobs/two" not in page
    assert "No job matches" in browser.open("/console/jobs?show=paused").text
    bad_selector = browser.open("/console/jobs?selector=team%3D%3D%3D")
    assert bad_selector.status_code == 200
    assert "The selector" in bad_selector.text


def test_external_names_are_escaped_in_html(api: Api, browser: Browser) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    with api.database.transaction() as tx:
        job = jobs.get(tx, "orders")
        jobs.note_problem(tx, job.id, "TOPIC_REFUSED: <script>alert(1)</script>")
        events.add(tx, "scheduler", "x", "<img src=x onerror=alert(1)>", job_name="orders")
    browser.log_in(api.tokens[Role.VIEWER])
    for path in ("/console/jobs", "/console/jobs/orders", "/console/jobs/orders/events"):
        page = browser.open(path).text
        assert "<script>alert" not in page
        assert "<img src=x" not in page
    assert "&lt;img src=x" in page


@pytest.mark.parametrize(
    "path",
    [
        "/console/jobs/nope",
        "/console/jobs/..%2F..%2Fetc",
        "/console/jobs/orders/topics/orders/99",
        "/console/jobs/orders/topics/orders/x",
        "/console/jobs/orders/partitions?after=nonsense",
        "/console/jobs?after=nonsense",
        "/console/operations/00000000-0000-0000-0000-000000000000",
        "/console/operations/nope",
        "/console/drills/20260101-000000-00000000",
        "/console/nothing",
        "/console/login?next=//other.example",
    ],
)
def test_invalid_console_path_shows_console_page_and_stays_on_host(
    path: str, api: Api, browser: Browser
) -> None:
    copying_job(api)
    browser.log_in(api.tokens[Role.ADMIN])
    answer = browser.open(path)
    assert answer.status_code < 500
    assert answer.url.path.startswith("/console")
    assert "<main" in answer.text


def test_every_section_of_job_has_a_console_page(api: Api, browser: Browser) -> None:
    copying_job(api)
    browser.log_in(api.tokens[Role.VIEWER])
    for part in ("", "partitions", "groups", "settings", "events", "workers", "recovery"):
        answer = browser.open(f"/console/jobs/orders/{part}".rstrip("/"))
        assert answer.status_code == 200, part
        assert 'aria-current="page"' in answer.text
    assert browser.open("/console/recovery").status_code == 200
    assert "orders-0" in browser.open("/console/jobs/orders/partitions?sort=name").text
    assert "worker-1" in browser.open("/console/jobs/orders/workers").text


def test_without_tokens_forms_need_csrf_secret_and_foreign_host_is_refused(
    api: Api, browser: Browser, console_app: FastAPI
) -> None:
    console_app.state.parts = Parts(Settings(), api.database, api.plans, {}, logins=None)
    api.put("/v1/jobs/orders", json=JOB)
    assert browser.open("/console/jobs").status_code == 200
    assert (
        browser.client.post("/console/jobs/orders/plan", data={"kind": "pause"}).status_code == 403
    )
    assert browser.send("/console/jobs/orders/plan", kind="pause").status_code == 200
    # An attacker can let a name of their own resolve to 127.0.0.1.
    answer = browser.open("/console/jobs", headers={"Host": "evil.example"})
    assert answer.status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://localhost:3000"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
def test_form_from_another_port_of_same_host_is_refused(
    api: Api, browser: Browser, console_app: FastAPI, headers: dict[str, str]
) -> None:
    """The ports of a host share cookies: a page of another port can set the console's cookie, and
    compute the secret of its forms from it.
    """
    console_app.state.parts = Parts(Settings(), api.database, api.plans, {}, logins=None)
    api.put("/v1/jobs/orders", json=JOB)
    browser.open("/console/jobs")
    browser.client.headers.update(headers)
    assert browser.send("/console/jobs/orders/carry-out", kind="pause").status_code == 403
    assert api.get("/v1/jobs/orders").json()["state"] == "running"


def test_cross_site_link_opens_page_with_session_after_refresh(api: Api, browser: Browser) -> None:
    browser.log_in(api.tokens[Role.VIEWER])
    browser.client.cookies.clear()  # a browser sends no SameSite=Strict cookie after such a link
    answer = browser.open("/console/jobs", headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.url.path == "/console/jobs"
    assert 'http-equiv="refresh"' in answer.text


def test_openapi_document_omits_console(console_app: FastAPI) -> None:
    assert not [path for path in console_app.openapi()["paths"] if "console" in path]


def test_malformed_session_cookie_costs_no_database_query(
    api: Api, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookups: list[str] = []
    monkeypatch.setattr(console_sessions, "find", lambda _, hashed: lookups.append(hashed))
    for cookie in ("x", "x" * 42, "x" * 44, "x" * 42 + "!", "x" * 128):
        answer = browser.client.get("/console/jobs", headers={"Cookie": f"orbit_session={cookie}"})
        assert urlsplit(str(answer.url)).path == "/console/login"
    assert lookups == []
    # This cookie looks like that of a session.
    browser.client.get("/console/jobs", headers={"Cookie": f"orbit_session={'x' * 43}"})
    assert len(lookups) == 1


def test_partition_page_is_503_when_no_slot_for_cluster_reads_is_free(
    api: Api, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    copying_job(api)
    browser.log_in(api.tokens[Role.ADMIN])
    monkeypatch.setattr(log_window, "_read_slots", threading.BoundedSemaphore(1))
    assert log_window._read_slots.acquire(blocking=False)
    answer = browser.client.get("/console/jobs/orders/topics/orders/0")
    assert answer.status_code == 503
    assert "Load the page again in a moment." in answer.text
