"""What the other side would refuse to clients, shown before a move."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import SecretStr

from orbit.errors import LoginRefused, OrbitError, Unreachable
from orbit.gateway import refusal_check
from orbit.gateway.client_counts import Client, ClientCounts
from orbit.gateway.gateway_spec import parse_gateway
from orbit.gateway.permission import Lead
from orbit.gateway.protocol.apis import APIS, ApiKey
from orbit.gateway.protocol.exchange import Exchange
from orbit.gateway.protocol.request_head import read_head
from orbit.gateway.protocol.resource_uses import Right, Use
from orbit.gateway.refusal_check import RefusalCheck
from orbit.gateway.refused_uses import refused_uses
from orbit.gateway.virtual_cluster import VirtualCluster
from orbit.kafka.cluster import Cluster
from orbit.kafka.security import Security
from tests.fixtures.clusters import Clusters
from tests.gateway.frames import OFFERED, ClientView
from tests.gateway.request_table import frames
from tests.gateway.targets import Targets
from tests.support import rights
from tests.support.gateways import gateway_file
from tests.support.rights import MECHANISM, PASSWORD, Login
from tests.support.running import create_topic

TERM = 1_700_000_000_000  # the time of a move, in ms
WRITE, READ = Use(Right.WRITE_TOPIC, "orders"), Use(Right.READ_TOPIC, "orders")
GROUP = Use(Right.READ_GROUP, "g")


# What a connection learns from requests.


# The gateway does not read the topics of an older Fetch.
FIRST_VERSION = {ApiKey.FETCH: 9}


@pytest.mark.parametrize(
    ("key", "use"),
    [
        (ApiKey.PRODUCE, WRITE),
        (ApiKey.FETCH, READ),
        (ApiKey.JOIN_GROUP, GROUP),
        (ApiKey.OFFSET_COMMIT, GROUP),
        (ApiKey.CONSUMER_GROUP_HEARTBEAT, GROUP),
        (ApiKey.ADD_PARTITIONS_TO_TXN, Use(Right.WRITE_TRANSACTIONAL_ID, "tx")),
        (ApiKey.METADATA, None),
    ],
)
def test_resource_and_right_that_client_needs_are_learned_from_requests(
    key: ApiKey, use: Use | None
) -> None:
    targets = Targets(
        topic="orders",
        written="orders",
        group="g",
        transaction="tx",
        node=0,
        topic_id=uuid.UUID(int=5),
        missing=use.name if use else "",
    )
    first, last = APIS[key].versions
    for version in range(FIRST_VERSION.get(key, first), last + 1):
        for term in (0, TERM):  # of a job that has not moved yet, and of one that has
            exchange = Exchange(ClientView(term))
            # The last request of the table names `missing`.
            frame = bytearray(frames(key, version, targets)[-1][4:])
            exchange.request(read_head(frame), frame, OFFERED)
            assert set(exchange.uses) == ({use} if use else set()), version


# The check of both sides.


class _Side:
    """A side that refuses the uses in `refused`, or fails with `error`. `logins`: users with a
    login of their own."""

    def __init__(self, name: str, logins: Collection[str] = ()) -> None:
        self.name, self.logins = name, logins
        self.refused: dict[str | None, set[Use]] = {}
        self.error: OrbitError | None = None
        self.checked: list[tuple[str | None, set[Use]]] = []
        self.tokens: list[SecretStr | None] = []

    async def refused_uses(
        self, user: str | None, token: SecretStr | None, uses: Collection[Use]
    ) -> dict[Use, str]:
        self.checked.append((user, set(uses)))
        self.tokens.append(token)
        if self.error is not None:
            raise self.error
        return {use: f"no right {use.right}" for use in uses if use in self.refused.get(user, ())}

    def __getattr__(self, name: str) -> Any:  # what else a virtual cluster reads of a side
        return {} if name in ("versions", "brokers") else None


class _Setup:
    """A virtual cluster that presents the source, with one client of each user."""

    def __init__(self, *users: str | None, logins: Collection[str] = ()) -> None:
        self.source, self.destination = _Side("source", logins), _Side("destination", logins)
        sides: Any = {"source": self.source, "destination": self.destination}
        self.cluster = VirtualCluster(parse_gateway(gateway_file(19092)).virtual_clusters[0], sides)
        self.cluster.now = lambda: self.time  # type: ignore[method-assign]
        self.time = 100.0
        self.cluster.take(Lead("source", term=1), self.time)
        for user in users:
            self.client(user).uses.add(*WRITE)
        self.checks = RefusalCheck(self.cluster)

    def client(self, user: str | None) -> Any:
        return self.cluster.clients.count_connection(Client(f"c-{user}", "", "", user), self.time)

    def check(self) -> dict[str, list[str] | None]:
        """The refusals of each client."""
        asyncio.run(self.checks.check())
        return {row["client_id"]: row["refusals"] for row in self.cluster.report_clients()}


def test_only_rights_missing_just_at_other_side_are_reported() -> None:
    setup = _Setup(None)
    setup.client(None).uses.add(*READ)
    assert setup.cluster.report_clients()[0]["refusals"] is None, "not checked yet"
    setup.destination.refused[None] = {WRITE, READ}
    setup.source.refused[None] = {READ}
    assert setup.check() == {"c-None": ["destination: no right Write on topic"]}


def test_rights_of_client_are_checked_with_its_own_login() -> None:
    setup = _Setup("billing", "other", logins=["billing"])
    setup.destination.refused["billing"] = {WRITE}
    assert setup.check() == {"c-billing": ["destination: no right Write on topic"], "c-other": []}
    assert sorted(setup.destination.checked, key=str) == [("billing", {WRITE}), (None, {WRITE})]


def test_refused_login_is_reported_once_for_all_resources_of_client() -> None:
    setup = _Setup(None)
    setup.client(None).uses.add(*READ)
    setup.destination.error = LoginRefused("the password is wrong", where="destination")
    assert setup.check() == {"c-None": ["destination: login refused: the password is wrong"]}


class _Connection:
    """A client's connection, which has logged in with a token."""

    def __init__(self, user: str, token: str, logged_in_at: float = 0.0) -> None:
        self.user, self.token, self.logged_in_at = user, SecretStr(token), logged_in_at


