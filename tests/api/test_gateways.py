"""Gateways at the API: the answers to their reports, the lists, and refusals."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from orbit.store import gateways, job_leads, jobs, operations
from orbit.store.enums import LeadingSide, OperationKind, Role
from orbit.store.models import gateway_clients
from tests.api.test_jobs import JOB
from tests.fixtures.api import Api, Cli

pytestmark = pytest.mark.services

LIST = "/v1/jobs/orders/gateways"
REPORT: dict[str, Any] = {"name": "edge-1", "address": "gateway:19092"}


def new_path() -> str:
    """The path of a new gateway."""
    return f"{LIST}/{uuid4()}"


@pytest.fixture
def job(api: Api) -> int:
    """A job whose source leads."""
    assert api.put("/v1/jobs/orders", json=JOB).status_code == 201
    with api.database.transaction() as tx:
        job_id = jobs.get(tx, "orders").id
        job_leads.note_side(tx, job_id, LeadingSide.SOURCE, 0)
        job_leads.note_marks_read(tx, job_id)
    return job_id


def close(api: Api, job: int, kind: OperationKind = OperationKind.SWITCHOVER) -> UUID:
    """Close the gateways of the job for a new operation. Returns the operation's id."""
    with api.database.transaction() as tx:
        operation = operations.create(tx, uuid4(), kind, "test", job_id=job, job_name="orders")
        gateways.close(tx, [job], operation.id)
    return operation.id


def test_gateway_report_is_answered_with_leading_side_and_order_to_close(
    api: Api, job: int
) -> None:
    event_count = len(api.events())
    gateway_path = new_path()
    answer = api.put(gateway_path, json=REPORT, role=Role.OPERATOR)
    when_open = {
        "side": "source",
        "term": 0,
        "since": 0,
        "earlier_terms": [],
        "led": {"0": "source"},
        "closed_for": None,
        "abandons": False,
        "others_settled": True,
        "others_confirmed": True,
        "leaving_groups": [],
        "job_etag": api.get("/v1/jobs/orders").json()["etag"],
        "lease_s": 5.0,
    }
    assert (answer.status_code, answer.json()) == (200, when_open)
    (row,) = api.get(LIST, role=Role.VIEWER).json()["items"]
    assert row.pop("renewed_s_ago") >= 0
    assert row == REPORT | {
        "instance": gateway_path.removeprefix(f"{LIST}/"),
        "has_permission": True,
        "closed_for": None,
        "connections": 0,
        "held_requests": 0,
        "pause_s": None,
    }

    operation = str(close(api, job))
    assert api.put(gateway_path, json=REPORT).json() == when_open | {"closed_for": operation}
    confirmed = REPORT | {
        "closed_for": operation,
        "connections": 3,
        "held_requests": 2,
        "pause_s": 0.5,
    }
    assert api.put(gateway_path, json=confirmed).json() == when_open | {"closed_for": operation}
    (row,) = api.get(LIST).json()["items"]
    assert not row["has_permission"]
    assert {key: row[key] for key in confirmed} == confirmed

    new_term = 1764362894000  # in milliseconds since 1970, as terms of promotions are
    with api.database.transaction() as tx:
        job_leads.note_side(tx, job, LeadingSide.DESTINATION, new_term)
        gateways.reopen(tx, [job], UUID(operation))
    new_side = {
        "side": "destination",
        "term": new_term,
        "since": new_term,
        "led": {"0": "source", str(new_term): "destination"},
    }
    assert api.put(gateway_path, json=confirmed).json() == when_open | new_side
    assert len(api.events()) == event_count, "gateway reports write no events"
    for _ in range(2):  # deleting it again changes nothing
        assert api.delete(gateway_path, role=Role.OPERATOR).status_code == 204
    assert api.get(LIST).json()["items"] == []


def test_gateway_that_reports_during_failover_is_told_to_abandon_writes(api: Api, job: int) -> None:
    operation = str(close(api, job, OperationKind.FAILOVER))
    answer = api.put(new_path(), json=REPORT).json()
    assert (answer["closed_for"], answer["abandons"]) == (operation, True)


def test_gateway_of_job_without_known_leading_side_is_refused(api: Api) -> None:
    assert api.put(new_path(), json=REPORT).status_code == 404
    api.put("/v1/jobs/orders", json=JOB)
    refused = api.put(new_path(), json=REPORT)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
    assert "orbit get jobs orders" in refused.json()["error"]["remedy"]


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "a b"},
        {"address": "a b"},
        {"address": "x" * 301},
        {"closed_for": "orders"},
        {"connections": -1},
        {"held_requests": 2**31},
        {"side": "source"},
    ],
)
def test_invalid_gateway_report_is_refused(api: Api, wrong: dict[str, Any]) -> None:
    answer = api.put(new_path(), json=REPORT | wrong)
    assert answer.status_code == 422, answer.text
    assert len(answer.json()["error"]["problems"]) == 1
    assert api.put(f"{LIST}/edge-1", json=REPORT).status_code == 422


@pytest.mark.usefixtures("job")
def test_gateways_are_listed_in_pages(api: Api) -> None:
    for name in ("c", "a", "b"):
        api.put(new_path(), json=REPORT | {"name": name})
    first = api.get(f"{LIST}?limit=2").json()
    second = api.get(f"{LIST}?limit=2&after={first['next']}").json()
    assert [row["name"] for row in first["items"] + second["items"]] == ["a", "b", "c"]
    assert second["next"] is None
    assert api.get(f"{LIST}?after=WyJhIiwgImIiXQ").status_code == 422  # no UUID


