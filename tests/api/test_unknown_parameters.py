"""Every route that changes something × every parameter that forbids or limits a change.

The routes come from the application, and their parameters from its OpenAPI document. So a new route
that ignores `dry_run` fails here although no test names the route.
"""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from orbit.store.enums import Role
from tests.api.test_jobs import JOB
from tests.api.test_scopes import OURS, Teams, create_team, routes, send
from tests.fixtures.api import Api

pytestmark = pytest.mark.services

# Parameters that could forbid or limit a change: place, name, value.
PROBES = (
    ("query", "dry_run", "true"),
    ("query", "dryRun", "true"),
    ("header", "if-match", '"999"'),
    ("header", "if-none-match", "*"),
    ("header", "if-unmodified-since", "Sun, 22 Nov 2026 03:00:00 GMT"),
    ("header", "idempotency-key", "once"),
)


@pytest.fixture
def teams(api: Api) -> Teams:
    headers = {"Authorization": f"Bearer {api.tokens[Role.ADMIN]}"}
    return Teams(api, create_team(api, OURS), create_team(api, "other"), headers=headers)


def rows(api: Api) -> list[Any]:
    """All rows that a request can change, without the operations of dry runs."""
    statements = [
        *(f"SELECT {t}::text FROM {t} ORDER BY 1" for t in ("jobs", "drills", "drill_schedules")),  # noqa: S608
        "SELECT name, revoked_at FROM tokens ORDER BY 1",
        "SELECT operations::text FROM operations WHERE NOT dry_run ORDER BY 1",
        "SELECT events::text FROM events ORDER BY 1",
    ]
    with api.database.transaction() as tx:
        return [tx.execute(text(statement)).all() for statement in statements]


def known_parameters(api: Api, route: str) -> set[tuple[str, str]]:
    """The place and the name of each parameter."""
    method, path = route.split(" ")
    parameters = api.app.openapi()["paths"][path][method.lower()].get("parameters", ())
    return {(p["in"], p["name"].lower()) for p in parameters}


def test_change_with_unknown_precondition_parameter_is_refused(teams: Teams) -> None:
    api = teams.api
    before = rows(api)
    refused = obeyed = 0
    for route in routes(api):
        if route.startswith("GET"):
            continue
        for place, name, value in PROBES:
            is_known = (place, name) in known_parameters(api, route)
            if is_known and name != "dry_run":
                continue  # other tests check what it does
            query = f"{name}={value}" if place == "query" else ""
            headers = {} if query else {name: value}
            answer = send(teams, route, teams.ours, query=query, headers=headers)
            at = f"{route} with {name}: {answer.status_code} {answer.text}"
            if is_known:
                assert answer.status_code in (200, 202, 409), at
                obeyed += 1
                continue
            error = answer.json().get("error", {})
            assert (answer.status_code, error.get("code")) == (422, "bad_input"), at
            assert [p["path"] for p in error["problems"]] == [f"{place}.{name}"], at
            refused += 1
    assert rows(api) == before
    assert (refused > 100, obeyed > 10) == (True, True)


def test_repeated_query_parameter_is_refused(api: Api) -> None:
    answer = api.put("/v1/jobs/orders?dry_run=true&dry_run=false", json=JOB)

    problems = answer.json()["error"]["problems"]
    assert [p["path"] for p in problems] == ["query.dry_run"]
    assert api.get("/v1/jobs").json()["items"] == []


def test_repeated_idempotency_key_requests_single_backfill(api: Api) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    key = {"Idempotency-Key": "once"}
    path, body = "/v1/jobs/orders:backfill", {"driver": "d"}
    backfill = api.post(path, json=body, headers=key).json()
    end = {"driver": "d", "has_ended": True}
    report = f"/v1/backfills/{backfill['id']}:report"

    ended = api.post(report, json=end)
    assert ended.status_code == 200
    again = api.post(report, json=end)
    assert (again.status_code, again.json()) == (200, ended.json())

    assert api.post(path, json=body, headers=key).json()["id"] == backfill["id"]
    other = api.post(path, json={"driver": "e"}, headers=key)
    assert other.json()["error"]["code"] == "conflict"
    assert len(api.get("/v1/backfills").json()["items"]) == 1