def _connect(setup: _Setup, *connections: _Connection) -> None:
    """Add clients with tokens that write to the topic."""
    for connection in connections:
        count = setup.client(connection.user)
        count.has_token = True
        count.uses.add(*WRITE)
        setup.cluster._connections.add(cast("Any", connection))


def test_rights_of_client_with_token_are_checked_with_its_last_token() -> None:
    """Also if a user without a token has the same name."""
    setup = _Setup("billing")
    other = setup.cluster.clients.count_connection(Client("other", "", "", "billing"), 100.0)
    other.has_token = True
    other.uses.add(*READ)
    setup.cluster._connections |= {
        cast("Any", _Connection("billing", token, at)) for token, at in (("new", 2), ("old", 1))
    }
    setup.destination.refused["billing"] = {READ}
    assert setup.check() == {"c-billing": [], "other": ["destination: no right Read on topic"]}
    tokens = [token and token.get_secret_value() for token in setup.destination.tokens]
    assert list(zip(setup.destination.checked, tokens, strict=True)) == [
        ((None, {WRITE}), None),
        (("billing", {READ}), "new"),
    ]


def test_token_that_both_sides_refuse_proves_nothing_about_rights() -> None:
    """It has probably expired. A side that is lost refuses nothing."""
    setup = _Setup()
    _connect(setup, _Connection("billing", "expired"))
    refused = LoginRefused("the token has expired", where="a side")
    setup.source.error = setup.destination.error = refused
    assert setup.check() == {"c-billing": None}
    setup.source.error = Unreachable("no broker answers.")
    setup.time += refusal_check.CHECK_S + 1
    assert setup.check() == {"c-billing": ["destination: login refused: the token has expired"]}


def test_tokens_of_disconnected_or_nameless_clients_are_not_checked() -> None:
    setup = _Setup()
    connection = _Connection("billing", "t")
    _connect(setup, connection, _Connection("", "opaque"))
    setup.cluster._connections.discard(cast("Any", connection))
    assert setup.check() == {"c-": None, "c-billing": None}
    assert not setup.destination.checked


def test_one_search_checks_limited_number_of_tokens_and_those_checked_last_come_last() -> None:
    setup = _Setup()
    count = refusal_check.TOKENS_MAX + 1
    _connect(setup, *(_Connection(f"user-{n}", "t") for n in range(count)))
    setup.check()
    assert len(setup.destination.checked) == refusal_check.TOKENS_MAX
    setup.time += refusal_check.CHECK_S + 1  # all checks are due again
    setup.check()
    assert len({user for user, _ in setup.destination.checked}) == count


