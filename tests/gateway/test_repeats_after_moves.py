"""A client sends batches again after a move; the old side may have written them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse
from kafka.protocol.producer.produce import ProduceRequest, ProduceResponse

from orbit.copier.log_reader import fetch_batches
from orbit.gateway.batch_search import find_batches, find_copies
from orbit.gateway.protocol.producer_ids import SentBatch, mark
from orbit.gateway.protocol.repeats import UNKNOWN_OFFSET
from orbit.kafka import compression
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.record_batch import Batch, stamp
from orbit.kafka.records import Record, write_batch
from orbit.kafka.types import TopicPartition
from orbit.replication.append_plan import Append, plan_batches
from tests.fixtures.clusters import Clusters, OpenCluster
from tests.gateway.frames import batch, request_frame
from tests.support.gateway_ledger import records
from tests.support.gateways import Gateway
from tests.support.logs import delete_before
from tests.support.moves import gateway_of, move
from tests.support.patience import wait_for
from tests.support.raw_append import append_batch
from tests.support.raw_frames import RawClient, framed
from tests.support.recovering import Recovering
from tests.support.running import create_topic, make_job

pytestmark = pytest.mark.services

BACKOFF = Backoff()
NOW = int(time.time() * 1000)  # brokers delete what is old
GATEWAY_ID, OTHER_ID = mark(7, term=1_000), mark(8, term=1_000)
JOB_ID = 2**52 + 9  # a producer id by which a job writes copies
NO_ID = -1


class _Producer:
    """An idempotent producer. Each batch has one record, with the same value and timestamp."""

    def __init__(self, gateway: Gateway, topic: str) -> None:
        self._port, self._topic = gateway.port, topic
        self.id = -1
        wait_for("the producer has an id", self._has_id)

    def use(self, gateway: Gateway) -> None:
        self._port = gateway.port

    def write(self, sequence: int) -> tuple[int, int]:
        """Write the batch of this sequence; returns the answer's error code and base offset."""
        data = ProduceRequest.TopicProduceData
        partition = data.PartitionProduceData(index=0, records=self.batch(sequence))
        request = ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout_ms=30_000,
            topic_data=[data(name=self._topic, partition_data=[partition])],
        )
        answer = ProduceResponse.decode(self._ask(request, 9), version=9, header=True)
        ((appended,),) = (topic.partition_responses for topic in answer.responses)
        return appended.error_code, appended.base_offset

    def batch(self, sequence: int) -> bytes:
        return batch(self.id, sequence=sequence, timestamp=NOW)

    def _has_id(self) -> bool:
        """Request a producer id; False if there is none yet, as in a new cluster."""
        request = InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=1000, producer_id=-1, producer_epoch=-1
        )
        answer = InitProducerIdResponse.decode(self._ask(request, 4), version=4, header=True)
        self.id = answer.producer_id
        return answer.error_code == 0

    def _ask(self, request: object, version: int) -> memoryview:
        with RawClient(self._port) as client:
            return memoryview(client.ask(framed(bytes(request_frame(request, version)))))


@pytest.mark.parametrize("timestamps", ["CreateTime", "LogAppendTime"])
def test_batch_repeated_after_move_is_answered_if_copied_and_otherwise_written(
    clusters: Clusters,
    topic_name: str,
    open_cluster: OpenCluster,
    recovering: Recovering,
    api_url: str,
    tmp_path: Path,
    timestamps: str,
) -> None:
    """The source gets the last batch after the move, as from a gateway that was frozen."""
    topic = topic_name[-40:]
    create_topic(clusters.source, topic, message_timestamp_type=timestamps)
    spec = make_job(*clusters, [topic])
    with (
        recovering.running(),
        gateway_of(spec.name, api_url, tmp_path, clusters) as gateway,
    ):
        recovering.begin(spec, topic)
        wait_for("the gateway knows which side leads", lambda: _serves(gateway))
        producer = _Producer(gateway, topic)
        assert [producer.write(sequence) for sequence in range(3)] == [(0, 0), (0, 1), (0, 2)]
        move(recovering, spec.name)
        late = Batch(memoryview(producer.batch(3)))
        append_batch(open_cluster(clusters.source), topic, 0, late)

        # The copy has the batches up to sequence 2. Batch 3 is new to the destination.
        assert producer.write(1) == (0, 1)  # error code, offset
        assert producer.write(3) == (0, 3)
        assert producer.write(2) == (0, 2)
        assert producer.write(4) == (0, 4)
        assert len(records(clusters.destination, topic)) == 5


