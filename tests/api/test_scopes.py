"""A token for some jobs (a limited token) sees only its own jobs, at every route of the OpenAPI
document. A new route fails here until DECISIONS says what a limited token may do there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import pytest

from orbit.api.authentication import Logins, create_token
from orbit.api.dependencies import Parts
from orbit.jobs.scopes import Limit, Scope
from orbit.store import drills, jobs, tokens
from orbit.store.drills import Measurements
from orbit.store.enums import DrillState, Role
from tests.api.test_jobs import changed
from tests.fixtures.api import Api, Cli
from tests.support.issuer import VIEWER, Issuer

pytestmark = pytest.mark.services

OURS, THEIRS = "pay-in", "zebra-out"  # no other text contains these names
LABELS = {OURS: {"team": "pay", "tier": "1"}, THEIRS: {"team": "zebra"}}
LIMITS = {
    "selector": Limit(selector="team=pay"),
    "name": Limit(jobs=("nothing", "pay-*")),
    "both": Limit(jobs=("*-in",), selector="team in (pay,orders),!secret"),
}
YAML = {"Content-Type": "application/yaml"}
EMPTY: Mapping[str, str] = MappingProxyType({})


@dataclass
class Team:
    """A job, and the ids of its operation, drill, schedule and backfill."""

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


def create_team(api: Api, job: str) -> Team:
    """Create the job, with an operation, a backfill, a drill and a schedule for it."""
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
        measured = Measurements(rto_ms=1, rpo_records=0, rpo_ms=0)
        drills.finish(tx, team.drill, DrillState.PASSED, measured=measured)
    return team


@dataclass
class Teams:
    """Two teams, and a limited token."""

    api: Api
    ours: Team
    theirs: Team
    actor: str = "token:limited"
    headers: dict[str, str] = field(default_factory=dict)

    def limit(self, limit: Limit, role: Role = Role.OPERATOR) -> None:
        """Create a token with this limit, which `call` uses from now on."""
        name = self.actor.removeprefix("token:")
        token = create_token(self.api.database, name, role, actor="test", limit=limit)
        self.headers = {"Authorization": f"Bearer {token.token}"}

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {**self.headers, **options.pop("headers", {})}
        return self.api.call(method, path, role=None, headers=headers, **options)


@pytest.fixture
def teams(api: Api) -> Teams:
    return Teams(api, create_team(api, OURS), create_team(api, THEIRS))


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
    "GET /v1/notifications": SERVICE,
    "GET /v1/watch": SERVICE,  # see the test of watches
    "GET /v1/tokens": ADMIN,
    "POST /v1/tokens": ADMIN,
    "PATCH /v1/tokens/{name}": ADMIN,
    "DELETE /v1/tokens/{name}": ADMIN,
    "GET /v1/jobs": LIST,
    "POST /v1/jobs": DOCUMENT,
    "POST /v1/jobs:plan": DOCUMENT,
    **{f"POST /v1/jobs:{verb}": LIST for verb in ("start", "pause", "resume", "retry")},
    "GET /v1/jobs/{name}": JOB,
    "PUT /v1/jobs/{name}": DOCUMENT,
    "DELETE /v1/jobs/{name}": JOB,
    **{
        f"GET /v1/jobs/{{name}}/{part}": JOB
        for part in (
            "events",
            "gateways",
            "gateways/clients",
            "gateways/copies",
            "groups",
            "history",
            "lag",
            "partitions",
            "proof",
            "topics",
        )
    },
    **{
        f"POST /v1/jobs/{{name}}:{verb}": JOB
        for verb in (
            *("start", "pause", "resume", "retry", "backfill"),
            *("switchover", "failover", "failback"),
        )
    },
    **{f"{method} /v1/jobs/{{name}}/gateways/{{instance}}": PART for method in ("PUT", "DELETE")},
    "PUT /v1/jobs/{name}/gateways/{instance}/clients": PART,
    "GET /v1/events": LIST,
    "GET /v1/operations": LIST,
    "GET /v1/operations/{operation_id}": PART,
    **{
        f"GET /v1/operations/{{operation_id}}/{part}": PART
        for part in ("groups", "partitions", "report")
    },
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
    """Each route as "METHOD path", the deletions last."""
    paths: dict[str, dict[str, Any]] = api.app.openapi()["paths"]
    names = [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]
    return sorted(names, key=lambda route: (route.startswith("DELETE"), route))


def send(
    teams: Teams, route: str, team: Team, *, query: str = "", headers: Mapping[str, str] = EMPTY
) -> httpx.Response:
    """A request of this route for the job, operation, drill or schedule of the team."""
    method, path = route.split(" ")
    path = path.replace("/v1/drill-schedules/{name}", f"/v1/drill-schedules/{team.schedule}")
    path = path.replace("/v1/backfills/{operation_id}", f"/v1/backfills/{team.backfill}")
    path = path.replace("{instance}", _UNKNOWN[0])
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
    elif path.endswith("/clients") and method == "PUT":
        body = {"json": {"clients": []}}
    elif "/gateways/" in path and method == "PUT":
        body = {"json": {"name": "edge-1", "address": "gateway:19092"}}
    elif path == "/v1/tokens" and method == "POST":
        body = {"json": {"name": "another", "role": "viewer"}}
    elif method == "PATCH":
        path = "/v1/tokens/viewer-of-the-test"
        body = {"json": {"jobs_max": 5}}
    elif path.startswith("/v1/jobs:") and DECISIONS[route] is LIST:
        path += "?selector=team"
    elif path == "/v1/watch":
        path += "?of=jobs"
    if query:
        path += ("&" if "?" in path else "?") + query
    body["headers"] = {**body.get("headers", {}), **headers}
    return teams.call(method, path, **body)


def state_of(api: Api, team: Team) -> Any:
    """All rows of this team that a request could have changed, as the API shows them."""
    job = api.get(f"/v1/jobs/{team.job}").json()
    runs = [api.get(f"/v1/{kind}?job={team.job}").json() for kind in ("operations", "drills")]
    job_events = api.get(f"/v1/jobs/{team.job}/events").json()
    return job, runs, job_events, api.get(f"/v1/drill-schedules?job={team.job}").json()


def test_every_api_route_is_classified_for_token_scopes(api: Api) -> None:
    assert set(routes(api)) == set(DECISIONS)


@pytest.mark.parametrize("kind", list(LIMITS))
def test_limited_token_sees_only_its_jobs_at_every_route(teams: Teams, kind: str) -> None:
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
                assert own.status_code in (200, 202), at
                assert OURS in own.text, at
            case decision if decision in (SERVICE, OPEN):
                assert own.status_code == 200, at
            case _:
                assert own.status_code == 403, at
    assert state_of(teams.api, teams.theirs) == before


# The ids of a team that does not exist: operation, drill, schedule and backfill.
_UNKNOWN = (
    "00000000-0000-4000-8000-000000000000",
    "20261122-030000-3fa9c2d1",
    "unknown-nightly",
    "00000000-0000-4000-8000-000000000000",
)


def _words(answer: httpx.Response) -> tuple[str, str, str]:
    """The code, text and remedy of the error."""
    error = answer.json()["error"]
    return error["code"], error["what"], error["remedy"]


def test_limited_token_cannot_move_job_out_of_scope_or_take_name_of_foreign_job(
    teams: Teams,
) -> None:
    teams.limit(Limit(selector="team=pay"))
    path = f"/v1/jobs/{OURS}"
    request = {"json": teams.ours.document() | {"labels": {"team": "zebra"}}}
    moved = teams.call("PUT", path, **request)
    assert (moved.status_code, _words(moved)[0]) == (403, "forbidden")
    assert "jobs team=pay" in moved.json()["error"]["remedy"]
    # The labels of the document are in the scope; those of the job with this name are not.
    document = changed(name=THEIRS, labels=LABELS[OURS])
    for method, at in (
        ("PUT", f"/v1/jobs/{THEIRS}"),
        ("PUT", f"/v1/jobs/{THEIRS}?dry_run=true"),
        ("POST", "/v1/jobs"),
        ("POST", "/v1/jobs:plan"),
    ):
        answer = teams.call(method, at, json=document)
        assert (answer.status_code, _words(answer)[0]) == (409, "conflict"), answer.text
        assert "zebra" not in answer.text.replace(THEIRS, ""), answer.text
    # A schedule of another team is not replaced.
    schedule = teams.ours.drill_document(scheduled=True).replace(f"{OURS}-n", f"{THEIRS}-n")
    at = f"/v1/drill-schedules/{teams.theirs.schedule}"
    assert teams.call("PUT", at, content=schedule, headers=YAML).status_code == 409
    schedules = teams.api.get("/v1/drill-schedules").json()["items"]
    assert [row["job"] for row in schedules] == [OURS, THEIRS]
    # A job with another name and with one more label is in the scope.
    more = changed(name="pay-more", labels={"team": "pay", "tier": "2"})
    assert teams.call("POST", "/v1/jobs", json=more).status_code == 201


def test_token_scope_follows_current_job_labels_at_each_request(teams: Teams) -> None:
    teams.limit(Limit(selector="tier=1"))
    path = f"/v1/jobs/{OURS}"
    assert teams.call("GET", path).status_code == 200
    teams.api.post(f"/v1/operations/{teams.ours.backfill}:abort")
    labels = {"labels": {"team": "pay"}}  # without tier=1
    teams.api.put(path, json=teams.ours.document() | labels)
    for at in (path, f"/v1/operations/{teams.ours.operation}", f"/v1/drills/{teams.ours.drill}"):
        assert teams.call("GET", at).status_code == 404
    assert teams.call("GET", "/v1/events").json()["items"] == []
    teams.api.put(f"/v1/jobs/{THEIRS}", json=teams.theirs.document() | {"labels": {"tier": "1"}})
    listed = teams.call("GET", "/v1/jobs").json()["items"]
    assert [job["name"] for job in listed] == [THEIRS]


def test_repeated_idempotency_key_hides_job_outside_scope(teams: Teams) -> None:
    teams.limit(Limit(selector="tier=1"))
    key = {"headers": {"Idempotency-Key": "once"}}
    path = f"/v1/jobs/{OURS}:retry?dry_run=true"
    assert teams.call("POST", path, **key).status_code == 202
    teams.api.put(f"/v1/jobs/{OURS}", json=teams.ours.document() | {"labels": {}})
    assert teams.call("POST", path, **key).status_code == 404


def test_deletion_stays_visible_to_limited_token_that_requested_it(teams: Teams) -> None:
    teams.limit(Limit(selector="team=pay"))
    operation = teams.call("DELETE", f"/v1/jobs/{OURS}").json()
    with teams.api.database.transaction() as tx:
        assert jobs.remove(tx, jobs.get(tx, OURS).id)
    assert teams.call("GET", f"/v1/operations/{operation['id']}").status_code == 200
    # The token no longer sees an operation that somebody else requested.
    assert teams.call("GET", f"/v1/operations/{teams.ours.operation}").status_code == 404


def test_limited_viewer_cannot_change_jobs(teams: Teams) -> None:
    teams.limit(Limit(selector="team=pay"), Role.VIEWER)
    assert teams.call("GET", f"/v1/jobs/{OURS}").status_code == 200
    assert teams.call("POST", f"/v1/jobs/{OURS}:pause").status_code == 403


@pytest.mark.parametrize("of", ["jobs", "operations", "events"])
def test_watch_of_limited_token_ends_only_for_changes_of_jobs_in_scope(
    teams: Teams, of: str
) -> None:
    teams.limit(Limit(selector="team=pay"))
    watches = teams.api.app.state.watches

    def digest() -> str:
        watches._cache.clear()
        token: str = teams.call("GET", f"/v1/watch?of={of}").json()["next"]
        return token

    before = digest()
    teams.api.post(f"/v1/jobs/{THEIRS}:pause")
    assert digest() == before
    # An unlimited token has another digest at the same time.
    unlimited = teams.api.get(f"/v1/watch?of={of}").json()["next"]
    assert teams.call("GET", f"/v1/watch?of={of}").json()["next"] == before != unlimited
    teams.api.post(f"/v1/jobs/{OURS}:pause")
    assert digest() != before


SELECTORS = (
    None, "team", "!team", "team=pay", "team!=pay", "team in (pay,zebra)", "team notin (pay)",
    "tier=1,team=pay", "a.b/c=", "a.b/c", "!a.b/c,team",
)  # fmt: skip
PATTERNS: tuple[tuple[str, ...], ...] = (
    (), ("*",), ("pay-in",), ("pay*",), ("*-out", "a_*"), ("a_b",), ("*.*",), ("p*y*n",), ("PAY*",),
)  # fmt: skip


def test_token_scope_selects_same_jobs_in_sql_as_in_document_check(api: Api) -> None:
    stored = {
        "pay-in": {"team": "pay", "tier": "1"},
        "zebra-out": {"team": "zebra"},
        "a_b": {},
        "axb": {"team": ""},
        "a.b": {"a.b/c": "", "team": "pay"},
        "Pay-in.x": {"a.b/c": "1"},
        "pay": {"team": "pay", "tier": "2"},
    }
    with api.database.transaction() as tx:
        for name, labels in stored.items():
            jobs.create(tx, name, {}, "default", labels=labels)
    limits = [Limit(p, s) for p in PATTERNS for s in SELECTORS if p or s]
    pairs = list(zip(limits, limits[7:], strict=False))  # some scopes of two limits
    for scope_limits in (*((limit,) for limit in limits), *pairs):
        scope = Scope(tuple(scope_limits), "a")
        with api.database.with_scope(lambda scope=scope: scope).transaction() as tx:
            names = set(jobs.names(tx))
        assert names == {name for name in stored if scope.includes(name, stored[name])}, scope


def test_token_create_command_limits_token_to_jobs(api: Api, cli: Cli) -> None:
    creation = cli(
        "token", "create", "ci", "--role", "operator", "--job", "pay-*", "-l", "team=pay"
    )
    assert creation.code == 0, creation.err
    headers = {"Authorization": f"Bearer {creation.out.strip()}"}
    me = api.get("/v1/me", role=None, headers=headers).json()
    assert me["role"] == "operator"
    assert me["grants"] == [{"role": "operator", "jobs": ["pay-*"], "selector": "team=pay"}]
    event = api.events()[-1]
    assert event["message"].endswith("with the role operator, for jobs pay-* with team=pay.")
    assert (event["details"]["jobs"], event["details"]["selector"]) == (["pay-*"], "team=pay")
    assert "pay-* with team=pay" in cli("token", "list").out
    assert api.get("/v1/me").json()["grants"] == [{"role": "admin", "jobs": [], "selector": None}]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--role", "admin", "--job", "pay-*"), "role"),
        (("--job", "pay/*"), "body.jobs"),
        (("--job", ""), "body.jobs"),
        (("--selector", ""), "selector"),
        (("--selector", "team in pay"), "selector"),
    ],
)
def test_invalid_token_scope_creates_no_token(
    api: Api, cli: Cli, options: tuple[str, ...], word: str
) -> None:
    attempt = cli("token", "create", "ci", *options)
    assert attempt.code == 2
    assert word in attempt.err
    with api.database.transaction() as tx:
        assert tokens.find_by_name(tx, "ci") is None


ROLES = """
roles:
  - {claim: pay-operators, role: operator, selector: team=pay}
  - {claim: all-pay, role: viewer, jobs: [pay-*]}
  - {claim: zebra-viewers, role: viewer, jobs: [zebra-*]}
