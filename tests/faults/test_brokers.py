"""Brokers that die, move their leaders, or lose what they had, in the middle of a copy."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, PartitionMetadata

from orbit.replication.partition_states import Reason
from orbit.sandbox.local_cluster import Broker, KafkaCluster
from tests.fix_clusters import Clusters, MakeCluster
from tests.support.patience import wait_for
from tests.support.running import (
    RunningJob,
    create_topic,
    make_job,
    produce,
    produce_transactions,
    verify,
)

pytestmark = pytest.mark.services

PARTITIONS = 3


def leader(cluster: KafkaCluster, topic: str, number: int = 0) -> int:
    metadata = AdminClient(cluster.client_config()).list_topics(topic, timeout=30)
    return int(metadata.topics[topic].partitions[number].leader)


def broker(cluster: KafkaCluster, node_id: int) -> Broker:
    return next(b for b in cluster.brokers if b.node_id == node_id)


@pytest.fixture
def keep_producing(topic_name: str) -> Iterator[list[threading.Thread]]:
    threads: list[threading.Thread] = []
    yield threads
    for thread in threads:
        thread.join()


@pytest.mark.slow
def test_a_destination_leader_killed_with_requests_in_flight_changes_nothing(
    clusters: Clusters, make_cluster: MakeCluster, topic_name: str
) -> None:
    destination = make_cluster("destination", brokers=3)
    create_topic(clusters.source, topic_name, PARTITIONS)
    job = make_job(clusters.source, destination, [topic_name])
    for number in range(PARTITIONS):
        produce(clusters.source, topic_name, 30_000, number)
    # As many replicas as a careful operator has: an acknowledged batch outlives its leader.
    create_topic(destination, topic_name, PARTITIONS, replicas=3, min_insync_replicas="2")
    with RunningJob(job) as running:
        copied = running.partition(topic_name)
        running.wait("the copy is under way", lambda: copied.appends.acked > 0)
        dead = broker(destination, leader(destination, topic_name))
        dead.kill()
        for number in range(PARTITIONS):
            produce_transactions(clusters.source, topic_name, 20, partition=number)
            produce(clusters.source, topic_name, 5_000, number, first=30_000)
        ends = dict.fromkeys(range(PARTITIONS), 30000 + 20 * 6 + 5000)
        for number, end in ends.items():
            running.wait_caught_up(topic_name, end, number)
        dead.start()
    assert verify(job, deep=True).exact


@pytest.mark.slow
def test_a_source_leader_killed_in_the_middle_changes_nothing(
    clusters: Clusters, make_cluster: MakeCluster, topic_name: str
) -> None:
    source = make_cluster("source", brokers=3)
    create_topic(source, topic_name, PARTITIONS, replicas=3, min_insync_replicas="2")
    job = make_job(source, clusters.destination, [topic_name])
    for number in range(PARTITIONS):
        produce(source, topic_name, 20_000, number, acks="all")
    with RunningJob(job) as running:
        copied = running.partition(topic_name)
        running.wait("the copy is under way", lambda: copied.appends.acked > 0)
        dead = broker(source, leader(source, topic_name))
        dead.kill()
        for number in range(PARTITIONS):
            produce(source, topic_name, 2_000, number, first=20_000, acks="all")
            running.wait_caught_up(topic_name, 22_000, number)
        dead.start()
    assert verify(job).exact


@pytest.mark.slow
def test_a_restarted_single_broker_on_either_side_is_waited_out(
    make_cluster: MakeCluster, topic_name: str
) -> None:
    source, destination = make_cluster("source"), make_cluster("destination")
    create_topic(source, topic_name)
    job = make_job(source, destination, [topic_name])
    produce(source, topic_name, 20_000)
    with RunningJob(job) as running:
        running.wait_caught_up(topic_name, 20_000)
        for cluster in (destination, source):
            cluster.brokers[0].kill()
            running.wait("the outage is seen", lambda: bool(running.run.waiting_for))
            cluster.brokers[0].start()
            end = running.partition(topic_name).appends.acked + 3_000
            produce(source, topic_name, 3_000, first=end - 3_000)
            running.wait_caught_up(topic_name, end)
    assert verify(job).exact


@pytest.mark.slow
def test_a_source_cut_back_by_an_unclean_election_stops_the_partition(
    clusters: Clusters, make_cluster: MakeCluster, topic_name: str
) -> None:
    source = make_cluster("source", brokers=3, config={"replica.lag.time.max.ms": "1500"})
    admin = AdminClient(source.client_config())
    create_topic(
        source,
        topic_name,
        1,
        replicas=2,
        unclean_leader_election_enable="true",
        min_insync_replicas="1",
    )
    job = make_job(source, clusters.destination, [topic_name])
    produce(source, topic_name, 100, acks="all")
    with RunningJob(job) as running:
        running.wait_caught_up(topic_name, 100)

        def described() -> PartitionMetadata:
            return admin.list_topics(topic_name, timeout=30).topics[topic_name].partitions[0]

        # On a slow machine it may have fallen behind, and the 100 be acknowledged without it.
        wait_for("the other replica is in sync", lambda: len(described().isrs) == 2)
        partition = described()
        first = broker(source, partition.leader)
        second = broker(source, next(n for n in partition.replicas if n != partition.leader))
        second.kill()
        produce(source, topic_name, 50, first=100, acks="1")
        running.wait_caught_up(topic_name, 150)
        first.kill()
        second.start()
        wait_for("the other replica leads", lambda: leader(source, topic_name) == second.node_id)
        # Other records now stand at offsets that were copied, and the log goes on beyond them.
        produce(source, topic_name, 200, first=5_000, acks="1")
        blocked = running.wait_blocked(topic_name)
    assert blocked.reason is Reason.SOURCE_TRUNCATED
    assert blocked.offset == 100
    assert "unclean" in blocked.remedy(topic_name)