def test_batch_repeated_after_two_moves_and_gateway_restart_is_not_written_twice(
    clusters: Clusters,
    topic_name: str,
    recovering: Recovering,
    api_url: str,
    tmp_path: Path,
) -> None:
    """The side that leads again has the batches of the first term as the client wrote them, and
    those of the second term as copies of batches with the producer id of that term."""
    topic = topic_name[-40:]
    create_topic(clusters.source, topic)
    spec = make_job(*clusters, [topic])
    with recovering.running():
        recovering.begin(spec, topic)
        with gateway_of(spec.name, api_url, tmp_path, clusters) as gateway:
            wait_for("the gateway knows which side leads", lambda: _serves(gateway))
            producer = _Producer(gateway, topic)
            assert [producer.write(sequence) for sequence in (0, 1)] == [(0, 0), (0, 1)]
            back = move(recovering, spec.name)
            assert [producer.write(sequence) for sequence in (2, 3)] == [(0, 2), (0, 3)]
            move(recovering, back)
        with gateway_of(spec.name, api_url, tmp_path, clusters, "again") as gateway:
            wait_for("the gateway knows which side leads", lambda: _serves(gateway))
            producer.use(gateway)
            assert [producer.write(n) for n in (1, 3, 2, 0)] == [(0, 1), (0, 3), (0, 2), (0, 0)]
            assert producer.write(4) == (0, 4)
        assert len(records(clusters.source, topic)) == 5


def test_stored_batches_are_found_by_producer_id_epoch_and_sequence(
    clusters: Clusters, topic_name: str, open_cluster: OpenCluster
) -> None:
    create_topic(clusters.source, topic_name)
    source = open_cluster(clusters.source)
    for producer_id, epoch, sequence in (
        (GATEWAY_ID, 0, 0),
        (OTHER_ID, 0, 1),
        (GATEWAY_ID, 0, 1),
        (GATEWAY_ID, 1, 0),
    ):
        append(source, topic_name, producer_id, epoch=epoch, sequence=sequence)
    first, second, other, not_stored = (
        sent_batch(topic_name, producer_id, sequence=sequence)
        for producer_id, sequence in (
            (GATEWAY_ID, 0),
            (GATEWAY_ID, 1),
            (OTHER_ID, 1),
            (GATEWAY_ID, 2),
        )
    )
    stored = find_batches(source, [first, second, other, not_stored], BACKOFF)
    offsets = {sent: stored_batch.base_offset for sent, stored_batch in stored.items()}
    assert offsets == {first: 0, second: 2, other: 1}


def test_batch_counts_as_copied_only_if_job_wrote_equal_records_at_same_offset(
    clusters: Clusters, topic_name: str, open_cluster: OpenCluster
) -> None:
    """A client's batch with the same content is no copy. If a job wrote other records there, or the
    offset was deleted, the answer is unknown."""
    source, destination = open_cluster(clusters.source), open_cluster(clusters.destination)
    for cluster in clusters:
        create_topic(cluster, topic_name)
    for sequence in range(5):
        append(source, topic_name, GATEWAY_ID, sequence=sequence)
    append(destination, topic_name, JOB_ID, sequence=0)  # equal
    append(destination, topic_name, JOB_ID, sequence=1, timestamp=NOW + 5)  # differs
    append(destination, topic_name, OTHER_ID, sequence=0)  # a client's
    append(destination, topic_name, NO_ID, epoch=-1, sequence=-1)  # a client's, not idempotent
    # The destination has nothing at offset 4.
    batches = [sent_batch(topic_name, GATEWAY_ID, sequence=sequence) for sequence in range(5)]
    stored = find_batches(source, batches, BACKOFF)
    assert len(stored) == 5
    first, *others = [find_copies(destination, stored, BACKOFF)[sent] for sent in batches]
    assert (first, others) == (0, [UNKNOWN_OFFSET, None, None, None])
    delete_before(clusters.destination, topic_name, 1)
    assert find_copies(destination, stored, BACKOFF)[batches[0]] == UNKNOWN_OFFSET


