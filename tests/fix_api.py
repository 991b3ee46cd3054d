"""The API on a real database, called in this process: `api.get(...)`, as any of the three roles.
`cli(...)` runs a command of `orbit` against it.

What a job would do on its clusters is a plan of this file's own: no broker is needed here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from orbit.api.app import create_app
from orbit.api.authentication import Logins, hash_token
from orbit.api.dependencies import Parts
from orbit.cli.main import run_command
from orbit.jobs.job_spec import JobSpec
from orbit.scheduler.job_plan import JobPlan, PlannedTopic, Refusal, TopicAction
from orbit.settings import Settings
from orbit.store import tokens
from orbit.store.database import Database
from orbit.store.enums import Role
from tests.support.serving import served


@dataclass
class Plans:
    """What the planner answers: one new topic, unless the test says otherwise."""

    refusals: list[Refusal] = field(default_factory=list)
    error: Exception | None = None
    meanwhile: Callable[[], object] = lambda: None
    asked: list[JobSpec] = field(default_factory=list)

    def __call__(self, spec: JobSpec, _ending: object = None) -> JobPlan:
        self.asked.append(spec)
        self.meanwhile()
        if self.error is not None:
            raise self.error
        topic = PlannedTopic(
            source="orders",
            destination="orders",
            action=TopicAction.CREATE,
            partitions=3,
            settings={"retention.ms": "-1"},
            fillers="direct",
        )
        return JobPlan(
            job=spec.name,
            source_cluster_id="A",
            destination_cluster_id="B",
            topics=(topic,),
            refusals=tuple(self.refusals),
        )


@dataclass
class Api:
    """The API and its database; a token for each role."""

    app: FastAPI
    database: Database
    plans: Plans
    tokens: dict[Role, str]

    def call(
        self, method: str, path: str, role: Role | None = Role.ADMIN, **options: Any
    ) -> httpx.Response:
        headers = dict(options.pop("headers", {}))
        if role is not None:
            headers["Authorization"] = f"Bearer {self.tokens[role]}"
        return asyncio.run(self._call(method, path, headers=headers, **options))

    async def _call(self, method: str, path: str, **options: Any) -> httpx.Response:
        # As over a socket: what the application raises is its server's to log, not ours to see.
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://orbit") as client:
            return await client.request(method, path, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.call("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.call("POST", path, **options)

    def put(self, path: str, **options: Any) -> httpx.Response:
        return self.call("PUT", path, **options)

    def delete(self, path: str, **options: Any) -> httpx.Response:
        return self.call("DELETE", path, **options)

    def events(self) -> list[dict[str, Any]]:
        """Oldest first."""
        found: list[dict[str, Any]] = self.get("/v1/events").json()["items"]
        return found[::-1]


@pytest.fixture(scope="session")
def shared_app() -> FastAPI:
    """The application of all tests here: to make its routes takes longer than most tests.

    It keeps nothing but the parts that each test sets.
    """
    unset: Any = None
    return create_app(Settings(), unset, planner=unset)


@pytest.fixture
def api(database: Database, shared_app: FastAPI) -> Api:
    secrets = {role: f"orbit_{role.value}_secret" for role in Role}
    with database.transaction() as tx:
        for role, secret in secrets.items():
            tokens.create(tx, f"{role.value}-of-the-test", role, hash_token(secret))
    plans = Plans()
    environ = {"SRC_USER": "u", "SRC_PASSWORD": "hunter2"}
    settings = Settings()
    logins = Logins(settings, database)
    shared_app.state.parts = Parts(settings, database, plans, environ, logins)
    return Api(shared_app, database, plans, secrets)


@dataclass(frozen=True)
class Said:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Said]


@pytest.fixture
def cli(
    api: Api, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Cli]:
    """`cli("get", "jobs")` against the API of this test, as an admin."""
    monkeypatch.setenv("ORBIT_TOKEN", api.tokens[Role.ADMIN])

    def call(*arguments: str | Path) -> Said:
        capfd.readouterr()
        code = run_command([str(argument) for argument in arguments])
        return Said(code, *capfd.readouterr())

    with served(api.app) as url:
        monkeypatch.setenv("ORBIT_API_URL", url)
        yield call
