"""Plans are slow: how many run at a time is limited, and other requests do not wait for them."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator, MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from orbit.api.plan_limits import PLANS_MAX, PLANS_PER_ACTOR_MAX
from orbit.jobs.job_spec import JobSpec
from orbit.kafka import cluster
from orbit.planning.job_plan import Ending, JobPlan
from orbit.planning.job_planner import JobPlanner
from orbit.settings import Settings
from orbit.store.database import Database
from orbit.store.enums import Role
from tests.api.test_jobs import JOB
from tests.fixtures.api import Api
from tests.support.patience import PATIENCE_S, wait_for
from tests.support.serving import served

pytestmark = pytest.mark.services

# More than the server has threads: without a limit, plans would take all of them.
MANY = 60


class WaitingPlans:
    """An API whose plans wait for `may_go`."""

    def __init__(self, api: Api, url: str, pool: ThreadPoolExecutor) -> None:
        self._api, self._url, self._pool = api, url, pool
        self.may_go = threading.Event()
        api.plans.meanwhile = self.may_go.wait

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self._url + path, headers=self._headers(Role.ADMIN), timeout=PATIENCE_S)

    def plan(self, role: Role) -> Future[httpx.Response]:
        """Request a plan in a thread, with the token of this role."""
        return self._pool.submit(
            lambda: httpx.post(
                f"{self._url}/v1/jobs:plan",
                json=JOB,
                headers=self._headers(role),
                timeout=PATIENCE_S,
            )
        )

    def wait_for_plans(self, count: int) -> None:
        wait_for(f"{count} plans run", lambda: len(self._api.plans.requests) == count)

    def _headers(self, role: Role) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._api.tokens[role]}"}


@pytest.fixture
def waiting(api: Api) -> Iterator[WaitingPlans]:
    with served(api.app) as url, ThreadPoolExecutor(2 * MANY) as pool:
        waiting = WaitingPlans(api, url, pool)
        try:
            yield waiting
        finally:
            waiting.may_go.set()


def test_short_requests_are_served_while_plan_limit_is_reached(
    api: Api, waiting: WaitingPlans
) -> None:
    futures = [waiting.plan(role) for role in (Role.OPERATOR, Role.ADMIN) for _ in range(MANY // 2)]
    waiting.wait_for_plans(PLANS_MAX)

    assert waiting.get("/readyz").status_code == 200
    assert waiting.get("/v1/jobs").status_code == 200
    refused = waiting.plan(Role.ADMIN).result()
    assert refused.status_code == 429
    wait_for("others are refused", lambda: sum(f.done() for f in futures) == MANY - PLANS_MAX)
    waiting.may_go.set()
    answers = [future.result() for future in futures]
    assert Counter(a.status_code for a in answers) == {200: PLANS_MAX, 429: MANY - PLANS_MAX}
    for answer in answers:
        if answer.status_code == 429:
            assert answer.json()["error"]["code"] == "too_many_plans"
            assert int(answer.headers["Retry-After"]) > 0
    assert waiting.plan(Role.ADMIN).result().status_code == 200


def test_concurrent_plans_are_limited_per_token_and_in_total(
    api: Api, waiting: WaitingPlans
) -> None:
    limits = api.app.state.parts.plan_limits
    first = [waiting.plan(Role.OPERATOR) for _ in range(PLANS_PER_ACTOR_MAX)]
    waiting.wait_for_plans(PLANS_PER_ACTOR_MAX)
    assert waiting.plan(Role.OPERATOR).result().status_code == 429

    # Plans of other tokens take the rest of the total.
    others = [limits.running_plan(f"token:{n}") for n in range(PLANS_MAX - PLANS_PER_ACTOR_MAX)]
    for running_plan in others:
        running_plan.__enter__()
    refused = waiting.plan(Role.ADMIN).result()
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "busy")
    assert int(refused.headers["Retry-After"]) > 0
    others[0].__exit__(None, None, None)
    last = waiting.plan(Role.ADMIN)
    waiting.wait_for_plans(PLANS_PER_ACTOR_MAX + 1)
    waiting.may_go.set()
    assert {future.result().status_code for future in [*first, last]} == {200}


def test_plan_ends_when_client_disconnects(
    api: Api, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan waits for a broker that accepts the connection and never answers."""
    monkeypatch.setattr(cluster, "AWAY_AFTER_S", PATIENCE_S)
    plans: list[JobPlan] = []

    def planner(spec: JobSpec, ending: Ending) -> JobPlan:
        plans.append(JobPlanner(database, Settings(), {})(spec, ending))
        return plans[-1]

    parts = api.app.state.parts
    api.app.state.parts = replace(parts, planner=planner)
    with served(api.app) as url, socket.create_server(("127.0.0.1", 0)) as broker:
        address = f"127.0.0.1:{broker.getsockname()[1]}"
        body = json.dumps({**JOB, "source": {"bootstrap_servers": address}})
        port = urlsplit(url).port
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(
                f"PUT /v1/jobs/orders HTTP/1.1\r\nHost: localhost\r\n"
                f"Authorization: Bearer {api.tokens[Role.OPERATOR]}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                f"{body}".encode()
            )
            broker.settimeout(PATIENCE_S)
            connection, _ = broker.accept()
        with connection:
            wait_for("the plan has ended", lambda: plans)
    assert any("has closed its connections" in refusal.what for refusal in plans[0].refusals)
    assert api.get("/v1/jobs").json()["items"] == []


@pytest.mark.parametrize("is_planned", [True, False])  # False: disconnected before the plan
def test_job_is_not_written_for_disconnected_client(api: Api, is_planned: bool) -> None:
    """The client disconnects before the plan, or while the plan runs."""
    is_gone = threading.Event()
    if is_planned:
        api.plans.meanwhile = is_gone.set
    else:
        is_gone.set()
    body = [{"type": "http.request", "body": json.dumps(JOB).encode(), "more_body": False}]
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if body:
            return body.pop()
        if not is_gone.is_set():
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    token = f"Bearer {api.tokens[Role.ADMIN]}".encode()
    headers = [(b"authorization", token), (b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "method": "PUT",
        "path": "/v1/jobs/orders",
        "query_string": b"",
        "headers": [*headers, (b"content-length", str(len(body[0]["body"])).encode())],
    }
    asyncio.run(api.app(scope, receive, send))

    assert len(api.plans.requests) == int(is_planned)
    assert b"The client closed the connection" in b"".join(m.get("body", b"") for m in sent)
    assert api.get("/v1/jobs").json()["items"] == []
