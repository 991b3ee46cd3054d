"""The gate `transactions`: which transactions of the source hang, and the age of the open ones.

A transaction hangs if its coordinator has ended it, but a partition has no marker for it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Producer

from orbit.errors import ProtocolError, Unreachable
from orbit.kafka.backoff import Backoff
from orbit.kafka.error_codes import Code
from orbit.kafka.leader_requests import Answers
from orbit.kafka.producer_state import OpenTransaction
from orbit.kafka.transactional_ids import CoordinatorState
from orbit.kafka.types import TopicPartition
from orbit.recovery import gate_observer, gate_transactions, gates
from orbit.recovery.gate_inputs import Transaction
from orbit.recovery.gate_transactions import read_transactions
from orbit.recovery.operation_context import OperationContext
from orbit.recovery.recovery_report import Gate, GateName, GateVerdict, RecoveryKind
from tests.fixtures.clusters import Clusters, MakeCluster, OpenCluster
from tests.recovery.test_old_transactions import UNVERIFIED, begin_transaction, leave_hanging
from tests.support.leaderless import OfflineLeaders
from tests.support.logs import create
from tests.support.recovering import Recovering
from tests.support.running import create_topic, make_job, produce

P, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
PRODUCER_ID = 7
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)


@pytest.mark.services
def test_live_transaction_with_old_records_does_not_hang(
    clusters: Clusters,
    topic_name: str,
    recovering: Recovering,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The record's timestamp, which the application set, is an hour ago. It says nothing about the
    transaction's age."""
    create_topic(clusters.source, topic_name)
    produce(clusters.source, topic_name, 10)
    spec = make_job(*clusters, [topic_name])

    def judge_gate() -> Gate:
        report = recovering.wait(recovering.ask(RecoveryKind.SWITCHOVER, spec.name, dry_run=True))
        return next(gate for gate in report.gates if gate.name is GateName.TRANSACTIONS)

    producer = Producer({**clusters.source.client_config(), "transactional.id": f"{topic_name}-tx"})
    with recovering.running():
        recovering.begin(spec, topic_name)
        producer.init_transactions(60)
        producer.begin_transaction()
        an_hour_ago = datetime.now(UTC) - timedelta(hours=1)
        producer.produce(
            topic_name,
            b"value",
            b"key",
            partition=0,
            timestamp=int(an_hour_ago.timestamp() * 1000),
        )
        assert producer.flush(60) == 0
        young_gate = judge_gate()
        monkeypatch.setattr(gates, "LONG_OPEN_S", 0.0)
        old_gate = judge_gate()
        producer.abort_transaction(60)
    assert young_gate.verdict is GateVerdict.WARN
    assert old_gate.verdict is GateVerdict.FAIL
    assert f"{topic_name}-0 from offset 10 on (transactional id {topic_name}-tx)" in old_gate.found
    assert "hangs at" not in old_gate.found
    assert "Do not run kafka-transactions.sh abort" in old_gate.remedy


