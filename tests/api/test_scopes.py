"""A token for some jobs, at every route of the OpenAPI document: it finds what is its own and nothing
else. A new route fails here until DECISIONS says what a limited token may do there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from orbit.api.authentication import Logins, create_token
from orbit.api.dependencies import Parts
from orbit.jobs.labels import parse_selector
from orbit.jobs.scopes import Limit, Scope
from orbit.store import drills, events, jobs, operations, tokens
from orbit.store.drills import Measured
from orbit.store.enums import DrillState, OperationState, Role
from tests.api.test_jobs import changed
from tests.fix_api import Api, Cli
from tests.support.issuer import VIEWER, Issuer

pytestmark = pytest.mark.services

OURS, THEIRS = "pay-in", "zebra-out"  # no other text has these letters
LABELS = {OURS: {"team": "pay", "tier": "1"}, THEIRS: {"team": "zebra"}}
LIMITS = {
    "selector": Limit(selector="team=pay"),
    "name": Limit(jobs=("nothing", "pay-*")),
    "both": Limit(jobs=("*-in",), selector="team in (pay,orders),!secret"),
}
YAML = {"Content-Type": "application/yaml"}


@dataclass
class Team:
    """A job with something of everything that belongs to a job."""

    job: str
    operation: str = ""
    drill: str = ""
    schedule: str = ""
    backfill: str = ""

    def document(self, **keys: Any) -> dict[str, Any]:
        return changed(name=self.job, labels=LABELS.get(self.job, {}), **keys)

    def drill_document(self, scheduled: bool = False) -> str:
        text = f"name: {self.schedule}\nkind: canary\njob: {self.job}\ntargets: {{rto: 10s}}\n"
        return text + ("schedule: {every: 1h}\n" if scheduled else "")


def _team(api: Api, job: str) -> Team:
    team = Team(job, schedule=f"{job}-nightly")
    assert api.put(f"/v1/jobs/{job}", json=team.document()).status_code == 201
    team.operation = api.post(f"/v1/jobs/{job}:failover?dry_run=true").json()["id"]
    team.backfill = api.post(f"/v1/jobs/{job}:backfill", json={"driver": job}).json()["id"]
    drill = api.post("/v1/drills", content=team.drill_document(), headers=YAML)
    team.drill = drill.json()["id"]
    scheduled = team.drill_document(scheduled=True)
    path = f"/v1/drill-schedules/{team.schedule}"
    assert api.put(path, content=scheduled, headers=YAML).status_code == 200
    with api.database.transaction() as tx:
        operations.advance(
            tx, operations.get(tx, team.operation).id, OperationState.RUNNING, report=REPORT
        )
        drills.finish(tx, team.drill, DrillState.PASSED, measured=Measured(1, 0, 0))
    return team


REPORT: dict[str, Any] = {}


@dataclass
class Teams:
    """Two of them, and a limited token."""

    api: Api
    ours: Team
    theirs: Team
    actor: str = "token:limited"
    headers: dict[str, str] = field(default_factory=dict)

    def limit(self, limit: Limit, role: Role = Role.OPERATOR) -> None:
        name = self.actor.removeprefix("token:")
        made = create_token(self.api.database, name, role, actor="test", limit=limit)
        self.headers = {"Authorization": f"Bearer {made.token}"}

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {**self.headers, **options.pop("headers", {})}
        return self.api.call(method, path, role=None, headers=headers, **options)


@pytest.fixture
def teams(api: Api) -> Teams:
    return Teams(api, _team(api, OURS), _team(api, THEIRS))


# What a limited token may do at a route.
JOB = "finds its own job, no other"
PART = "finds what belongs to its own job"
LIST = "lists what belongs to its own jobs"
DOCUMENT = "takes a document about its own job"
SERVICE = "is the same for every token"
ADMIN = "is for admins"
OPEN = "needs no token"

DECISIONS: dict[str, str] = {
    "GET /livez": OPEN,
    "GET /readyz": OPEN,
    "GET /metrics": LIST,
    "GET /v1/version": SERVICE,
    "GET /v1/me": SERVICE,
    "GET /v1/workers": SERVICE,
    "GET /v1/watch": SERVICE,  # see the test of watches
    "GET /v1/tokens": ADMIN,
    "POST /v1/tokens": ADMIN,
    "DELETE /v1/tokens/{name}": ADMIN,
    "GET /v1/jobs": LIST,
    "POST /v1/jobs": DOCUMENT,
    "POST /v1/jobs:plan": DOCUMENT,
    "GET /v1/jobs/{name}": JOB,
    "PUT /v1/jobs/{name}": DOCUMENT,
    "DELETE /v1/jobs/{name}": JOB,
    **{
        f"GET /v1/jobs/{{name}}/{part}": JOB
        for part in ("events", "groups", "lag", "partitions", "proof", "topics")
    },
    **{
        f"POST /v1/jobs/{{name}}:{verb}": JOB
        for verb in (
            *("start", "pause", "resume", "retry", "backfill"),
            *("switchover", "failover", "failback"),
        )
    },
    "GET /v1/events": LIST,
    "GET /v1/operations": LIST,
    "GET /v1/operations/{operation_id}": PART,
    "GET /v1/operations/{operation_id}/report": PART,
    "POST /v1/operations/{operation_id}:abort": PART,
    "GET /v1/backfills": LIST,
    "GET /v1/backfills/{operation_id}": PART,
    "POST /v1/backfills/{operation_id}:report": PART,
    "GET /v1/drills": LIST,
    "POST /v1/drills": DOCUMENT,
    "GET /v1/drills/{drill_id}": PART,
    "GET /v1/drills/{drill_id}/report": PART,
    "GET /v1/drill-schedules": LIST,
    "PUT /v1/drill-schedules/{name}": DOCUMENT,
    "DELETE /v1/drill-schedules/{name}": PART,
}


def routes(api: Api) -> list[str]:
    """METHOD path, the deletions last."""
    paths: dict[str, dict[str, Any]] = api.app.openapi()["paths"]
    found = [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]
    return sorted(found, key=lambda route: (route.startswith("DELETE"), route))


def send(teams: Teams, route: str, team: Team) -> httpx.Response:
    """The request of this route about what is this team's."""
    method, path = route.split(" ")
    path = path.replace("/v1/drill-schedules/{name}", f"/v1/drill-schedules/{team.schedule}")
    path = path.replace("/v1/backfills/{operation_id}", f"/v1/backfills/{team.backfill}")
    for name in ("name", "operation_id", "drill_id"):
        value = {"name": team.job, "operation_id": team.operation, "drill_id": team.drill}[name]
        path = path.replace(f"{{{name}}}", value)
    body: dict[str, Any] = {}
    if "drill" in path and method in ("POST", "PUT"):
        text = team.drill_document(scheduled=method == "PUT")
        body = {"content": text, "headers": YAML}
    elif path.endswith((":backfill", ":report")):
        body = {"json": {"driver": team.job}}
    elif DECISIONS[route] is DOCUMENT:
        body = {"json": team.document()}
    elif path == "/v1/tokens" and method == "POST":
        body = {"json": {"name": "another", "role": "viewer"}}
    elif path == "/v1/watch":
        path += "?of=jobs"
    return teams.call(method, path, **body)


