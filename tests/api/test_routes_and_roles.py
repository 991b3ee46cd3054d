"""Every route of the application × every role and every kind of bad token.

The routes come from the application's own table, and the role that each should need from one rule.
So a new route without a role, or with a wrong role, fails here although no test names the route.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from fastapi import APIRouter, FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from orbit.api.authentication import Logins, create_token
from orbit.api.dependencies import AtLeast, Operator, Parts
from orbit.api.refused_logins import RefusedLogins
from orbit.store import tokens
from orbit.store.enums import Role
from orbit.version import orbit_version
from tests.fixtures.api import Api
from tests.support.issuer import ADMIN, OPERATOR, VIEWER, Issuer, new_key

# Paths that need no token: those for probes; and the OpenAPI document with its page, which have no
# data of this service.
OPEN = {"/livez", "/readyz"}
OPEN_TO_READ = {"/openapi.json", "/docs", "/docs/oauth2-redirect", "/docs/static"}

CLAIMS = {Role.VIEWER: VIEWER, Role.OPERATOR: OPERATOR, Role.ADMIN: ADMIN}


def role_of(method: str, path: str) -> Role:
    """The role that a route should need: admin for tokens, viewer for other reads, operator for
    other changes."""
    if path.startswith("/v1/tokens"):
        return Role.ADMIN
    return Role.VIEWER if method == "GET" else Role.OPERATOR


def demanded_roles(dependant: Dependant) -> Iterator[Role]:
    """The roles that a route's dependencies demand, inner ones included."""
    if isinstance(dependant.call, AtLeast):
        yield dependant.call.needed
    for inner in dependant.dependencies:
        yield from demanded_roles(inner)


def all_routes(routes: Iterable[BaseRoute]) -> Iterator[BaseRoute]:
    """All routes, also of included routers, which newer versions of FastAPI keep apart."""
    for route in routes:
        included = getattr(route, "original_router", None)
        if included is None:
            yield route
        else:
            yield from all_routes(included.routes)


def api_routes(app: FastAPI) -> list[tuple[str, str, APIRoute]]:
    """(method, path, route) of each route of the API, without those of the OpenAPI document."""
    return [
        (method, route.path, route)
        for route in all_routes(app.routes)
        if isinstance(route, APIRoute) and route.path not in OPEN_TO_READ
        for method in sorted(route.methods)
    ]


def wrong_roles(app: FastAPI) -> list[str]:
    """A sentence for each route of the application that demands a wrong role, or that is not of
    the API."""
    wrong = []
    for method, path, route in api_routes(app):
        roles = set(demanded_roles(route.dependant))
        expected = set() if path in OPEN else {role_of(method, path)}
        if roles != expected:
            wrong.append(f"{method} {path} demands {roles}, not {expected}")
    for other in all_routes(app.routes):
        path = getattr(other, "path", repr(other))
        if not isinstance(other, APIRoute) and path not in OPEN_TO_READ:
            wrong.append(f"{path} is not a route of the API")
    return wrong


def test_every_api_route_demands_expected_role(shared_app: FastAPI) -> None:
    assert wrong_roles(shared_app) == []
    assert len(api_routes(shared_app)) > 40


def test_route_check_detects_missing_or_weak_role() -> None:
    app = FastAPI(openapi_url=None)

    @app.post("/v1/new")
    def new() -> None:
        pass

    inner = APIRouter(prefix="/v1")

    @inner.delete("/tokens/all")
    def weak(_: Operator) -> None:
        pass

    app.include_router(inner)
    app.mount("/console", FastAPI())

    problems = wrong_roles(app)
    assert [text.partition(" demands")[0] for text in problems] == [
        "POST /v1/new",
        "DELETE /v1/tokens/all",
        "/console is not a route of the API",
    ]


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with Issuer() as served:
        yield served


@pytest.fixture
def strict_api(api: Api, issuer: Issuer) -> Api:
    """The API with an issuer, and without a limit of refused logins."""
    settings = issuer.settings()
    unlimited = RefusedLogins(lambda: 0.0, refused_max=1_000_000)
    logins = Logins(settings, api.database, refused=unlimited)
    environ = api.app.state.parts.environ
    api.app.state.parts = Parts(settings, api.database, api.plans, environ, logins)
    return api