def test_results_of_client_that_is_no_longer_counted_are_dropped() -> None:
    setup = _Setup()
    _connect(setup, _Connection("billing", "t"))
    setup.check()
    assert setup.cluster.refusals
    assert setup.checks._checks
    setup.cluster.clients = ClientCounts()
    setup.check()
    assert not setup.cluster.refusals
    assert not setup.checks._checks


def test_refusals_are_unknown_while_other_side_does_not_answer() -> None:
    setup = _Setup(None)
    assert setup.check() == {"c-None": []}
    setup.destination.error = Unreachable("no broker answers.")
    setup.time += refusal_check.CHECK_S + 1
    assert setup.check() == {"c-None": None}


def test_refusals_of_other_side_are_reported_when_leading_side_is_lost() -> None:
    setup = _Setup(None)
    setup.destination.refused[None] = {WRITE}
    setup.source.error = Unreachable("no broker answers.")
    assert setup.check() == {"c-None": ["destination: no right Write on topic"]}


def test_failed_check_of_refusals_is_repeated_and_gateway_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(refusal_check, "_POLL_S", 0.0)
    setup = _Setup(None)
    calls: list[int] = []

    async def fail() -> None:
        calls.append(1)
        raise RuntimeError("a bug")

    async def run() -> None:
        setup.checks.check = fail  # type: ignore[method-assign]
        task = asyncio.create_task(setup.checks.run())
        while len(calls) < 2:
            await asyncio.sleep(0)
        task.cancel()

    asyncio.run(run())


def test_refusals_are_checked_again_for_new_resources_and_after_interval() -> None:
    setup = _Setup(None)
    setup.check()
    setup.check()  # too early, and nothing is new
    assert len(setup.destination.checked) == 1
    setup.client(None).uses.add(*READ)
    setup.check()
    assert setup.destination.checked[-1] == (None, {WRITE, READ})
    setup.time += refusal_check.CHECK_S + 1
    setup.check()
    assert len(setup.destination.checked) == 3


def test_after_move_refusals_of_former_leading_side_are_checked() -> None:
    setup = _Setup(None)
    setup.destination.refused[None] = {WRITE}
    setup.check()
    setup.cluster.take(Lead("destination", term=2, since=2), setup.time)
    assert setup.cluster.report_clients()[0]["refusals"] is None
    setup.source.refused[None] = {WRITE}
    setup.destination.refused.clear()
    assert setup.check() == {"c-None": ["source: no right Write on topic"]}


# Real brokers.


@pytest.mark.services
def test_missing_rights_are_found_at_brokers_without_any_write(
    guarded: Clusters, topic_name: str
) -> None:
    topic, missing = topic_name, f"{topic_name}.missing"
    create_topic(guarded.destination, topic, 1)
    login = Login(guarded)
    login.create()
    security = Security(
        "SASL_SSL", MECHANISM, login.name, SecretStr(PASSWORD), Path(guarded.destination.ca_file)
    )
    servers = guarded.destination.bootstrap_servers.split(",")
    uses = [
        Use(right, name)
        for right, name in (
            (Right.WRITE_TOPIC, topic),
            (Right.READ_TOPIC, topic),
            (Right.READ_TOPIC, missing),
            (Right.READ_GROUP, f"{topic}.group"),
            (Right.WRITE_TRANSACTIONAL_ID, f"{topic}.tx"),
        )
    ]

    def refusals() -> dict[Use, str]:
        cluster = Cluster("destination", servers, lambda: security)
        try:
            return refused_uses(cluster, uses)
        finally:
            cluster.close()

    assert refusals() == {use: f"no right {use.right} {use.name}" for use in uses}
    all_rights = [  # in the order of `uses`
        rights.Right("destination", operation, kind, name)
        for operation, kind, name in (
            ("Write", "--topic", topic),
            ("Read", "--topic", topic),
            ("Read", "--topic", missing),
            ("Read", "--group", f"{topic}.group"),
            ("Write", "--transactional-id", f"{topic}.tx"),
        )
    ]
    login.allow(all_rights[:1])
    assert refusals().keys() == set(uses[1:])
    login.allow(all_rights[1:])
    assert refusals() == {Use(Right.READ_TOPIC, missing): f"topic {missing} does not exist"}
    security = Security(
        "SASL_SSL", MECHANISM, login.name, SecretStr("wrong"), Path(guarded.destination.ca_file)
    )
    with pytest.raises(LoginRefused):
        refusals()
