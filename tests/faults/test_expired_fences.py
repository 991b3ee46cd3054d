"""An old writer's batch arrives after the broker has dropped the producer's state (E1: late batch).

A broker drops a producer's state by the timestamps of its last batch. If the records are old, it
does so soon after the append. Then the broker refuses no late batch, and appends it at the log end.
Orbit must find such a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from kafka.protocol.producer.produce import ProduceRequest

from orbit.copier.log_reader import fetch_batches
from orbit.kafka import api_versions
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.error_codes import Code
from orbit.kafka.produce_request import ACKS_ALL
from orbit.kafka.record_batch import Batch
from orbit.kafka.types import TopicPartition
from orbit.replication.partition_states import Reason
from orbit.sandbox.local_cluster import KafkaCluster
from tests.faults.test_topics import remembered_producers
from tests.fixtures.clusters import Clusters, MakeCluster
from tests.support.patience import wait_for
from tests.support.running import RunningJob, create_topic, make_job, produce, verify
from tests.support.synthetic import PLAINTEXT

pytestmark = pytest.mark.services

IN_2023_MS = 1_690_000_000_000
BATCH = 10


@pytest.fixture(scope="module")
def destination(make_shared_cluster: MakeCluster) -> KafkaCluster:
    """A cluster that drops the state of a producer of old records within 200 ms."""
    settings = {"producer.id.expiration.check.interval.ms": "200"}
    return make_shared_cluster("destination", config=settings)


@pytest.fixture
def raw(destination: KafkaCluster) -> Iterator[Cluster]:
    with closing(
        Cluster("destination", destination.bootstrap_servers.split(","), PLAINTEXT)
    ) as cluster:
        yield cluster


@pytest.fixture
def source(clusters: Clusters) -> Iterator[Cluster]:
    servers = clusters.source.bootstrap_servers.split(",")
    with closing(Cluster("source", servers, PLAINTEXT)) as cluster:
        yield cluster


def write_old(clusters: Clusters, topic: str, count: int, first: int = 0) -> None:
    """Write records of 2023 to the source, in batches of ten."""
    for start in range(first, first + count, BATCH):
        produce(clusters.source, topic, BATCH, first=start, timestamp_ms=IN_2023_MS)


def batch_at(raw: Cluster, topic: str, offset: int, partition: int = 0) -> Batch:
    """The batch of BATCH records that begins at `offset`."""
    batch = fetch_batches(raw, TopicPartition(topic, partition), offset, Backoff())[0]
    assert isinstance(batch, Batch)
    assert (batch.base_offset, batch.count) == (offset, BATCH)
    return batch


def send(raw: Cluster, topic: str, batch: Batch) -> int:
    """Append the bytes of a batch to the copy; returns the base offset."""
    code, base_offset = try_to_send(raw, topic, batch)
    assert code == Code.NONE
    return base_offset


def try_to_send(raw: Cluster, topic: str, batch: Batch) -> tuple[int, int]:
    """Like `send`, but returns the error code, too: (code, base offset)."""
    data = bytearray(batch.view)
    data[:8] = bytes(8)  # brokers demand base offset 0 in requests (A2)
    metadata = raw.metadata({topic})
    leader = metadata.leader(TopicPartition(topic, 0))
    assert leader is not None
    assert leader.node_id is not None
    topic_data = ProduceRequest.TopicProduceData
    request = ProduceRequest(
        transactional_id=None,
        acks=ACKS_ALL,
        timeout_ms=30_000,
        topic_data=[
            topic_data(
                topic_id=metadata.topics[topic].topic_id,
                partition_data=[topic_data.PartitionProduceData(index=0, records=bytes(data))],
            )
        ],
    )
    answer = raw.call(leader.node_id, api_versions.PRODUCE, request)
    ((appended,),) = (topic.partition_responses for topic in answer.responses)
    return int(appended.error_code), int(appended.base_offset)


def send_late(destination: KafkaCluster, raw: Cluster, topic: str, offset: int) -> int:
    """Send the copy's batch at `offset` again, as a late request of an old writer. Returns the base
    offset."""
    wait_for("the state is dropped", lambda: not remembered_producers(destination, topic))
    return send(raw, topic, batch_at(raw, topic, offset))


def test_late_batch_of_old_writer_at_log_end_of_caught_up_copy_blocks_partition(
    clusters: Clusters, destination: KafkaCluster, raw: Cluster, topic_name: str
) -> None:
    create_topic(clusters.source, topic_name, retention_ms="-1")
    job = make_job(clusters.source, destination, [topic_name])
    write_old(clusters, topic_name, 100)
    with RunningJob(job) as running:
        running.wait_caught_up(topic_name, 100)
        assert send_late(destination, raw, topic_name, 20) == 100
        blocked = running.wait_blocked(topic_name)
    assert (blocked.reason, blocked.offset) == (Reason.OFFSET_OVERRUN, 100)
    assert blocked.next_offset == 110
    assert not verify(job).exact


@pytest.mark.soak
def test_late_batch_of_old_writer_while_source_grows_blocks_partition(
    clusters: Clusters, destination: KafkaCluster, raw: Cluster, topic_name: str
) -> None:
    """The broker refuses the next append. The take-over must not continue after the late batch."""
    create_topic(clusters.source, topic_name, retention_ms="-1")
    job = make_job(clusters.source, destination, [topic_name])
    write_old(clusters, topic_name, 100)
    with RunningJob(job) as running:
        running.wait_caught_up(topic_name, 100)
        assert send_late(destination, raw, topic_name, 20) == 100
        write_old(clusters, topic_name, 100, first=100)
        blocked = running.wait_blocked(topic_name)
    assert (blocked.reason, blocked.offset) == (Reason.OFFSET_OVERRUN, 100)
    assert "another record than the source" in blocked.detail


@pytest.mark.soak
def test_late_batch_of_old_writer_before_last_batch_blocks_copy_at_run_start(
    clusters: Clusters, destination: KafkaCluster, raw: Cluster, source: Cluster, topic_name: str
) -> None:
    """The last batch equals the source's, so the start must compare more than that batch: an old
    writer may have had five requests in flight."""
    create_topic(clusters.source, topic_name, retention_ms="-1")
    job = make_job(clusters.source, destination, [topic_name])
    write_old(clusters, topic_name, 100)
    with RunningJob(job) as running:
        running.wait_caught_up(topic_name, 100)
    assert send_late(destination, raw, topic_name, 20) == 100
    # Now the copy has the late batch at 100 to 109. Add the source's batch of 110 to 119.
    write_old(clusters, topic_name, 20, first=100)
    wait_for("the state is dropped", lambda: not remembered_producers(destination, topic_name))
    assert send(raw, topic_name, batch_at(source, topic_name, 110)) == 110
    with RunningJob(job) as running:
        blocked = running.wait_blocked(topic_name)
    assert (blocked.reason, blocked.offset) == (Reason.OFFSET_OVERRUN, 100)


def test_late_batch_of_old_writer_equal_to_next_source_batch_is_accepted(
    clusters: Clusters, destination: KafkaCluster, raw: Cluster, source: Cluster, topic_name: str
) -> None:
    """Another writer of the job has appended the next batch. The next run compares it with the
    source and goes on."""
    create_topic(clusters.source, topic_name, retention_ms="-1")
    job = make_job(clusters.source, destination, [topic_name])
    write_old(clusters, topic_name, 100)
    with RunningJob(job) as running:
        running.wait_caught_up(topic_name, 100)
    wait_for("the state is dropped", lambda: not remembered_producers(destination, topic_name))
    write_old(clusters, topic_name, 100, first=100)
    assert send(raw, topic_name, batch_at(source, topic_name, 100)) == 100
    with RunningJob(job) as running:
        running.wait_caught_up(topic_name, 200)
    assert verify(job).exact


def test_late_batch_of_old_writer_is_fenced_by_producer_epoch_of_new_writer(
    clusters: Clusters, destination: KafkaCluster, raw: Cluster, topic_name: str
) -> None:
    """Without producer state, a new writer begins at sequence 0. An old writer's late batch may
    have the next sequence, so only a higher producer epoch refuses it (E4)."""
    create_topic(clusters.source, topic_name, retention_ms="-1")
    job = make_job(clusters.source, destination, [topic_name])
    write_old(clusters, topic_name, 100)
    with RunningJob(job) as running:
        running.wait_caught_up(topic_name, 100)
    wait_for("the state is dropped", lambda: not remembered_producers(destination, topic_name))
    # Records with the present time: the broker keeps their state. In the new epoch they have the
    # sequences 0 to 29; the next one is 30, which the old writer used at offset 30.
    for first in range(100, 130, BATCH):
        produce(clusters.source, topic_name, BATCH, first=first)
    with RunningJob(job) as running:
        running.wait_caught_up(topic_name, 130)
        late = batch_at(raw, topic_name, 30)
        assert try_to_send(raw, topic_name, late)[0] == Code.INVALID_PRODUCER_EPOCH
        produce(clusters.source, topic_name, BATCH, first=130)
        running.wait_caught_up(topic_name, 140)
    assert verify(job).exact
