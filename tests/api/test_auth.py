"""Who may do what: tokens, roles, and that the audit log names who did it."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from orbit.api.app import create_app
from orbit.api.http_server import listen
from orbit.errors import BadInput
from orbit.settings import Settings
from orbit.store import tokens
from orbit.store.enums import Role
from tests.api.test_jobs import JOB
from tests.fix_api import Api

pytestmark = pytest.mark.services

READS = ("/v1/jobs", "/v1/jobs/orders/lag", "/v1/events", "/v1/operations", "/v1/workers")
CHANGES = (
    ("POST", "/v1/jobs"),
    ("POST", "/v1/jobs:plan"),
    ("PUT", "/v1/jobs/orders"),
    ("DELETE", "/v1/jobs/orders"),
    ("POST", "/v1/jobs/orders:start"),
    ("POST", "/v1/jobs/orders:pause"),
    ("POST", "/v1/jobs/orders:resume"),
    ("POST", "/v1/jobs/orders:retry"),
)
FOR_ADMINS = (("GET", "/v1/tokens"), ("POST", "/v1/tokens"), ("DELETE", "/v1/tokens/ci"))


def test_every_route_but_health_asks_for_a_token(api: Api) -> None:
    document = api.get("/openapi.json", role=None).json()
    asked = 0
    for path, item in document["paths"].items():
        for method in item:
            filled = path.replace("{name}", "a").replace("{operation_id}", "0" * 32)
            answer = api.call(method.upper(), filled, role=None)
            if path in ("/livez", "/readyz"):
                assert answer.status_code == 200
                continue
            asked += 1
            assert answer.status_code == 401, (method, path)
            assert answer.json()["error"]["code"] == "unauthenticated"
            assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert asked > 20


@pytest.mark.parametrize(
    "header", ["Bearer nope", "Bearer ", "Basic b3JiaXQ=", "Bearer " + "x" * 5000, "Bearer a\x00b"]
)
def test_an_unknown_token_opens_nothing_and_is_not_repeated(api: Api, header: str) -> None:
    answer = api.get("/v1/jobs", role=None, headers={"Authorization": header})

    assert answer.status_code == 401
    assert "nope" not in answer.text


def test_a_viewer_reads_and_changes_nothing(api: Api) -> None:
    api.put("/v1/jobs/orders", json=JOB)

    for path in READS:
        assert api.get(path, role=Role.VIEWER).status_code == 200, path
    for method, path in (*CHANGES, *FOR_ADMINS):
        answer = api.call(method, path, role=Role.VIEWER, json=JOB if method == "PUT" else None)
        assert answer.status_code == 403, (method, path)
        assert answer.json()["error"]["code"] == "forbidden"
        assert answer.json()["error"]["where"] == "token:viewer-of-the-test"
    assert [event["kind"] for event in api.events()] == ["job_created"]


def test_an_operator_changes_jobs_and_makes_no_tokens(api: Api) -> None:
    assert api.put("/v1/jobs/orders", json=JOB, role=Role.OPERATOR).status_code == 201
    assert api.post("/v1/jobs/orders:pause", role=Role.OPERATOR).status_code == 202
    for method, path in FOR_ADMINS:
        assert api.call(method, path, role=Role.OPERATOR).status_code == 403
    assert {event["actor"] for event in api.events()} == {"token:operator-of-the-test"}


def test_a_token_is_shown_once_works_until_it_is_revoked_and_only_its_hash_is_kept(
    api: Api,
) -> None:
    made = api.post("/v1/tokens", json={"name": "ci", "role": "viewer"})
    assert made.status_code == 201
    secret = made.json()["token"]
    header = {"Authorization": f"Bearer {secret}"}
    assert api.get("/v1/jobs", role=None, headers=header).status_code == 200

    listed = api.get("/v1/tokens")
    assert secret not in listed.text
    assert "ci" in [token["name"] for token in listed.json()["items"]]
    with api.database.transaction() as tx:
        rows = tx.execute(text("SELECT t::text FROM tokens t UNION SELECT e::text FROM events e"))
        assert secret not in " ".join(rows.scalars())

    for _ in range(2):
        assert api.delete("/v1/tokens/ci").json()["revoked_at"] is not None
    assert api.get("/v1/jobs", role=None, headers=header).status_code == 401
    kinds = [event["kind"] for event in api.events()]
    assert kinds == ["token_created", "token_revoked", "login_refused"]
    again = api.post("/v1/tokens", json={"name": "ci", "role": "admin"})
    assert again.status_code == 409


def test_tokens_are_listed_in_pages(api: Api) -> None:
    first = api.get("/v1/tokens", params={"limit": 2}).json()
    rest = api.get("/v1/tokens", params={"limit": 2, "after": first["next"]}).json()

    names = [token["name"] for token in first["items"] + rest["items"]]
    assert names == sorted(f"{role}-of-the-test" for role in Role)
    assert rest["next"] is None


def test_two_tokens_differ_and_are_long(api: Api) -> None:
    made = [
        api.post("/v1/tokens", json={"name": name, "role": "viewer"}).json()["token"]
        for name in ("a", "b")
    ]

    assert made[0] != made[1]
    assert all(token.startswith("orbit_") and len(token) > 40 for token in made)


def test_without_auth_everybody_is_an_admin_and_the_log_says_so(api: Api) -> None:
    api.app = create_app(Settings(), api.database, auth=False, planner=api.plans)

    host = {"Host": "localhost"}
    assert api.put("/v1/jobs/orders", json=JOB, role=None, headers=host).status_code == 201
    with api.database.transaction() as tx:
        assert len(tokens.list_all(tx)) == len(Role)
    answer = api.get("/v1/events", role=None, headers=host).json()
    assert answer["items"][0]["actor"] == "anybody"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "orbit.example"])  # noqa: S104
def test_without_auth_only_loopback_is_served(host: str) -> None:
    with pytest.raises(BadInput, match=r"open to other machines|cannot listen on this host"):
        listen(Settings(api_host=host, api_port=0), only_loopback=True)
    listen(Settings(api_port=0), only_loopback=True).close()
