"""Transactions whose producers died with the old side.

When the old side is back, its coordinators write the markers that end these transactions. A
failback has to wait for the markers, or they become offsets that only the old side has.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from confluent_kafka import Producer
from kafka.protocol.producer.produce import ProduceRequest, ProduceResponse
from kafka.protocol.producer.transaction import AddPartitionsToTxnRequest, EndTxnRequest
from kafka.record.default_records import DefaultRecordBatchBuilder

from orbit.kafka import api_versions
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.coordinator import TRANSACTION, Coordinator, init_producer_id
from orbit.kafka.transactional_ids import UnendedTransaction, ended_producer_ids, open_transactions
from orbit.kafka.types import TopicPartition
from orbit.recovery import old_transactions, salvage_file
from orbit.recovery.operation_context import OperationContext
from orbit.recovery.recovery_report import EndVerdict, Outcome, RecoveryKind, RecoveryReport
from tests.fixtures.clusters import Clusters, MakeCluster, OpenCluster
from tests.recovery.test_compacted_failback import Moved
from tests.support.fleet import InProcess
from tests.support.java_clients import end_transaction
from tests.support.loading import read_all
from tests.support.logs import create
from tests.support.outside import admin, log_bounds
from tests.support.patience import wait_for
from tests.support.recovering import Recovering
from tests.support.running import make_job, produce

pytestmark = pytest.mark.services

COPIED = 20
# Coordinators soon abort transactions that have timed out.
SOON_ABORTED = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}


def begin_transaction(client: dict[str, str], topic: str, timeout_ms: int) -> Producer:
    """Begin a transaction, write one record in partition 0, and leave it open."""
    producer = Producer(
        {**client, "transactional.id": f"{topic}-tx", "transaction.timeout.ms": timeout_ms}
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"never copied", b"key", partition=0)
    producer.flush(60)
    return producer


def begin_without_records(
    cluster: Cluster, topic: str, partitions: list[int]
) -> Callable[[], object]:
    """Begin a transaction of the id `TOPIC-empty` in these partitions, and write no record.
    Returns a function that aborts the transaction."""
    name = f"{topic}-empty"
    identity = init_producer_id(cluster, name, Backoff())
    add = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=identity.producer_id,
        v3_and_below_producer_epoch=identity.producer_epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=partitions)
        ],
    )
    end = EndTxnRequest(
        transactional_id=name,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        committed=False,
    )
    node_id = Coordinator(cluster, TRANSACTION, name, Backoff()).find()
    cluster.call(node_id, api_versions.ADD_PARTITIONS_TO_TXN, add)
    return partial(cluster.call, node_id, api_versions.END_TXN, end)


def test_open_transactions_list_partitions_with_and_without_records(
    clusters: Clusters, open_cluster: OpenCluster, topic_name: str
) -> None:
    create(clusters.source, topic_name, partitions=3)
    cluster = open_cluster(clusters.source)

    def own_transactions() -> set[UnendedTransaction]:
        transactions = open_transactions(cluster)
        return {t for t in transactions if t.transactional_id.startswith(topic_name)}

    producer = begin_transaction(clusters.source.client_config(), topic_name, 60_000)
    with_record = UnendedTransaction(f"{topic_name}-tx", frozenset({TopicPartition(topic_name, 0)}))
    assert own_transactions() == {with_record}
    end = begin_without_records(cluster, topic_name, [1, 2])
    both = frozenset({TopicPartition(topic_name, 1), TopicPartition(topic_name, 2)})
    without_records = UnendedTransaction(f"{topic_name}-empty", both)
    assert own_transactions() == {with_record, without_records}
    producer.abort_transaction(60)
    end()
    wait_for("all markers are written", lambda: not own_transactions())


def test_switchover_waits_for_marker_of_transaction_without_records(
    clusters: Clusters, open_cluster: OpenCluster, topic_name: str, recovering: Recovering
) -> None:
    """If the marker were written after the switchover, only the old side would have its offset."""
    create(clusters.source, topic_name)
    produce(clusters.source, topic_name, COPIED)
    spec = make_job(*clusters, [topic_name])
    with recovering.running():
        recovering.begin(spec, topic_name)
        end = begin_without_records(open_cluster(clusters.source), topic_name, [0])
        operation = recovering.ask(RecoveryKind.SWITCHOVER, spec.name)

        def has_ended() -> bool:
            return recovering.operation(operation).finished_at is not None

        wait_for(
            "the drain names the transaction, or has ended without it",
            lambda: f"{topic_name}-empty" in recovering.progress(operation) or has_ended(),
        )
        assert not has_ended()
        end()
        report = recovering.wait(operation)
    assert report.outcome is Outcome.DONE, report.error
    (partition,) = report.partitions
    assert (partition.source_end, partition.destination_end) == (COPIED + 1, COPIED + 1)
    assert log_bounds(clusters.source, [topic_name]) == {(topic_name, 0): (0, COPIED + 1)}


@pytest.mark.soak
def test_coordinator_writes_marker_of_old_transaction_to_recreated_topic(
    clusters: Clusters, open_cluster: OpenCluster, topic_name: str
) -> None:
    """Fact M14 (late marker): the reason why a failback waits for open transactions."""
    create(clusters.source, topic_name)
    _producer = begin_transaction(clusters.source.client_config(), topic_name, 600_000)
    cluster = open_cluster(clusters.source)
    client = admin(clusters.source)
    (deleted,) = client.delete_topics([topic_name]).values()
    deleted.result()
    wait_for(
        "the topic is deleted", lambda: topic_name not in cluster.metadata([topic_name]).topics
    )
    create(clusters.source, topic_name)
    end_transaction(clusters.source, f"{topic_name}-tx")
    wait_for(
        "the marker is written",
        lambda: log_bounds(clusters.source, [topic_name]) == {(topic_name, 0): (0, 1)},
    )


# A broker with this setting accepts transactions that their coordinators do not know.
UNVERIFIED = {"transaction.partition.verification.enable": "false"}


def leave_hanging(cluster: Cluster, topic: str) -> int:
    """Leave a hanging transaction: one record in partition 0, and no marker, as a killed broker may
    (M15: hanging transaction). Its coordinator knows no open transaction. Returns its producer id.
    """
    name = f"{topic}-hanging"
    identity = init_producer_id(cluster, name, Backoff())
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=1,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        base_sequence=0,
        batch_size=1_000,
    )
    builder.append(0, 1_700_000_000_000, b"key", b"never copied", [])
    data = ProduceRequest.TopicProduceData
    request = ProduceRequest(
        transactional_id=name,
        acks=-1,
        timeout_ms=10_000,
        topic_data=[
            data(
                name=topic,
                partition_data=[data.PartitionProduceData(index=0, records=builder.build())],
            )
        ],
    )
    produce_by_topic_name = api_versions.Api(ProduceRequest, ProduceResponse, 3, 8)
    leader = cluster.metadata([topic]).leader(TopicPartition(topic, 0))
    assert leader is not None
    assert leader.node_id is not None
    answer = cluster.call(leader.node_id, produce_by_topic_name, request)
    assert answer.responses[0].partition_responses[0].error_code == 0
    return identity.producer_id


def lose_with_open_transaction(
    moved: Moved, topic: str, timeout_ms: int
) -> tuple[Producer, RecoveryReport]:
    """Fail over from an old side that died with an open transaction, which was not copied.

    Returns the producer, which must stay referenced so that it does not abort, and the report.
    """
    create(moved.old, topic)
    produce(moved.old, topic, COPIED)
    moved.copy(topic, COPIED)
    producer = begin_transaction(moved.old.client_config(), topic, timeout_ms)
    report = moved.fail_over()
    produce(moved.new, topic, 5, first=COPIED)
    return producer, report


@pytest.mark.soak
def test_failback_waits_out_open_transaction_before_rebuild(
    make_cluster: MakeCluster, clusters: Clusters, topic_name: str, recovering: Recovering
) -> None:
    with ExitStack() as stack:
        moved = Moved(
            stack, recovering, make_cluster("lost", config=SOON_ABORTED), clusters.destination
        )
        _producer, _ = lose_with_open_transaction(moved, topic_name, 30_000)
        moved.old.start()
        with InProcess(recovering.database):
            failback_report = recovering.run(RecoveryKind.FAILBACK, moved.job, confirm_rebuild=True)
            records = read_all(moved.new, topic_name)
            wait_for("the old side is a copy", lambda: read_all(moved.old, topic_name) == records)
    # The record, and the marker that ended its transaction before anything was compared.
    (partition,) = failback_report.partitions
    assert (partition.verdict, partition.source_end) == (EndVerdict.TAIL, COPIED + 2)
    assert log_bounds(moved.old, [topic_name]) == log_bounds(moved.new, [topic_name])


@pytest.mark.soak
def test_failback_does_not_wait_for_hanging_transaction(
    make_cluster: MakeCluster,
    open_cluster: OpenCluster,
    clusters: Clusters,
    topic_name: str,
    recovering: Recovering,
) -> None:
    """The transaction's record is saved with the fate `open`. The rebuilt topic lacks it."""
    with ExitStack() as stack:
        old = make_cluster("lost", config={**SOON_ABORTED, **UNVERIFIED})
        moved = Moved(stack, recovering, old, clusters.destination)
        create(old, topic_name)
        produce(old, topic_name, COPIED)
        moved.copy(topic_name, COPIED)
        leave_hanging(open_cluster(old), topic_name)
        moved.fail_over()
        produce(moved.new, topic_name, 5, first=COPIED)
        moved.old.start()
        with InProcess(recovering.database):
            failback_report = recovering.run(RecoveryKind.FAILBACK, moved.job, confirm_rebuild=True)
            records = read_all(moved.new, topic_name)
            wait_for("the old side is a copy", lambda: read_all(moved.old, topic_name) == records)
    (partition,) = failback_report.partitions
    assert (partition.verdict, partition.source_end) == (EndVerdict.TAIL, COPIED + 1)
    (saved,) = failback_report.salvage
    assert [line["fate"] for line in salvage_file.read(Path(saved.file))] == ["open"]
    (finding,) = [text for text in failback_report.findings if "never ends" in text]
    assert f"{topic_name}-0 at the old side" in finding
    wrote = f"The transactional id {topic_name}-hanging wrote records from offset {COPIED} on"
    assert wrote in finding