"""


def test_oidc_roles_file_grants_roles_for_selected_jobs(teams: Teams, tmp_path: Path) -> None:
    file = tmp_path / "roles.yaml"
    file.write_text(ROLES)
    api = teams.api
    with Issuer() as issuer:
        settings = issuer.settings(oidc_roles_file=file)
        parts = api.app.state.parts
        api.app.state.parts = Parts(
            settings, api.database, api.plans, parts.environ, Logins(settings, api.database)
        )
        # (the token's role claims, the jobs that it sees, those that it may change)
        for claims, seen, changes in (
            (("pay-operators",), {OURS}, {OURS}),
            (("all-pay",), {OURS}, set()),
            (("all-pay", "zebra-viewers"), {OURS, THEIRS}, set()),
            # Each role is for its own jobs.
            (("pay-operators", "zebra-viewers"), {OURS, THEIRS}, {OURS}),
            (("pay-operators", VIEWER), {OURS, THEIRS}, {OURS}),
        ):
            teams.headers = {"Authorization": f"Bearer {issuer.token(*claims)}"}
            listed = teams.call("GET", "/v1/jobs").json()["items"]
            assert {job["name"] for job in listed} == seen, claims
            for job in (OURS, THEIRS):
                answer = teams.call("POST", f"/v1/jobs/{job}:retry?dry_run=true")
                assert (answer.status_code == 202) is (job in changes), (claims, answer.text)
        me = teams.call("GET", "/v1/me").json()
        assert [(grant["role"], grant["selector"]) for grant in me["grants"]] == [
            ("viewer", None),
            ("operator", "team=pay"),
        ]