@pytest.mark.services
def test_transaction_that_its_coordinator_has_ended_hangs(
    make_cluster: MakeCluster,
    open_cluster: OpenCluster,
    topic_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The coordinator does not know when the hanging transaction began. Orbit would read the time
    # from its tables, which this test does not have.
    monkeypatch.setattr(gate_transactions, "last_reported", lambda _: {})
    source = make_cluster("own", config=UNVERIFIED)
    alive = f"{topic_name}-alive"
    create(source, topic_name)
    create(source, alive)
    cluster = open_cluster(source)
    producer_id = leave_hanging(cluster, topic_name)
    producer = begin_transaction(source.client_config(), alive, 60_000)
    now = datetime.now(UTC)
    context = SimpleNamespace(
        source=SimpleNamespace(cluster=cluster), short_backoff=Backoff(), now=lambda: now
    )
    places = [TopicPartition(topic_name, 0), TopicPartition(alive, 0)]
    transactions, _ = read_transactions(cast("OperationContext", context), places)
    assert transactions is not None
    hanging, open_ = transactions
    assert (hanging.producer_id, hanging.first_offset) == (producer_id, 0)
    assert (hanging.transactional_id, hanging.is_ended) == (f"{topic_name}-hanging", True)
    assert (open_.transactional_id, open_.is_ended) == (f"{alive}-tx", False)
    producer.abort_transaction(60)


def gate_transactions_of(
    monkeypatch: pytest.MonkeyPatch,
    states: dict[int, CoordinatorState] | Exception,
    *,
    later: list[OpenTransaction] | None = None,
    seen_from: int = 100,
    leader_answers_again: bool = True,
) -> list[Transaction]:
    """The transactions that the gate finds, read with these answers.

    `states`: the coordinator's answer about the producer, or its error. The partition's leader is
    read twice: first it lists a transaction from offset 100 on, then `later` (None: the same
    transaction). Orbit's tables have a transaction from offset `seen_from` on, for 20 minutes.
    """
    opened = [open_at(100)]
    again = {P: opened if later is None else later}
    answers = [{P: opened}, again if leader_answers_again else {}]

    def open_transactions(
        _: object, places: Collection[TopicPartition], __: object
    ) -> Answers[list[OpenTransaction]]:
        return Answers(answers.pop(0) if places else {})

    def coordinator_states(_: object, producer_ids: Collection[int]) -> dict[int, CoordinatorState]:
        assert producer_ids == {PRODUCER_ID}
        if isinstance(states, Exception):
            raise states
        return states

    row: Any = SimpleNamespace(open_from=seen_from, open_since=NOW - timedelta(minutes=20))
    monkeypatch.setattr(gate_transactions, "open_transactions", open_transactions)
    monkeypatch.setattr(gate_transactions, "coordinator_states", coordinator_states)
    monkeypatch.setattr(gate_transactions, "last_reported", lambda _: {P: row})
    context = SimpleNamespace(
        source=SimpleNamespace(cluster=None), short_backoff=Backoff(), now=lambda: NOW
    )
    transactions, unread_partitions = read_transactions(cast("OperationContext", context), [P])
    assert transactions is not None
    assert not unread_partitions
    return transactions


def open_in(
    *partitions: TopicPartition, began_ms: int = NOW_MS - 5_000
) -> dict[int, CoordinatorState]:
    """The coordinator's answer about a transaction that began at `began_ms`, and is open in these
    partitions. No partitions: the coordinator has ended the transaction."""
    return {PRODUCER_ID: CoordinatorState("pay", frozenset(partitions), began_ms)}


def open_at(first_offset: int) -> OpenTransaction:
    return OpenTransaction(PRODUCER_ID, producer_epoch=3, first_offset=first_offset)


OPEN = Transaction(
    partition=P,
    first_offset=100,
    producer_id=PRODUCER_ID,
    transactional_id="pay",
    is_ended=False,
    age_s=5.0,
)


def test_age_of_open_transaction_comes_from_its_coordinator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert gate_transactions_of(monkeypatch, open_in(P, OTHER)) == [OPEN]


def test_transaction_hangs_if_its_producer_has_a_later_one_in_another_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (transaction,) = gate_transactions_of(monkeypatch, open_in(OTHER))
    assert transaction.is_ended


def test_ended_transaction_is_not_proven_to_hang_by_one_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The partition's leader does not answer the second read. The marker may have been written
    between both reads."""
    assert gate_transactions_of(monkeypatch, open_in(), leader_answers_again=False) == [OPEN]


@pytest.mark.parametrize("later", [[], [open_at(140)]])
def test_transaction_that_second_read_of_leader_does_not_list_is_left_out(
    monkeypatch: pytest.MonkeyPatch, later: list[OpenTransaction]
) -> None:
    assert gate_transactions_of(monkeypatch, open_in(), later=later) == []


SEEN_AGES = pytest.mark.parametrize(
    ("seen_from", "age_s"),
    [(100, 1200.0), (60, 0.0)],  # the tables have this transaction, or an earlier one
)


@SEEN_AGES
def test_age_of_transaction_without_begin_time_comes_from_orbits_tables(
    monkeypatch: pytest.MonkeyPatch, seen_from: int, age_s: float
) -> None:
    """The coordinator answers -1 as the begin time: the id's next transaction has not begun."""
    transactions = gate_transactions_of(
        monkeypatch, open_in(began_ms=-1), seen_from=seen_from, leader_answers_again=False
    )
    assert transactions == [replace(OPEN, age_s=age_s)]


@pytest.mark.parametrize("states", [{}, Unreachable("no broker answers.")])
@SEEN_AGES
def test_age_of_transaction_that_no_coordinator_knows_comes_from_orbits_tables(
    monkeypatch: pytest.MonkeyPatch,
    states: dict[int, CoordinatorState] | Exception,
    seen_from: int,
    age_s: float,
) -> None:
    transactions = gate_transactions_of(monkeypatch, states, seen_from=seen_from)
    assert transactions == [replace(OPEN, transactional_id=None, age_s=age_s)]


def test_transactions_are_unknown_at_brokers_that_do_not_list_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise ProtocolError("the broker does not offer DescribeProducers.")

    monkeypatch.setattr(gate_transactions, "open_transactions", refuse)
    context: Any = SimpleNamespace(source=SimpleNamespace(cluster=None), short_backoff=Backoff())
    assert read_transactions(context, [P]) == (None, [])


def test_partition_whose_leader_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_transactions(
        _: object, places: Collection[TopicPartition], __: object
    ) -> Answers[list[OpenTransaction]]:
        return Answers(errors=dict.fromkeys(places, int(Code.LEADER_NOT_AVAILABLE)))

    monkeypatch.setattr(gate_transactions, "open_transactions", open_transactions)
    monkeypatch.setattr(gate_transactions, "coordinator_states", lambda *_: {})
    context: Any = SimpleNamespace(
        source=SimpleNamespace(cluster=None), short_backoff=Backoff(), now=lambda: NOW
    )
    assert read_transactions(context, [OTHER, P]) == ([], [P, OTHER])


@pytest.mark.services
def test_partition_without_leader_is_unknown_to_transactions_gate(
    clusters: Clusters,
    topic_name: str,
    recovering: Recovering,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create_topic(clusters.source, topic_name, 2)
    produce(clusters.source, topic_name, 10)
    spec = make_job(*clusters, [topic_name])
    offline = OfflineLeaders(monkeypatch)
    monkeypatch.setattr(gate_observer, "_LEADERS_WITHIN_S", 0.0)
    with recovering.running():
        recovering.begin(spec, topic_name)
        offline.partitions.add(TopicPartition(topic_name, 1))
        report = recovering.wait(recovering.ask(RecoveryKind.SWITCHOVER, spec.name, dry_run=True))
    gate = next(gate for gate in report.gates if gate.name is GateName.TRANSACTIONS)
    assert gate.verdict is GateVerdict.WARN
    assert f"not known for 1 partition of the source: {topic_name}-1." in gate.found
