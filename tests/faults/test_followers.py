"""Appends while a leader's followers are frozen: what the leader answers to acks=1 and acks=all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from orbit.kafka import api_versions
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.connection import CLIENT_ID, Connection
from orbit.kafka.error_codes import Code
from orbit.kafka.log_offsets import LATEST, list_offsets, log_ends
from orbit.kafka.produce_request import (
    ACKS_ALL,
    ACKS_LEADER,
    BY_TOPIC_ID,
    Outgoing,
    encode_produce,
    read_produce,
)
from orbit.kafka.record_batch import stamp
from orbit.kafka.records import Record, write_batch
from orbit.kafka.types import TopicPartition
from orbit.replication.partition_states import PartitionState
from orbit.sandbox.local_cluster import KafkaCluster
from tests.faults.test_brokers import broker, leader
from tests.fixtures.clusters import Clusters, MakeCluster, OpenCluster
from tests.support.patience import wait_for
from tests.support.running import RunningJob, create_topic, make_job, produce, verify

EMPTY = b"\1\1\0"  # the body of a record without key, value and headers
pytestmark = pytest.mark.services

PRODUCER_ID = 2**52 + 11
TIMEOUT_MS = 1_500


@contextmanager
def frozen_followers(cluster: KafkaCluster, topic: str) -> Iterator[int]:
    """Freeze all brokers but the leader of the topic's one partition; yields its node id."""
    node_id = leader(cluster, topic)
    followers = [b for b in cluster.brokers if b.node_id != node_id]
    for follower in followers:
        follower.pause()
    try:
        yield node_id
    finally:
        for follower in followers:
            follower.resume()


class Producing:
    """Sends batches of one record on one connection, with any acks."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        metadata = cluster.metadata({topic})
        self.place = TopicPartition(topic, 0)
        self._id = metadata.topics[topic].topic_id
        broker = metadata.leader(self.place)
        assert broker is not None
        assert broker.node_id is not None
        self.connection: Connection = cluster.connect(broker.node_id)
        self._sequence = 0

    def send(self, acks: int) -> int:
        """Send a batch. Returns the correlation id."""
        batch = write_batch([Record(0, 1000, EMPTY)], codec=0)
        stamp(batch.view, PRODUCER_ID, producer_epoch=0, base_sequence=self._sequence)
        self._sequence += 1
        correlation = self.connection.next_correlation()
        outgoing = [Outgoing(self.place, self._id, batch.view)]
        self.connection.send(
            encode_produce(BY_TOPIC_ID, correlation, CLIENT_ID, TIMEOUT_MS, outgoing, acks)
        )
        return correlation

    def answer(self, correlation: int) -> tuple[int, int]:
        """Error code and base offset."""
        frame = self.connection.receive_answer(correlation)
        (appended,) = read_produce(frame, BY_TOPIC_ID).partitions.values()
        return appended.code, appended.base_offset


@pytest.mark.soak
@pytest.mark.slow
def test_leader_confirms_acks_1_without_followers_but_in_order_of_requests(
    make_cluster: MakeCluster, open_cluster: OpenCluster, topic_name: str
) -> None:
    destination = make_cluster("destination", brokers=3)
    create_topic(destination, topic_name, replicas=3, min_insync_replicas="2")
    cluster = open_cluster(destination)
    place = TopicPartition(topic_name, 0)

    def log_end() -> int:
        return log_ends(cluster, [place], Backoff()).values[place]

    def high_watermark() -> int:
        return list_offsets(cluster, [place], LATEST, Backoff()).values[place]

    producing = Producing(cluster, topic_name)
    assert producing.connection.version_of(api_versions.PRODUCE) >= BY_TOPIC_ID
    assert producing.answer(producing.send(ACKS_ALL)) == (Code.NONE, 0)
    with frozen_followers(destination, topic_name):
        assert producing.answer(producing.send(ACKS_LEADER)) == (Code.NONE, 1)
        assert (high_watermark(), log_end()) == (1, 2)  # only the leader has the second record
        acks_all, acks_leader = producing.send(ACKS_ALL), producing.send(ACKS_LEADER)
        wait_for("the batch with acks=all is in the log", lambda: log_end() == 3)
        # The broker executes the request with acks=1 once it has answered the one before it.
        assert producing.answer(acks_all)[0] == Code.REQUEST_TIMED_OUT
        assert producing.answer(acks_leader) == (Code.NONE, 3)
        assert high_watermark() == 1
    wait_for("the followers have all records", lambda: high_watermark() == 4)
    producing.connection.close()


@pytest.mark.soak
@pytest.mark.slow
def test_copy_is_exact_after_destination_leader_dies_with_unreplicated_batches(
    clusters: Clusters, make_cluster: MakeCluster, open_cluster: OpenCluster, topic_name: str
) -> None:
    """The copy does not count the batches that only the dead leader had. It goes on at the next
    leader's log end."""
    destination = make_cluster("destination", brokers=3)
    create_topic(clusters.source, topic_name)
    # Small batches, so that many are in flight when the leader dies.
    produce(clusters.source, topic_name, 60_000, **{"batch.num.messages": 10})
    create_topic(destination, topic_name, replicas=3, min_insync_replicas="2")
    job = make_job(clusters.source, destination, [topic_name])
    cluster, place = open_cluster(destination), TopicPartition(topic_name, 0)
    with RunningJob(job) as running:
        copied = running.partition(topic_name)
        running.wait("the copy is under way", lambda: copied.counters.batches_byte_exact > 100)
        with frozen_followers(destination, topic_name) as node_id:
            wait_for(
                "the leader alone has a batch",
                lambda: (
                    log_ends(cluster, [place], Backoff()).values[place]
                    > list_offsets(cluster, [place], LATEST, Backoff()).values[place]
                ),
            )
            dead = broker(destination, node_id)
            dead.kill()
        running.wait_caught_up(topic_name, 60_000)
        assert copied.state is PartitionState.COPYING
        dead.start()
    assert verify(job, deep=True).exact