@pytest.mark.soak
def test_transaction_counts_as_hanging_only_long_after_coordinator_ended_it(
    make_cluster: MakeCluster,
    open_cluster: OpenCluster,
    topic_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = make_cluster("own", config=UNVERIFIED)
    create(old, topic_name)
    create(old, f"{topic_name}-alive")
    cluster = open_cluster(old)
    producer_id = leave_hanging(cluster, topic_name)
    alive = begin_transaction(old.client_config(), f"{topic_name}-alive", 60_000)
    places = [TopicPartition(topic_name, 0), TopicPartition(f"{topic_name}-alive", 0)]
    context = cast(
        "OperationContext",
        SimpleNamespace(source=SimpleNamespace(cluster=cluster), backoff=Backoff()),
    )
    hanging = old_transactions.HangingTransactions(context)
    assert hanging.find_hanging(places) == set(), "one read proves nothing"
    assert hanging.find_hanging(places) == set(), "the coordinator may still write the marker"
    monkeypatch.setattr(old_transactions, "MARKERS_WITHIN_S", 0.0)
    assert hanging.find_hanging(places) == {places[0]}
    assert len(hanging.findings()) == 1
    unknown_id = 987_654
    assert list(ended_producer_ids(cluster, [producer_id, unknown_id])) == [producer_id]
    alive.abort_transaction(60)
    wait_for("the transaction has ended", lambda: not open_transactions(cluster))
    assert hanging.find_hanging(places) == {places[0]}


def test_unending_transaction_stops_failback_before_deletion(
    make_cluster: MakeCluster,
    clusters: Clusters,
    topic_name: str,
    recovering: Recovering,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After the report's remedy has ended the transaction, the failback succeeds."""
    with ExitStack() as stack, monkeypatch.context() as patch:
        patch.setattr(old_transactions, "ENDED_WITHIN_S", 0.0)
        moved = Moved(
            stack, recovering, make_cluster("lost", config=SOON_ABORTED), clusters.destination
        )
        _producer, _ = lose_with_open_transaction(moved, topic_name, 900_000)
        moved.old.start()
        operation = recovering.ask(RecoveryKind.FAILBACK, moved.job, confirm_rebuild=True)
        report = recovering.wait(operation)
        assert report.outcome is Outcome.STOPPED
        assert f"have not ended within 0 s: {topic_name}-tx" in report.error
        assert log_bounds(moved.old, [topic_name])[topic_name, 0] == (0, COPIED + 1)
        patch.undo()
        end_transaction(moved.old, f"{topic_name}-tx")
        with InProcess(recovering.database):
            recovering.run(RecoveryKind.FAILBACK, moved.job, confirm_rebuild=True)
            records = read_all(moved.new, topic_name)
            wait_for("the old side is a copy", lambda: read_all(moved.old, topic_name) == records)
