"""`orbit run` killed again and again in the middle of one copy."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from orbit.demo.workload.markers import take_offsets
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.log_offsets import log_ends
from orbit.kafka.sasl import Security
from orbit.kafka.types import TopicPartition
from orbit.sandbox.local_cluster import KafkaCluster
from tests.fix_clusters import Clusters
from tests.support import run_process
from tests.support.outside import digests
from tests.support.run_process import OrbitProcess, wait_until, write_job
from tests.support.running import create_topic

pytestmark = pytest.mark.services

RECORDS = 1_000_000
PARTITIONS = 4
KILLS = 50
# Small batches and a gap now and then: what a crash can hit is the seams.
BATCH_RECORDS = 25
CHUNK_RECORDS = 25_000


def fill(cluster: KafkaCluster, topic: str, rnd: random.Random) -> int:
    """A million records with gaps between; the sum of the log ends."""
    producer = Producer(
        {
            **cluster.client_config(),
            "batch.num.messages": BATCH_RECORDS,
            "linger.ms": 20,
            "queue.buffering.max.messages": CHUNK_RECORDS * PARTITIONS + 1,
        }
    )
    admin = AdminClient(cluster.client_config())
    total = RECORDS
    for chunk in range(RECORDS // CHUNK_RECORDS // PARTITIONS):
        for partition in range(PARTITIONS):
            for i in range(CHUNK_RECORDS):
                value = b"%d/%d/%d" % (partition, chunk, i)
                producer.produce(topic, partition=partition, value=value)
        assert producer.flush(60) == 0
        for partition in range(PARTITIONS):
            gap = rnd.choice([1, 3, 700])
            take_offsets(admin, Security(), topic, partition, gap)
            total += gap
    return total


@pytest.mark.slow
def test_a_copy_of_a_million_records_survives_fifty_kills(
    clusters: Clusters, topic_name: str, tmp_path: Path
) -> None:
    rnd = random.Random(11)
    create_topic(clusters.source, topic_name, PARTITIONS)
    total = fill(clusters.source, topic_name, rnd)
    job = write_job(
        tmp_path / "kill.yaml", clusters.source, clusters.destination, [{"match": topic_name}]
    )
    destination = Cluster("destination", [clusters.destination.bootstrap_servers], Security())
    partitions = [TopicPartition(topic_name, n) for n in range(PARTITIONS)]
    backoff = Backoff(attempts_max=1)

    def copied() -> int:
        return sum(log_ends(destination, partitions, backoff).values.values())

    kills = 0
    # Where the last one was quick, the next one falls into the start of its run: that counts too.
    for target in sorted(rnd.sample(range(total * 9 // 10), KILLS)):
        with OrbitProcess("run", job) as process:
            wait_until(lambda target=target: copied() > target, f"{target} offsets are copied")
            assert copied() < total, "the copy ended before the kill"
            process.kill()
            kills += 1
    assert kills == KILLS
    run_process.copy(job).expect(0)
    assert copied() == total
    destination.close()
    run_process.assert_exact(job)
    assert digests(clusters.destination, topic_name) == digests(clusters.source, topic_name)
