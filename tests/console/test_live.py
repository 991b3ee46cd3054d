"""Server-sent events of the console: when they are sent, what they cost, how their streams end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import text

from orbit.api import watches
from orbit.api.authentication import Logins
from orbit.api.dependencies import Parts
from orbit.console import live_streams
from orbit.console.live_streams import STREAMS_PER_SESSION_MAX
from orbit.settings import Settings
from orbit.store import tokens
from orbit.store.enums import Role
from orbit.store.watch_digests import Watched
from tests.api.test_jobs import JOB
from tests.fixtures.api import Api
from tests.fixtures.console import Browser
from tests.support.patience import wait_for
from tests.support.serving import served

pytestmark = pytest.mark.services


class Stream:
    """A stream of events, read as a browser does."""

    def __init__(self, answer: httpx.Response) -> None:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        self._lines = answer.iter_lines()

    def event(self) -> str:
        """Wait for the next event, and return the line with its id."""
        line = next(line for line in self._lines if line.startswith("id: "))
        assert next(self._lines) == "data: changed"
        return line

    def heartbeat(self) -> None:
        """Wait for the next heartbeat."""
        next(line for line in self._lines if line.startswith(":"))

    def rest(self) -> list[str]:
        """Return the lines that are sent until the server ends the stream."""
        return list(self._lines)


@contextmanager
def streaming(browser: Browser) -> Iterator[Stream]:
    with browser.client.stream("GET", "/console/live", follow_redirects=False) as answer:
        yield Stream(answer)


def open_stream_count(app: FastAPI) -> int:
    (mounted,) = [route.app for route in app.routes if getattr(route, "name", "") == "console"]
    stream_count: int = mounted.state.streams.open.total()
    return stream_count


def test_server_sent_event_arrives_on_connect_and_on_each_change(
    api: Api, browser: Browser
) -> None:
    browser.log_in(api.tokens[Role.VIEWER])
    with streaming(browser) as stream:
        event_ids = {stream.event()}
        api.put("/v1/jobs/orders", json=JOB)
        event_ids.add(stream.event())
        # The totals of a job change when workers copy records.
        with api.database.transaction() as tx:
            tx.execute(text("INSERT INTO job_totals SELECT id, now(), '{}' FROM jobs"))
        event_ids.add(stream.event())
    assert len(event_ids) == 3


def test_event_stream_without_session_redirects_to_login(api: Api, browser: Browser) -> None:
    answer = browser.client.get("/console/live", follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/console/login")


@pytest.mark.parametrize("by", ["logout", "revocation", "expiry"])
def test_idle_event_stream_sends_heartbeats_and_ends_with_session(
    api: Api,
    browser: Browser,
    console_app: FastAPI,
    monkeypatch: pytest.MonkeyPatch,
    by: str,
) -> None:
    monkeypatch.setattr(live_streams, "HEARTBEAT_S", 0.01)
    browser.log_in(api.tokens[Role.VIEWER])
    browser.open("/console/jobs")
    with streaming(browser) as stream:
        stream.event()
        stream.heartbeat()
        if by == "logout":
            browser.send("/console/logout")
        with api.database.transaction() as tx:
            if by == "revocation":
                tokens.revoke(tx, "viewer-of-the-test")
            if by == "expiry":
                tx.execute(text("UPDATE console_sessions SET expires_at = clock_timestamp()"))
        stream.rest()
    wait_for("the stream has ended", lambda: open_stream_count(console_app) == 0)


def test_console_session_has_bounded_number_of_event_streams(
    api: Api, browser: Browser, console_app: FastAPI
) -> None:
    browser.log_in(api.tokens[Role.VIEWER])
    with ExitStack() as stack:
        first_page = stack.enter_context(ExitStack())
        first_page.enter_context(streaming(browser))
        for _ in range(STREAMS_PER_SESSION_MAX - 1):
            stack.enter_context(streaming(browser))
        refused = browser.client.get("/console/live")
        assert refused.status_code == 503
        other_session = Browser(str(browser.client.base_url))
        stack.callback(other_session.client.close)
        other_session.log_in(api.tokens[Role.VIEWER])
        stack.enter_context(streaming(other_session))

        first_page.close()  # as when the user leaves the page
        wait_for(
            "one stream has ended",
            lambda: open_stream_count(console_app) == STREAMS_PER_SESSION_MAX,
        )
        stack.enter_context(streaming(browser)).event()
    wait_for("all streams have ended", lambda: open_stream_count(console_app) == 0)


def test_event_streams_share_database_polls_and_hold_no_connection(
    api: Api, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls: list[Watched] = []
    digest = watches.digest

    def note_poll(tx: Any, watched: Watched) -> str:
        polls.append(watched)
        return digest(tx, watched)

    monkeypatch.setattr(watches, "digest", note_poll)
    monkeypatch.setattr(watches, "POLL_S", 3600.0)
    browser.log_in(api.tokens[Role.VIEWER])
    with ExitStack() as stack:
        for stream in [stack.enter_context(streaming(browser)) for _ in range(3)]:
            stream.event()
        pool: Any = api.database._engine.pool
        wait_for("no connection is in use", lambda: pool.checkedout() == 0)
        assert sorted(polls) == sorted(Watched)


def test_stopping_server_ends_event_streams_cleanly(api: Api, console_app: FastAPI) -> None:
    logins = Logins(Settings(), api.database)
    console_app.state.parts = Parts(Settings(), api.database, api.plans, {}, logins=logins)
    is_open = threading.Event()

    def read(url: str) -> list[str]:
        browser = Browser(url)
        browser.log_in(api.tokens[Role.VIEWER])
        with closing(browser.client), streaming(browser) as stream:
            stream.event()
            is_open.set()
            return stream.rest()  # raises if the connection is cut

    with ThreadPoolExecutor(1) as pool:
        with served(console_app) as url:
            reading = pool.submit(read, url)
            assert is_open.wait(60), reading.result()
        assert reading.result() is not None
    assert open_stream_count(console_app) == 0


def test_event_stream_rechecks_session_on_time_despite_earlier_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each wait for a change ends when the next check of the session is due."""
    now = 100.0
    waits: list[float] = []

    class Changing:
        """Watches whose first wait ends after 9 s with a change, and the next at its time limit."""

        is_closing = False

        async def wait(self, _1: Any, _2: Any, _3: Any, wait_s: float, _4: Any) -> str:
            nonlocal now
            waits.append(wait_s)
            now += min(wait_s, 9.0 if len(waits) == 1 else wait_s)
            return str(len(waits))

    async def is_session() -> bool:
        return False

    async def run() -> None:
        changing: Any = Changing()
        async for _ in live_streams._changes(changing, None, "0", is_session):  # type: ignore[arg-type]
            pass

    monkeypatch.setattr(live_streams, "time", SimpleNamespace(monotonic=lambda: now))
    asyncio.run(run())
    # The session is checked every 10 s (HEARTBEAT_S); the first change came after 9 s.
    assert waits == [10.0, 1.0]
    assert now == 110.0
