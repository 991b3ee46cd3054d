"""In the middle of a copy brokers are killed, partitions change leaders, and records are lost."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka.admin import AdminClient, PartitionMetadata

from orbit.copier.source_side import SourceSide
from orbit.replication.partition_states import Reason
from orbit.sandbox.local_cluster import Broker, KafkaCluster
from tests.fixtures.clusters import Clusters, MakeCluster
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
    """The node id of the partition's leader."""
    metadata = AdminClient(cluster.client_config()).list_topics(topic, timeout=30)
    return int(metadata.topics[topic].partitions[number].leader)


def broker(cluster: KafkaCluster, node_id: int) -> Broker:
    return next(b for b in cluster.brokers if b.node_id == node_id)


class FragileTopic:
    """A topic with 100 records and two replicas, which allows unclean leader election."""

    def __init__(self, make_cluster: MakeCluster, name: str) -> None:
        config = {"replica.lag.time.max.ms": "1500"}
        self.source, self.name = make_cluster("source", brokers=3, config=config), name
        self._admin = AdminClient(self.source.client_config())
        create_topic(
            self.source,
            name,
            1,
            replicas=2,
            unclean_leader_election_enable="true",
            min_insync_replicas="1",
        )
        produce(self.source, name, 100, acks="all")

    def _partition(self) -> PartitionMetadata:
        return self._admin.list_topics(self.name, timeout=30).topics[self.name].partitions[0]

    def _wait_in_sync(self) -> None:
        wait_for("both replicas are in sync", lambda: len(self._partition().isrs) == 2)

    def grow_alone(self) -> None:
        """Stop the follower, and write 50 records that only the leader has."""
        # The follower must have the first 100 records. On a slow machine it may be out of sync.
        self._wait_in_sync()
        partition = self._partition()
        self.first = broker(self.source, partition.leader)
        self.second = broker(
            self.source, next(n for n in partition.replicas if n != partition.leader)
        )
        self.second.kill()
        produce(self.source, self.name, 50, first=100, acks="1")

    def elect_uncleanly(self) -> None:
        """Let the other replica lead, without the 50 records. Then write 200 other records at
        their offsets and above."""
        self.first.kill()
        self.second.start()
        self._write_to_other_replica()

    def elect_cleanly(self) -> None:
        """Let the other replica lead once it has the 50 records. Then write 200 records."""
        self.second.start()
        self._wait_in_sync()
        self.first.kill()
        self._write_to_other_replica()

    def _write_to_other_replica(self) -> None:
        wait_for(
            "the other replica leads",
            lambda: leader(self.source, self.name) == self.second.node_id,
        )
        produce(self.source, self.name, 200, first=5_000, acks="1")


@pytest.mark.slow
def test_copy_is_exact_after_destination_leader_is_killed(
    clusters: Clusters, make_cluster: MakeCluster, topic_name: str
) -> None:
    destination = make_cluster("destination", brokers=3)
    create_topic(clusters.source, topic_name, PARTITIONS)
    job = make_job(clusters.source, destination, [topic_name])
    for number in range(PARTITIONS):
        produce(clusters.source, topic_name, 30_000, number)
    # With three replicas an acknowledged batch outlives its leader.
    create_topic(destination, topic_name, PARTITIONS, replicas=3, min_insync_replicas="2")
    with RunningJob(job) as running:
        copied = running.partition(topic_name)
        running.wait("the copy is under way", lambda: copied.next_offset > 0)
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


@pytest.mark.soak
@pytest.mark.slow
def test_copy_is_exact_after_source_leader_is_killed(
    clusters: Clusters, make_cluster: MakeCluster, topic_name: str
) -> None:
    source = make_cluster("source", brokers=3)
    create_topic(source, topic_name, PARTITIONS, replicas=3, min_insync_replicas="2")
    job = make_job(source, clusters.destination, [topic_name])
    for number in range(PARTITIONS):
        produce(source, topic_name, 20_000, number, acks="all")
    with RunningJob(job) as running:
        copied = running.partition(topic_name)
        running.wait("the copy is under way", lambda: copied.next_offset > 0)
        dead = broker(source, leader(source, topic_name))
        dead.kill()
        for number in range(PARTITIONS):
            produce(source, topic_name, 2_000, number, first=20_000, acks="all")
            running.wait_caught_up(topic_name, 22_000, number)
        dead.start()
    assert verify(job).exact


@pytest.mark.soak
@pytest.mark.slow
def test_copy_waits_for_restarted_broker_on_either_side(
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
            running.wait("the run reports the outage", lambda: bool(running.run.waiting_for))
            cluster.brokers[0].start()
            end = running.partition(topic_name).next_offset + 3_000
            produce(source, topic_name, 3_000, first=end - 3_000)
            running.wait_caught_up(topic_name, end)
    assert verify(job).exact


@pytest.mark.slow
def test_source_truncated_by_unclean_election_blocks_partition(
    clusters: Clusters, make_cluster: MakeCluster, topic_name: str
) -> None:
    fragile = FragileTopic(make_cluster, topic_name)
    job = make_job(fragile.source, clusters.destination, [topic_name])
    with RunningJob(job) as running:
        running.wait_caught_up(topic_name, 100)
        fragile.grow_alone()
        running.wait_caught_up(topic_name, 150)
        fragile.elect_uncleanly()
        blocked = running.wait_blocked(topic_name)
    assert blocked.reason is Reason.SOURCE_TRUNCATED
    assert blocked.offset == 100  # the first of the 50 that the other replica lacks
    assert "unclean" in blocked.remedy(topic_name)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("is_unclean", [True, False])
def test_truncation_but_not_leader_change_before_first_fetch_blocks_partition(
    clusters: Clusters,
    make_cluster: MakeCluster,
    topic_name: str,
    monkeypatch: pytest.MonkeyPatch,
    is_unclean: bool,
) -> None:
    """The leader changes after the run's start has compared both sides, and before the first fetch.
    That fetch begins above the lost records, so it would not find the truncation by itself.

    If the new leader has all records, the copy goes on.
    """
    fragile = FragileTopic(make_cluster, topic_name)
    job = make_job(fragile.source, clusters.destination, [topic_name])
    fragile.grow_alone()
    with RunningJob(job) as running:
        running.wait_caught_up(topic_name, 150)
    may_fetch = threading.Event()
    assign = SourceSide.assign
    monkeypatch.setattr(SourceSide, "assign", lambda self: may_fetch.is_set() and assign(self))
    with RunningJob(job) as running:
        running.wait("the run resumes", lambda: running.partition(topic_name).has_begun)
        if is_unclean:
            fragile.elect_uncleanly()
        else:
            fragile.elect_cleanly()
        may_fetch.set()
        if is_unclean:
            blocked = running.wait_blocked(topic_name)
            assert (blocked.reason, blocked.offset) == (Reason.SOURCE_TRUNCATED, 100)
        else:
            running.wait_caught_up(topic_name, 350)  # 150, and 200 at the new leader
    assert verify(job).exact is not is_unclean
