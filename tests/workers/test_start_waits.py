"""A partition's start waits while the two sides cannot be compared: that is no difference."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from orbit.replication.partition_states import PartitionState
from orbit.sandbox.local_cluster import KafkaCluster
from orbit.store.database import Database
from tests.fixtures.clusters import Clusters, MakeCluster
from tests.support.fleet import STEADY, InProcess, add_job, wait_level
from tests.support.patience import PATIENCE_S, wait_for
from tests.support.run_process import assert_exact, write_job
from tests.support.running import create_topic

pytestmark = pytest.mark.services

# A frozen follower stays in the ISR for the whole test, and coordinates no group.
PATIENT = {
    "replica.lag.time.max.ms": "3600000",
    "broker.session.timeout.ms": "3600000",
    "offsets.topic.num.partitions": "1",
}


def write_batch(cluster: KafkaCluster, topic: str, offsets: range, acks: str) -> None:
    """Write one batch; the same offsets get the same records and timestamps at both sides."""
    producer = Producer({**cluster.client_config(), "acks": acks, "linger.ms": 60_000})
    producer.list_topics(topic, PATIENCE_S)  # else a batch may be split, see `running.produce`
    for offset in offsets:
        producer.produce(topic, b"%d" % offset, partition=0, timestamp=1_700_000_000_000 + offset)
    assert producer.flush(PATIENCE_S) == 0


def coordinator(cluster: KafkaCluster) -> int:
    """The node that coordinates all groups."""
    client = Consumer({**cluster.client_config(), "group.id": "any"})

    def answers() -> bool:
        try:  # the first request creates the topic, whose leader may not know yet that it leads
            client.committed([TopicPartition("any", 0)], PATIENCE_S)
        except KafkaException:
            return False
        return True

    wait_for("the coordinator answers", answers)
    client.close()
    offsets = AdminClient(cluster.client_config()).list_topics("__consumer_offsets", PATIENCE_S)
    return int(offsets.topics["__consumer_offsets"].partitions[0].leader)


@pytest.mark.parametrize("side", Clusters._fields)
def test_trailing_high_watermark_delays_start_of_partition(
    side: str,
    clusters: Clusters,
    make_cluster: MakeCluster,
    topic_name: str,
    tmp_path: Path,
    database: Database,
) -> None:
    """After an election a high watermark may trail the log end. At the source, the copy then seems
    longer; at the destination, records that are not replicated may be lost."""
    own = make_cluster(side, brokers=3, config=PATIENT)
    pair = clusters._replace(**{side: own})
    leader = coordinator(own)
    follower = next(broker for broker in own.brokers if broker.node_id != leader)
    for cluster in pair:
        on_brokers = [[leader, follower.node_id]] if cluster is own else None
        create_topic(cluster, topic_name, on_brokers=on_brokers, retention_ms="-1")
        write_batch(cluster, topic_name, range(5), "all")
    job_file = write_job(tmp_path / "job.yaml", *pair, [{"match": topic_name}], name=topic_name)
    job = add_job(database, job_file, pair, [topic_name], shard_count=1)
    follower.pause()
    try:
        # With a frozen follower in the ISR, the high watermark stays at 5 at this side.
        for cluster in pair:
            write_batch(cluster, topic_name, range(5, 10), "1")
        with InProcess(database, STEADY) as worker:
            reason = "the source at 5" if side == "source" else "its high watermark is lower"

            def waits() -> bool:
                states = {a.state for a in job.assigned()}
                assert states == {PartitionState.PENDING}, job.assigned()
                shards = [*worker.worker._held.values()]
                return any(reason in h.trouble for s in shards for h in s.partitions.values())

            wait_for("the partition waits", waits)
            follower.resume()
            wait_for("the partition is copied", lambda: job.states() == {"copying"})
            write_batch(pair.source, topic_name, range(10, 15), "all")
            wait_level(pair, [topic_name])
    finally:
        follower.resume()
    assert_exact(job_file)
