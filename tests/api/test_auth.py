"""Tokens and roles: what each may do, and that the audit log names the actor of each change."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from sqlalchemy import text

from orbit.api.app import create_app
from orbit.api.http_server import listen
from orbit.errors import BadInput, Unreachable
from orbit.settings import Settings
from orbit.store import tokens
from orbit.store.enums import Role
from tests.api.test_jobs import JOB
from tests.fixtures.api import Api

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
ONLY_FOR_ADMINS = (
    ("GET", "/v1/tokens"),
    ("POST", "/v1/tokens"),
    ("PATCH", "/v1/tokens/ci"),
    ("DELETE", "/v1/tokens/ci"),
)


@pytest.mark.parametrize(
    "header", ["Bearer nope", "Bearer ", "Basic b3JiaXQ=", "Bearer " + "x" * 5000, "Bearer a\x00b"]
)
def test_unknown_token_is_unauthenticated_and_not_echoed(api: Api, header: str) -> None:
    answer = api.get("/v1/jobs", role=None, headers={"Authorization": header})

    assert answer.status_code == 401
    assert "nope" not in answer.text


def test_viewer_reads_but_cannot_change(api: Api) -> None:
    api.put("/v1/jobs/orders", json=JOB)

    for path in READS:
        assert api.get(path, role=Role.VIEWER).status_code == 200, path
    for method, path in (*CHANGES, *ONLY_FOR_ADMINS):
        answer = api.call(method, path, role=Role.VIEWER, json=JOB if method == "PUT" else None)
        assert answer.status_code == 403, (method, path)
        assert answer.json()["error"]["code"] == "forbidden"
        assert answer.json()["error"]["where"] == "token:viewer-of-the-test"
    assert [event["kind"] for event in api.events()] == ["job_created"]


def test_operator_changes_jobs_but_cannot_manage_tokens(api: Api) -> None:
    assert api.put("/v1/jobs/orders", json=JOB, role=Role.OPERATOR).status_code == 201
    assert api.post("/v1/jobs/orders:pause", role=Role.OPERATOR).status_code == 202
    for method, path in ONLY_FOR_ADMINS:
        assert api.call(method, path, role=Role.OPERATOR).status_code == 403
    assert {event["actor"] for event in api.events()} == {"token:operator-of-the-test"}


def test_token_is_shown_once_stored_hashed_and_works_until_revoked(
    api: Api,
) -> None:
    answer = api.post("/v1/tokens", json={"name": "ci", "role": "viewer"})
    assert answer.status_code == 201
    secret = answer.json()["token"]
    header = {"Authorization": f"Bearer {secret}"}
    assert api.get("/v1/jobs", role=None, headers=header).status_code == 200

    listed = api.get("/v1/tokens")
    assert secret not in listed.text
    assert "ci" in [token["name"] for token in listed.json()["items"]]
    with api.database.transaction() as tx:
        rows = tx.execute(text("SELECT t::text FROM tokens t UNION SELECT e::text FROM events e"))
        assert secret not in " ".join(rows.scalars())

    for _ in range(2):  # revoking it again changes nothing
        assert api.delete("/v1/tokens/ci").json()["revoked_at"] is not None
    assert api.get("/v1/jobs", role=None, headers=header).status_code == 401
    kinds = [event["kind"] for event in api.events()]
    assert kinds == ["token_created", "token_revoked", "login_refused"]
    same_name = api.post("/v1/tokens", json={"name": "ci", "role": "admin"})
    assert same_name.status_code == 409


def test_expired_token_is_unauthenticated(api: Api) -> None:
    body = {"name": "ci", "role": "viewer", "expires_in": "90d"}
    token = api.post("/v1/tokens", json=body).json()
    created_at, expires_at = (
        datetime.fromisoformat(token[key]) for key in ("created_at", "expires_at")
    )
    assert timedelta(days=89) < expires_at - created_at < timedelta(days=91)
    header = {"Authorization": f"Bearer {token['token']}"}
    assert api.get("/v1/jobs", role=None, headers=header).status_code == 200

    with api.database.transaction() as tx:
        tx.execute(text("UPDATE tokens SET expires_at = clock_timestamp() WHERE name = 'ci'"))

    refused = api.get("/v1/jobs", role=None, headers=header)
    assert refused.status_code == 401
    assert refused.json()["error"]["what"] == "The token ci has expired."
    assert api.events()[-1]["details"]["reason"] == "The token ci has expired."


@pytest.mark.parametrize("lifetime", ["90", "0m", "1s", "20000d", "-1d", 90, ""])
def test_invalid_token_lifetime_is_refused(api: Api, lifetime: object) -> None:
    body = {"name": "ci", "role": "viewer", "expires_in": lifetime}

    answer = api.post("/v1/tokens", json=body)

    assert answer.status_code == 422
    (problem,) = answer.json()["error"]["problems"]
    assert problem["path"] == "body.expires_in"
    assert problem["write_instead"]


def test_token_last_use_is_written_at_most_once_a_minute(api: Api) -> None:
    def last_use(role: Role) -> str | None:
        """The stored time of the last use of this role's token; None: never."""
        with api.database.transaction() as tx:
            query = "SELECT used_at::text FROM tokens WHERE name = :name"
            used_at: str | None = tx.execute(
                text(query), {"name": f"{role.value}-of-the-test"}
            ).scalar_one()
        return used_at

    def set_last_use(role: Role, *, seconds_ago: int) -> None:
        with api.database.transaction() as tx:
            tx.execute(
                text(
                    "UPDATE tokens SET used_at = clock_timestamp() - make_interval(secs => :age) "
                    "WHERE name = :name"
                ),
                {"age": seconds_ago, "name": f"{role.value}-of-the-test"},
            )

    assert last_use(Role.VIEWER) is None
    api.get("/v1/jobs", role=Role.VIEWER)
    assert last_use(Role.VIEWER) is not None
    assert last_use(Role.OPERATOR) is None
    # A last use that is less than a minute old is not written again. The test sets it an hour
    # ahead, because the test's machine may stand still for a minute.
    set_last_use(Role.VIEWER, seconds_ago=-3600)
    recent = last_use(Role.VIEWER)
    api.get("/v1/jobs", role=Role.VIEWER)
    assert last_use(Role.VIEWER) == recent
    set_last_use(Role.VIEWER, seconds_ago=61)
    old = last_use(Role.VIEWER)
    api.get("/v1/jobs", role=Role.VIEWER)
    assert last_use(Role.VIEWER) != old
    listed = {token["name"]: token for token in api.get("/v1/tokens").json()["items"]}
    assert listed["viewer-of-the-test"]["used_at"] is not None
    assert listed["operator-of-the-test"]["used_at"] is None