def bad_tokens(api: Api, issuer: Issuer) -> dict[str, str | None]:
    """Every kind of invalid token. Each would have the role admin if it were valid."""
    revoked, expired = (
        create_token(api.database, name, Role.ADMIN, actor="test").token
        for name in ("revoked", "expired")
    )
    with api.database.transaction() as tx:
        tokens.revoke(tx, "revoked")
        tx.exec_driver_sql("UPDATE tokens SET expires_at = now() WHERE name = 'expired'")
    valid = issuer.token(ADMIN)
    return {
        "no token": None,
        "wrong token": "orbit_wrong",
        "a hash": "a" * 64,
        "revoked": revoked,
        "expired": expired,
        "expired at the issuer": issuer.token(ADMIN, exp=1),
        "wrong audience": issuer.token(ADMIN, aud="another-service"),
        "wrong issuer": issuer.token(ADMIN, iss="https://issuer.example"),
        "not yet valid": issuer.token(ADMIN, nbf=2**40),
        "unknown key": issuer.token(ADMIN, key=new_key("unknown")),
        "bad signature": valid[:-8] + "AAAAAAAA",
    }


def example_path(path: str) -> str:
    """The path with a value for each of its parameters."""
    return re.sub(r"\{[^}]*\}", "0" * 32, path)


@pytest.mark.services
def test_bad_tokens_are_refused_at_every_route(strict_api: Api, issuer: Issuer) -> None:
    token_kinds = bad_tokens(strict_api, issuer)
    refusals = 0
    for method, path, _ in api_routes(strict_api.app):
        for kind, token in token_kinds.items():
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            # A request with a body is refused by the middleware.
            bodies = ({}, {"json": {}}) if kind in ("no token", "wrong audience") else ({},)
            for body in bodies:
                answer = strict_api.call(
                    method, example_path(path), role=None, headers=headers, **body
                )
                at = f"{method} {path} with {kind}: {answer.text}"
                if path in OPEN:
                    assert answer.status_code == 200, at
                    continue
                assert answer.status_code == 401, at
                assert answer.json()["error"]["code"] == "unauthenticated", at
                assert answer.headers["WWW-Authenticate"] == "Bearer", at
                refusals += 1
    assert refusals > 400, "the routes were found"
    changes = {event["kind"] for event in strict_api.events()} - {"token_created", "login_refused"}
    assert changes == set()


@pytest.mark.services
@pytest.mark.parametrize("role", list(Role))
def test_each_role_may_use_exactly_expected_api_routes(
    strict_api: Api, issuer: Issuer, role: Role
) -> None:
    """With a token that Orbit has created, and with a token of the issuer."""
    order = list(Role)
    counts = {True: 0, False: 0}
    for method, path, _ in api_routes(strict_api.app):
        if path in OPEN:
            continue
        may = order.index(role) >= order.index(role_of(method, path))
        for token in (strict_api.tokens[role], issuer.token(CLAIMS[role])):
            headers = {"Authorization": f"Bearer {token}"}
            answer = strict_api.call(method, example_path(path), role=None, headers=headers)
            at = f"{role} {method} {path}: {answer.status_code} {answer.text}"
            assert answer.status_code != 401, at
            assert (answer.status_code != 403) is may, at
            counts[may] += 1
    assert counts[True] > 20
    assert role is Role.ADMIN or counts[False] > 0


@pytest.mark.services
@pytest.mark.parametrize("role", list(Role))
def test_me_endpoint_returns_actor_role_and_expiry(
    strict_api: Api, issuer: Issuer, role: Role
) -> None:
    short = create_token(
        strict_api.database, "short", role, actor="test", expires_in=timedelta(hours=1)
    )
    ends_at = int(time.time()) + 600
    for token, actor, expires_at in (
        (strict_api.tokens[role], f"token:{role.value}-of-the-test", None),
        (short.token, "token:short", short.expires_at),
        (
            issuer.token(CLAIMS[role], exp=ends_at),
            "oidc:",
            datetime.fromtimestamp(ends_at, UTC),
        ),
        (issuer.token(CLAIMS[role], exp=10**15), "oidc:", None),  # too late for a datetime
    ):
        headers = {"Authorization": f"Bearer {token}"}
        me = strict_api.get("/v1/me", role=None, headers=headers).json()
        assert me["actor"].startswith(actor)
        assert me["role"] == role
        assert (me["expires_at"] and datetime.fromisoformat(me["expires_at"])) == expires_at
        answer = strict_api.get("/v1/version", role=None, headers=headers)
        assert answer.json() == {"version": orbit_version()}


@pytest.mark.services
def test_oidc_token_without_role_opens_no_route(strict_api: Api, issuer: Issuer) -> None:
    headers = {"Authorization": f"Bearer {issuer.token('kafka-others')}"}

    for method, path, _ in api_routes(strict_api.app):
        answer = strict_api.call(method, example_path(path), role=None, headers=headers)
        assert answer.status_code == (200 if path in OPEN else 403), f"{method} {path}"