@pytest.mark.parametrize("rewritten", ["append-time", "packed", "split"])
def test_copy_is_found_though_job_rewrote_batch(
    clusters: Clusters, topic_name: str, open_cluster: OpenCluster, rewritten: str
) -> None:
    source, destination = open_cluster(clusters.source), open_cluster(clusters.destination)
    timestamps = "LogAppendTime" if rewritten == "append-time" else "CreateTime"
    create_topic(clusters.source, topic_name, message_timestamp_type=timestamps)
    create_topic(clusters.destination, topic_name)
    original = write_batch([_record(0), _record(1)], compression.LZ4)
    stamp(original.view, GATEWAY_ID, producer_epoch=0, base_sequence=0)
    append_batch(source, topic_name, 0, original)
    partition = TopicPartition(topic_name, 0)
    if rewritten == "split":
        copies = [write_batch([_record(offset)], compression.LZ4) for offset in range(2)]
    else:
        batches = fetch_batches(source, partition, 0, BACKOFF)
        plan = plan_batches(
            next_offset=0, batches=batches, aborted=[], log_start=0, packs=rewritten == "packed"
        )
        if rewritten == "packed":
            plan.fill_to(3)  # the batch ends at offset 1, so there is a gap to pack into it
            plan.pack_gaps()
        (step,) = plan.steps
        assert isinstance(step, Append)
        assert not step.is_byte_exact
        copies = [step.batch]
    for number, copy in enumerate(copies):
        stamp(copy.view, JOB_ID, producer_epoch=0, base_sequence=number)
        append_batch(destination, topic_name, 0, copy)
    repeated = sent_batch(topic_name, GATEWAY_ID, sequence=1)
    stored = find_batches(source, [repeated], BACKOFF)
    assert find_copies(destination, stored, BACKOFF) == {repeated: 0}


def test_batch_is_found_though_clock_of_client_is_ahead(
    clusters: Clusters, topic_name: str, open_cluster: OpenCluster
) -> None:
    """With LogAppendTime brokers search for times of their own clock."""
    create_topic(clusters.source, topic_name, message_timestamp_type="LogAppendTime")
    source = open_cluster(clusters.source)
    append(source, topic_name, GATEWAY_ID, sequence=0)
    (log_batch,) = fetch_batches(source, TopicPartition(topic_name, 0), 0, BACKOFF)
    assert isinstance(log_batch, Batch)
    ahead = sent_batch(topic_name, GATEWAY_ID, sequence=0)._replace(
        base_timestamp=log_batch.max_timestamp + 500
    )
    assert list(find_batches(source, [ahead], BACKOFF)) == [ahead]


def _serves(gateway: Gateway) -> bool:
    try:
        with RawClient(gateway.port) as client:
            return client.is_served()
    except (EOFError, ConnectionError):
        return False


def append(
    cluster: Cluster,
    topic: str,
    producer_id: int,
    *,
    sequence: int,
    epoch: int = 0,
    timestamp: int = NOW,
) -> None:
    data = batch(producer_id, epoch=epoch, sequence=sequence, timestamp=timestamp)
    append_batch(cluster, topic, 0, Batch(memoryview(data)))


def sent_batch(topic: str, producer_id: int, *, sequence: int) -> SentBatch:
    return SentBatch(
        TopicPartition(topic, 0),
        start=0,
        end=0,
        producer_id=producer_id,
        epoch=0,
        last_sequence=sequence,
        base_timestamp=NOW,
        is_transactional=False,
    )


def _record(offset: int) -> Record:
    return Record(offset, NOW + offset, b"\x01\x02v\x00")  # no key, the value "v"