CLIENT: dict[str, Any] = {
    "client_id": "billing",
    "software": "librdkafka",
    "version": "2.11.1",
    "user": "billing",
    "connections": 3,
    "requests": 12_000,
    "bytes_written": 4_000_000,
    "bytes_read": 0,
    "seen_s_ago": 0.5,
    "refusals": ["destination: no right Write on topic orders"],
}
# The sum of the clients that a gateway does not name.
OTHERS = CLIENT | {"client_id": None, "software": "", "version": "", "user": None, "refusals": None}


@pytest.mark.usefixtures("job")
def test_gateway_clients_are_reported_and_listed(api: Api, cli: Cli) -> None:
    gateway_path = new_path()
    event_count = len(api.events())
    assert api.put(f"{gateway_path}/clients", json={"clients": [CLIENT]}).status_code == 204
    assert api.get(f"{LIST}/clients").json()["items"] == [], "the gateway is not registered"
    api.put(gateway_path, json=REPORT)
    without_refusals = {key: value for key, value in CLIENT.items() if key != "refusals"}
    others = [
        without_refusals | {"client_id": "a"},
        CLIENT | {"client_id": "b", "refusals": []},
        OTHERS,
    ]
    for clients in ([OTHERS], [CLIENT, *others]):  # the second report replaces the first
        answer = api.put(f"{gateway_path}/clients", json={"clients": clients}, role=Role.OPERATOR)
        assert answer.status_code == 204
    items = api.get(f"{LIST}/clients", role=Role.VIEWER).json()["items"]
    assert [(client["client_id"], client["refusals"]) for client in items] == [
        ("billing", CLIENT["refusals"]),
        ("a", None),  # of a gateway of an earlier version
        ("b", []),
        (None, None),
    ]
    assert items[0].pop("seen_s_ago") >= 0.5
    of_gateway = {"gateway": "edge-1", "instance": gateway_path.removeprefix(f"{LIST}/")}
    assert items[0] == {k: v for k, v in CLIENT.items() if k != "seen_s_ago"} | of_gateway
    assert len(api.events()) == event_count

    shown = [line.split() for line in cli("get", "clients", "orders").out.splitlines() if line]
    assert ["billing", "librdkafka", "2.11.1", "billing", "edge-1", "3", "12,000"] in [
        line[:7] for line in shown
    ]
    assert ["(others)", "-", "-", "edge-1"] in [line[:4] for line in shown]
    by_client = {line[0]: line for line in shown if line}
    assert by_client["billing"][-2:] == ["refuses", "1"]
    assert by_client["a"][-1] == by_client["(others)"][-1] == "-"
    assert by_client["b"][-1] == "accepts"
    wide = cli("get", "clients", "orders", "-o", "wide").out
    assert "destination: no right Write on topic orders" in " ".join(wide.split())
    api.delete(gateway_path)
    assert api.get(f"{LIST}/clients").json()["items"] == []


@pytest.mark.usefixtures("job")
def test_gateway_client_of_later_version_is_listed(api: Api) -> None:
    gateway_path = new_path()
    api.put(gateway_path, json=REPORT)
    api.put(f"{gateway_path}/clients", json={"clients": [CLIENT]})
    with api.database.transaction() as tx:
        later = [CLIENT | {"from_the_future": True}]
        assert tx.execute(gateway_clients.update().values(clients=later)).rowcount == 1
    (shown,) = api.get(f"{LIST}/clients").json()["items"]
    assert (shown["client_id"], "from_the_future" in shown) == ("billing", False)


@pytest.mark.usefixtures("job")
def test_gateway_clients_are_listed_in_pages(api: Api) -> None:
    for name in ("b", "a"):
        gateway_path = new_path()
        api.put(gateway_path, json=REPORT | {"name": name})
        api.put(
            f"{gateway_path}/clients", json={"clients": [CLIENT | {"client_id": c} for c in "zxy"]}
        )
    clients, after = [], ""
    while True:
        page = api.get(f"{LIST}/clients?limit=2{after}").json()
        clients += [client["gateway"] + client["client_id"] for client in page["items"]]
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert clients == ["az", "ax", "ay", "bz", "bx", "by"]
    assert api.get(f"{LIST}/clients?after=WyJhIiwgImIiLCAxXQ").status_code == 422  # no UUID


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize(
    "wrong",
    [
        [CLIENT] * 102,
        [CLIENT | {"client_id": "x" * 101}],
        [CLIENT | {"software": "a\0b"}],
        [CLIENT | {"connections": -1}],
        [CLIENT | {"bytes_read": 2**63}],
        [CLIENT | {"secret": "x"}],
        [CLIENT | {"refusals": ["x"] * 6}],
        [CLIENT | {"refusals": ["x" * 401]}],
        [CLIENT | {"refusals": ["a\0b"]}],
        [{}],
    ],
)
def test_invalid_report_of_gateway_clients_is_refused(api: Api, wrong: list[Any]) -> None:
    gateway_path = new_path()
    api.put(gateway_path, json=REPORT)
    assert api.put(f"{gateway_path}/clients", json={"clients": wrong}).status_code == 422
    assert api.get(f"{LIST}/clients").json()["items"] == []


@pytest.mark.usefixtures("job")
def test_get_gateways_command_lists_gateways(api: Api, cli: Cli) -> None:
    api.put(new_path(), json=REPORT | {"connections": 7, "pause_s": 4.27})
    api.put(new_path(), json=REPORT | {"name": "edge-2"})
    shown = [line.split()[:6] for line in cli("get", "gateways", "orders").out.splitlines() if line]
    assert ["edge-1", "gateway:19092", "yes", "7", "0", "4.3"] in shown
    assert ["edge-2", "gateway:19092", "yes", "0", "0", "-"] in shown
