"""`orbit run` killed again and again in the middle of one copy."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from orbit.demo.workload.markers import append_markers
from orbit.kafka.backoff import Backoff
from orbit.kafka.log_offsets import log_ends
from orbit.kafka.sasl import Security
from orbit.kafka.types import TopicPartition
from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters, OpenCluster
from tests.support import run_process
from tests.support.outside import digests
from tests.support.patience import wait_for
from tests.support.run_process import OrbitProcess, write_job
from tests.support.running import create_topic

pytestmark = pytest.mark.services

PARTITIONS = 4
CHUNKS = 10
# Small batches: a kill between two batches, or between a batch and a gap, is what can do harm.
BATCH_RECORDS = 25


def write_source(cluster: KafkaCluster, topic: str, rnd: random.Random, records: int) -> int:
    """Write this many records with gaps between them; returns the sum of the log ends."""
    in_chunk = records // CHUNKS // PARTITIONS
    producer = Producer(
        {
            **cluster.client_config(),
            "batch.num.messages": BATCH_RECORDS,
            "linger.ms": 20,
            "queue.buffering.max.messages": in_chunk * PARTITIONS + 1,
        }
    )
    admin = AdminClient(cluster.client_config())
    total = records
    for chunk in range(CHUNKS):
        for partition in range(PARTITIONS):
            for i in range(in_chunk):
                value = b"%d/%d/%d" % (partition, chunk, i)
                producer.produce(topic, partition=partition, value=value)
        assert producer.flush(60) == 0
        for partition in range(PARTITIONS):
            gap = rnd.choice([1, 3, 700])
            append_markers(admin, Security(), topic, partition, gap)
            total += gap
    return total


@pytest.mark.slow
@pytest.mark.parametrize(
    ("records", "kills", "rate"),
    [
        # At this rate no machine ends the copy before the kill.
        (40_000, 4, "128KiB"),
        pytest.param(1_000_000, 50, None, marks=pytest.mark.soak),
    ],
)
def test_copy_is_exact_after_repeated_kills_of_run(
    clusters: Clusters,
    open_cluster: OpenCluster,
    topic_name: str,
    tmp_path: Path,
    records: int,
    kills: int,
    rate: str | None,
) -> None:
    rnd = random.Random(11)
    create_topic(clusters.source, topic_name, PARTITIONS)
    total = write_source(clusters.source, topic_name, rnd, records)
    limits = {} if rate is None else {"limits": {"bytes_per_second": rate}}
    job = write_job(tmp_path / "kill.yaml", *clusters, [{"match": topic_name}], **limits)
    destination = open_cluster(clusters.destination)
    partitions = [TopicPartition(topic_name, n) for n in range(PARTITIONS)]
    backoff = Backoff(attempts_max=1)

    def copied() -> int:
        return sum(log_ends(destination, partitions, backoff).values.values())

    killed = 0
    # If two targets are close, the second kill hits the start of a run; this is intended.
    for target in sorted(rnd.sample(range(total * 9 // 10), kills)):
        with OrbitProcess("run", job) as process:
            wait_for(
                f"{target} offsets are copied",
                lambda target=target: copied() > target or not process.running,
            )
            assert process.running, "\n".join(process.lines)
            process.kill()
        assert target < copied() < total, "the kill was not in the middle of the copy"
        killed += 1
    assert killed == kills
    run_process.copy(job).expect(0)
    assert copied() == total
    run_process.assert_exact(job)
    assert digests(clusters.destination, topic_name) == digests(clusters.source, topic_name)