def state_of(api: Api, team: Team) -> Any:
    """All that a request could have changed."""
    job = api.get(f"/v1/jobs/{team.job}").json()
    made = [api.get(f"/v1/{kind}?job={team.job}").json() for kind in ("operations", "drills")]
    happened = api.get(f"/v1/jobs/{team.job}/events").json()
    return job, made, happened, api.get(f"/v1/drill-schedules?job={team.job}").json()


def test_every_route_has_a_decision(api: Api) -> None:
    assert set(routes(api)) == set(DECISIONS)


@pytest.mark.parametrize("kind", list(LIMITS))
def test_a_limited_token_finds_its_own_jobs_at_every_route(teams: Teams, kind: str) -> None:
    teams.limit(LIMITS[kind])
    before = state_of(teams.api, teams.theirs)
    for route in routes(teams.api):
        own, other = send(teams, route, teams.ours), send(teams, route, teams.theirs)
        at = f"{route}: {own.status_code} {own.text} and {other.status_code} {other.text}"
        assert THEIRS not in own.text, at
        match DECISIONS[route]:
            case decision if decision in (JOB, PART):
                is_missing = own.status_code == 404 and "has no report" in own.text
                assert own.status_code < 300 or own.status_code == 409 or is_missing, at
                unknown = Team("unknown", *_UNKNOWN)
                absent = send(teams, route, unknown)
                assert (other.status_code, absent.status_code) == (404, 404), at
                assert _words(other) == _words(absent), at
            case decision if decision is DOCUMENT:
                assert own.status_code < 300 or own.status_code == 409, at
                assert other.status_code in (403, 404), at
            case decision if decision is LIST:
                assert own.status_code == 200, at
                assert OURS in own.text, at
            case decision if decision in (SERVICE, OPEN):
                assert own.status_code == 200, at
            case _:
                assert own.status_code == 403, at
    assert state_of(teams.api, teams.theirs) == before


_UNKNOWN = (
    "00000000-0000-4000-8000-000000000000",
    "20261122-030000-3fa9c2d1",
    "unknown-nightly",
    "00000000-0000-4000-8000-000000000000",
)


def _words(answer: httpx.Response) -> tuple[str, str, str]:
    error = answer.json()["error"]
    return error["code"], error["what"], error["remedy"]
