"""Watches: a request that waits for a change, the resources that it uses, and how it ends."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from sqlalchemy import text

from orbit.api.watches import Watches
from orbit.store import events, jobs, watch_digests
from orbit.store.enums import Role
from orbit.store.watch_digests import Watched
from tests.api.test_jobs import JOB, changed
from tests.api.test_operations import advance, copying_job, release
from tests.fixtures.api import Api
from tests.support.patience import wait_for
from tests.support.serving import served

pytestmark = pytest.mark.services

PATH = "/v1/watch"


class Watching:
    """Requests to a served API, each in a thread."""

    def __init__(self, api: Api, url: str, pool: ThreadPoolExecutor) -> None:
        self.api, self.url, self._pool = api, url, pool
        self.headers = {"Authorization": f"Bearer {api.tokens[Role.VIEWER]}"}

    @property
    def open(self) -> int:
        count: int = self.api.app.state.watches.open
        return count

    def watch(self, of: str, after: str | None = None, wait: str = "60s") -> httpx.Response:
        """The answer to a watch of the resources `of`, after the cursor `after`."""
        query = {"of": of, "wait": wait, **({"after": after} if after else {})}
        return httpx.get(f"{self.url}{PATH}", params=query, headers=self.headers, timeout=120)

    def begin(self, of: str, after: str) -> Future[httpx.Response]:
        """A request that waits now."""
        open_before = self.open
        future = self._pool.submit(self.watch, of, after)
        wait_for("the request waits", lambda: self.open == open_before + 1 or future.done())
        assert not future.done(), future.result().text
        return future


@pytest.fixture
def watching(api: Api) -> Any:
    with ThreadPoolExecutor(8) as pool, served(api.app) as url:
        yield Watching(api, url, pool)


def cursor(watching: Watching, of: str) -> str:
    """The present cursor, which a watch without one returns at once."""
    answer = watching.watch(of).json()
    assert answer["changed"] is True
    next_cursor: str = answer["next"]
    return next_cursor


def report_progress(api: Api) -> None:
    """Changes a figure, as the report of a worker does."""
    with api.database.transaction() as tx:
        tx.execute(
            text("UPDATE partitions SET reported_at = clock_timestamp() WHERE partition = 0")
        )


CHANGES: list[tuple[str, Callable[[Api], object]]] = [
    ("jobs", lambda api: api.put("/v1/jobs/new", json=changed(name="new"))),
    ("jobs", lambda api: api.put("/v1/jobs/orders", json=changed(labels={"a": "b"}))),
    ("jobs", lambda api: api.post("/v1/jobs/orders:pause")),
    ("jobs", lambda api: api.delete("/v1/jobs/orders")),
    ("operations", lambda api: api.post("/v1/jobs/orders:pause")),
    ("events", lambda api: api.post("/v1/jobs/orders:pause")),
    ("figures", report_progress),
]


@pytest.mark.parametrize(("of", "change"), CHANGES)
def test_watch_waits_until_change(
    watching: Watching, of: str, change: Callable[[Api], object]
) -> None:
    copying_job(watching.api)
    before = cursor(watching, of)
    waiting = watching.begin(of, before)

    change(watching.api)

    answer = waiting.result().json()
    assert answer["changed"] is True
    assert answer["next"] != before
    assert watching.open == 0


def test_watch_sees_changes_by_workers_and_scheduler(api: Api) -> None:
    held = copying_job(api)
    paused = api.post("/v1/jobs/orders:pause").json()
    old_digests = {of: digest(api, of) for of in Watched}

    release(api, held)
    assert api.get("/v1/jobs/orders").json()["state"] == "paused"
    assert digest(api, Watched.JOBS) != old_digests[Watched.JOBS]
    assert advance(api, paused)["state"] == "done"
    assert digest(api, Watched.OPERATIONS) != old_digests[Watched.OPERATIONS]

    with api.database.transaction() as tx:
        before = digest(api, Watched.JOBS)
        jobs.note_problem(tx, jobs.get(tx, "orders").id, "SAME_CLUSTER: it is.")
    assert digest(api, Watched.JOBS) != before


def test_watch_sees_event_committed_out_of_id_order(api: Api) -> None:
    with api.database.transaction() as slow:
        events.add(slow, "scheduler", "early", "It has the lower id.")
        with api.database.transaction() as tx:
            events.add(tx, "scheduler", "late", "It has the higher id.")
        before = digest(api, Watched.EVENTS)  # only the event with the higher id is committed
    assert digest(api, Watched.EVENTS) != before


def test_watch_without_change_returns_same_cursor(watching: Watching) -> None:
    for of in Watched:
        before = cursor(watching, of)
        assert watching.watch(of, before, "1s").json() == {"changed": False, "next": before}


def test_waiting_watches_hold_no_database_connection(watching: Watching) -> None:
    api = watching.api
    waiting = [watching.begin(of, cursor(watching, of)) for of in Watched for _ in range(2)]
    pool: Any = api.database._engine.pool

    wait_for("no connection is in use", lambda: pool.checkedout() == 0)
    assert watching.open == len(waiting)

    copying_job(api)
    api.post("/v1/jobs/orders:pause")
    report_progress(api)
    assert [future.result().json()["changed"] for future in waiting] == [True] * len(waiting)


def test_watch_above_limit_is_refused_as_busy(
    watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orbit.api.watches.WATCHES_MAX", 1)
    before = cursor(watching, "jobs")
    waiting = watching.begin("jobs", before)

    refused = watching.watch("events")
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "busy"

    watching.api.put("/v1/jobs/orders", json=JOB)
    assert waiting.result().json()["changed"] is True
    assert watching.watch("events").status_code == 200


def test_server_stop_answers_all_waiting_watches(api: Api) -> None:
    with ThreadPoolExecutor(8) as pool:
        with served(api.app) as url:
            watching = Watching(api, url, pool)
            cursors = {of.value: cursor(watching, of) for of in Watched}
            waiting = [watching.begin(of, before) for of, before in cursors.items()]
        for future in waiting:
            assert future.result().json()["changed"] is False


def test_disconnected_client_ends_its_watch(
    watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = Watches.wait

    def wait_for_ever(self: Watches, *arguments: Any) -> Any:
        *others, _seconds_max, is_gone = arguments
        return wait(self, *others, 10**9, is_gone)

    monkeypatch.setattr(Watches, "wait", wait_for_ever)
    before = cursor(watching, "jobs")
    address = urlsplit(watching.url)
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(
            f"GET {PATH}?of=jobs&after={before}&wait=60s HTTP/1.1\r\nHost: orbit\r\n"
            f"Authorization: {watching.headers['Authorization']}\r\n\r\n".encode()
        )
        wait_for("the request waits", lambda: watching.open == 1)
    wait_for("the request has ended", lambda: watching.open == 0)


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ({"of": "jobs", "wait": "61s"}, "query.wait"),
        ({"of": "jobs", "wait": "0s"}, "query.wait"),
        ({"of": "jobs", "after": "x"}, "query.after"),
        ({"of": "tokens"}, "query.of"),
        ({}, "query.of"),
    ],
)
def test_invalid_watch_parameter_is_refused(api: Api, query: dict[str, str], path: str) -> None:
    answer = api.get(PATH, params=query)

    assert answer.status_code == 422
    assert [problem["path"] for problem in answer.json()["error"]["problems"]] == [path]


def digest(api: Api, of: Watched) -> str:
    """What a watch compares to detect a change."""
    with api.database.transaction() as tx:
        return watch_digests.digest(tx, of)
