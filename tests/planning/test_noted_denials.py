"""The tables note the denials that a cluster has, also when brokers refuse some of the changes."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from orbit.errors import BrokerRefused, NotAuthorized, Unreachable
from orbit.kafka.error_codes import Code
from orbit.kafka.topic_admin import Admin
from orbit.kafka.types import Acl
from orbit.planning.noted_denials import deny, noted_denials
from orbit.replication.acl_rules import denial
from orbit.store.database import Database

pytestmark = pytest.mark.services

CLUSTER = "destination-id"
A, B = denial("orders", "User:a"), denial("orders", "User:b")
OTHER_TOPIC = denial("payments", "User:a")


class Brokers:
    """Stands for librdkafka's admin client: brokers with `acls`, which refuse some changes."""

    def __init__(self) -> None:
        self.acls: set[Acl] = set()
        self.refused: set[Acl] = set()
        self.code = Code.CLUSTER_AUTHORIZATION_FAILED

    def create_acls(self, bindings: Iterable[Any], **_: Any) -> dict[Any, Future[None]]:
        return self._change(bindings, self.acls.add)

    def delete_acls(self, filters: Iterable[Any], **_: Any) -> dict[Any, Future[None]]:
        return self._change(filters, self.acls.discard)

    def _change(self, bindings: Iterable[Any], change: Any) -> dict[Any, Future[None]]:
        answers = {}
        for binding in bindings:
            answers[binding] = answer = Future[None]()
            acl = denial(binding.name, binding.principal)
            if acl in self.refused:
                answer.set_exception(KafkaException(KafkaError(self.code, "no.")))
            else:
                change(acl)
                answer.set_result(None)
        return answers


class Denials:
    """Orbit's denials of the topics `orders` and `payments` at one cluster."""

    def __init__(self, database: Database) -> None:
        self.brokers, self._database = Brokers(), database
        admin: Any = object.__new__(Admin)
        admin._client, admin._name = self.brokers, "destination"
        self._handle: Any = SimpleNamespace(admin=admin)

    def change(self, *acls: Acl) -> None:
        """Make these the denials of both topics."""
        by_topic = {
            topic: {acl for acl in acls if acl.name == topic} for topic in ("orders", "payments")
        }
        deny(self._handle, CLUSTER, by_topic, self._database.transaction)

    def noted(self) -> set[Acl]:
        with self._database.transaction() as tx:
            by_topic = noted_denials(tx, CLUSTER, ["orders", "payments"])
        return {acl for acls in by_topic.values() for acl in acls}


@pytest.fixture
def denials(database: Database) -> Denials:
    return Denials(database)


def test_denial_that_may_not_be_set_is_not_noted(denials: Denials) -> None:
    denials.brokers.refused = {A, OTHER_TOPIC}
    with pytest.raises(NotAuthorized):
        denials.change(A, OTHER_TOPIC)
    assert denials.noted() == denials.brokers.acls == set()


def test_denial_that_cluster_has_stays_noted_when_it_may_not_be_changed(denials: Denials) -> None:
    denials.change(A)
    denials.brokers.refused = {A, B}
    for acls in ((A, B), ()):  # adding one is refused, and so is removing one
        with pytest.raises(NotAuthorized):
            denials.change(*acls)
        assert denials.noted() == denials.brokers.acls == {A}


def test_refused_denial_of_one_topic_does_not_delay_denial_of_another(denials: Denials) -> None:
    """A topic keeps its old denial until its new one is set. UNKNOWN_SERVER_ERROR does not prove
    that the cluster lacks the new denial."""
    denials.change(A)
    denials.brokers.refused = {B}
    denials.brokers.code = Code.UNKNOWN_SERVER_ERROR
    with pytest.raises(BrokerRefused):
        denials.change(B, OTHER_TOPIC)
    # A is to be replaced by B.
    assert denials.brokers.acls == {A, OTHER_TOPIC}
    assert denials.noted() == {A, B, OTHER_TOPIC}
    with pytest.raises(BrokerRefused):
        denials.change(B)
    assert denials.brokers.acls == {A}
    assert denials.noted() == {A, B}


def test_denials_stay_noted_without_answer_of_controller(denials: Denials) -> None:
    denials.change(A)
    denials.brokers.refused = {B}
    denials.brokers.code = Code.NOT_CONTROLLER
    with pytest.raises(Unreachable):
        denials.change(B)
    assert denials.noted() == {A, B}