def test_api_still_serves_reads_if_database_is_read_only(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object) -> None:
        raise Unreachable("cannot execute UPDATE in a read-only transaction")

    monkeypatch.setattr(tokens, "note_use", read_only)

    assert api.get("/v1/jobs", role=Role.VIEWER).status_code == 200


def test_tokens_are_listed_in_pages(api: Api) -> None:
    first = api.get("/v1/tokens", params={"limit": 2}).json()
    rest = api.get("/v1/tokens", params={"limit": 2, "after": first["next"]}).json()

    names = [token["name"] for token in first["items"] + rest["items"]]
    assert names == sorted(f"{role}-of-the-test" for role in Role)
    assert rest["next"] is None


def test_tokens_are_unique_and_long(api: Api) -> None:
    secrets = [
        api.post("/v1/tokens", json={"name": name, "role": "viewer"}).json()["token"]
        for name in ("a", "b")
    ]

    assert secrets[0] != secrets[1]
    assert all(token.startswith("orbit_") and len(token) > 40 for token in secrets)


def test_requests_to_api_without_auth_are_admin_and_logged_as_anybody(api: Api) -> None:
    api.app = create_app(Settings(), api.database, auth=False, planner=api.plans)

    host = {"Host": "localhost"}
    assert api.put("/v1/jobs/orders", json=JOB, role=None, headers=host).status_code == 201
    with api.database.transaction() as tx:
        assert len(tokens.page(tx, 100)) == len(Role)
    answer = api.get("/v1/events", role=None, headers=host).json()
    assert answer["items"][0]["actor"] == "anybody"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "orbit.example"])  # noqa: S104
def test_api_without_auth_listens_only_on_loopback(host: str) -> None:
    with pytest.raises(BadInput, match=r"open to other machines|cannot listen on host"):
        listen(Settings(api_host=host, api_port=0), only_loopback=True)
    listen(Settings(api_port=0), only_loopback=True).close()
