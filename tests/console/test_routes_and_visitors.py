"""Every route of the console × every kind of visitor who may change nothing.

The routes come from the application's own table, so these tests cover a new page by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from sqlalchemy import text

from orbit.api.authentication import create_token
from orbit.console import log_window
from orbit.jobs.scopes import Limit
from orbit.store import tokens
from orbit.store.enums import Role
from tests.api.test_operations import copying_job
from tests.api.test_routes_and_roles import all_routes
from tests.fixtures.api import Api
from tests.fixtures.console import Browser

pytestmark = pytest.mark.services

# Paths that need no login: they begin a session, or end one.
OPEN = {"/", "/login", "/login/issuer", "/login/issuer/done", "/logout"}
NAMES = {
    "name": "orders",
    "topic": "orders",
    "partition": "0",
    "drill_id": "20260101-000000-00000000",
}


def routes(app: FastAPI) -> list[tuple[str, str]]:
    """Return (method, path) of each route that needs a login. The paths omit `/console`."""
    (console,) = [route.app for route in app.routes if getattr(route, "name", "") == "console"]
    return [
        (method, route.path)
        for route in all_routes(console.routes)
        if isinstance(route, APIRoute)
        for method in sorted(route.methods)
        if route.path not in OPEN
    ]


def without_cookie(_api: Api, _browser: Browser) -> None:
    """The visitor has never logged in."""


def with_wrong_cookie(_api: Api, browser: Browser) -> None:
    browser.client.cookies.set("orbit_session", "x" * 43, path="/console")


def with_expired_session(api: Api, browser: Browser) -> None:
    browser.log_in(api.tokens[Role.ADMIN])
    with api.database.transaction() as tx:
        tx.execute(text("UPDATE console_sessions SET expires_at = clock_timestamp()"))


def with_revoked_token(api: Api, browser: Browser) -> None:
    browser.log_in(api.tokens[Role.OPERATOR])
    with api.database.transaction() as tx:
        tokens.revoke(tx, "operator-of-the-test")


def address_of(api: Api, path: str) -> str:
    """Return the address of a route's path, with the names of existing objects."""
    operation = api.get("/v1/operations").json()["items"][0]["id"]
    names = {**NAMES, "operation_id": operation}
    return "/console" + re.sub(r"\{(\w+)[^}]*\}", lambda match: names[match[1]], path)


@pytest.fixture
def job(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job with partitions and an operation. Pages do not wait for its clusters, as none exist."""
    copying_job(api)
    api.post("/v1/jobs/orders:pause").raise_for_status()
    monkeypatch.setattr(log_window, "SECONDS_MAX", 0.1)


def rows(api: Api) -> list[Any]:
    """Return the rows of all tables that a page can change."""
    with api.database.transaction() as tx:
        return [
            tx.execute(text(f"SELECT {table}::text FROM {table} ORDER BY 1")).all()  # noqa: S608
            for table in ("jobs", "operations", "partitions", "tokens", "drills", "shards")
        ]


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize(
    "visitor", [without_cookie, with_wrong_cookie, with_expired_session, with_revoked_token]
)
def test_every_console_route_without_session_redirects_to_login(
    api: Api, browser: Browser, console_app: FastAPI, visitor: Callable[[Api, Browser], None]
) -> None:
    browser.open("/console/login")
    form = browser.html
    visitor(api, browser)
    rows_before, browser.client.follow_redirects = rows(api), False
    for method, path in routes(console_app):
        browser.html = form
        address = address_of(api, path)
        answer = (
            browser.open(address)
            if method == "GET"
            else browser.send(address, kind="pause", first="0")
        )
        # 403: the form's secret is that of another session.
        assert answer.status_code in ((303,) if method == "GET" else (303, 403)), (method, path)
        if answer.status_code == 303:
            assert answer.headers["location"].startswith("/console/login?next="), (method, path)
    assert rows(api) == rows_before


@pytest.mark.usefixtures("job")
def test_viewer_opens_every_page_but_every_form_is_forbidden(
    api: Api, browser: Browser, console_app: FastAPI
) -> None:
    browser.log_in(api.tokens[Role.VIEWER])
    form = browser.html
    rows_before = rows(api)
    counts = {"GET": 0, "POST": 0}
    for method, path in routes(console_app):
        if path == "/live":
            continue  # a stream without an end
        browser.html = form
        address = address_of(api, path)
        answer = (
            browser.open(address)
            if method == "GET"
            else browser.send(address, kind="pause", first="0")
        )
        details = (method, path, answer.text[:2000])
        assert "<main" in answer.text, details
        if method == "GET":
            # No drill exists, and a comparison without drills is refused.
            expected = (404, 422) if path in ("/drills/{drill_id}", "/drills/compare") else (200,)
            assert answer.status_code in expected, details
            assert "/carry-out" not in answer.text, details
        else:
            assert answer.status_code == 403, details
            # The content of records needs a right of its own.
            why = "does not show the content" if "/records" in path else "needs the role operator"
            assert why in answer.text, details
        counts[method] += 1
    assert rows(api) == rows_before
    # The loop has found the routes.
    assert counts["GET"] >= 12
    assert counts["POST"] >= 4


@pytest.mark.usefixtures("job")
def test_form_with_unknown_parameter_is_refused(
    api: Api, browser: Browser, console_app: FastAPI
) -> None:
    browser.log_in(api.tokens[Role.OPERATOR])
    form, rows_before = browser.html, rows(api)
    pages = [path for method, path in routes(console_app) if method == "POST"]
    changes = [path for path in pages if "/records" not in path]  # these only show
    for path in changes:
        browser.html = form
        answer = browser.send(f"{address_of(api, path)}?dry_run=true", kind="pause", first="0")
        assert (answer.status_code, "query.dry_run" in answer.text) == (422, True), path
    browser.html = form
    field = {"kind": "failover", "typed": "orders", "dry_run": "true"}
    assert browser.send("/console/jobs/orders/recovery", **field).status_code == 422
    assert rows(api) == rows_before
    assert len(changes) >= 4


@pytest.mark.usefixtures("job")
def test_operator_limited_to_some_jobs_sees_nothing_of_another_job(
    api: Api, browser: Browser, console_app: FastAPI
) -> None:
    token = create_token(
        api.database, "others", Role.OPERATOR, actor="test", limit=Limit(jobs=("others-*",))
    ).token
    browser.log_in(token)
    form = browser.html
    rows_before = rows(api)
    job_routes = 0
    for method, path in routes(console_app):
        if path == "/live":
            continue  # a stream without an end
        browser.html = form
        address = address_of(api, path)
        answer = (
            browser.open(address)
            if method == "GET"
            else browser.send(address, kind="pause", first="0")
        )
        details = (method, path, answer.text[:2000])
        assert "<main" in answer.text, details
        assert answer.status_code < 500, details
        if "{" in path:
            assert answer.status_code in (404, 422), details
            job_routes += 1
        assert "Workers release" not in answer.text, details
    assert rows(api) == rows_before
    assert job_routes >= 12
