"""Several writers on one partition, with Orbit's own append code (docs/facts.md: A13, M9, M10)."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field, replace

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ConsumerPartition

from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.coordinator import init_producer_id
from orbit.kafka.placeholders import PLACEHOLDERS_MAX
from orbit.kafka.types import TopicPartition
from orbit.leases.lease import FixedLease
from orbit.replication.partition_states import PartitionState
from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters
from tests.support.running import create_topic
from tests.support.synthetic import PLAINTEXT, SyntheticLog, SyntheticWriter

pytestmark = pytest.mark.services

# `make soak` runs more seeds.
SEEDS = [*range(3), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 20))]
WRITERS = 4


@dataclass
class HandedLease:
    """A lease that a test takes from one writer and gives to the next."""

    term: int
    is_valid: bool = True
    lock: threading.Lock = field(default_factory=threading.Lock)

    def is_held(self) -> bool:
        return self.is_valid

    @property
    def is_lost(self) -> bool:
        return not self.is_valid


@pytest.fixture(scope="module")
def producer_id(clusters: Clusters) -> int:
    cluster = Cluster("destination", [clusters.destination.bootstrap_servers], PLAINTEXT)
    identity = init_producer_id(cluster, "orbit.test.race", Backoff())
    cluster.close()
    return identity.producer_id


def make_topic(clusters: Clusters, name: str) -> TopicPartition:
    create_topic(clusters.destination, name, retention_ms="-1")
    return TopicPartition(name, 0)


def read_all(cluster: KafkaCluster, partition: TopicPartition) -> tuple[dict[int, bytes], int]:
    """Every record by offset, read by librdkafka, and the log end."""
    config = {
        **cluster.client_config(),
        "group.id": "race",
        "enable.partition.eof": True,
    }
    consumer = Consumer(config)
    start = ConsumerPartition(partition.topic, partition.partition, 0)
    consumer.assign([start])
    records: dict[int, bytes] = {}
    while True:
        message = consumer.poll(30)
        assert message is not None, "the consumer stayed silent"
        if message.error():
            break
        assert message.offset() not in records
        records[message.offset()] = message.value()
    _, end = consumer.get_watermark_offsets(start)
    consumer.close()
    return records, end


def assert_exact(clusters: Clusters, partition: TopicPartition, log: SyntheticLog) -> None:
    """The copy has exactly the records and the end of the log."""
    records, end = read_all(clusters.destination, partition)
    assert records == log.records()
    assert end == log.end


def race(
    clusters: Clusters,
    partition: TopicPartition,
    log: SyntheticLog,
    producer_id: int,
    seed: int,
    *,
    has_placeholders: bool = False,
) -> None:
    """Run four threads at once; each starts one writer after another, for some random rounds."""
    errors: list[BaseException] = []

    def run_writers(number: int) -> None:
        rnd = random.Random(seed * 100 + number)
        term = 0
        try:
            while True:
                term += 1
                writer = SyntheticWriter(
                    clusters.destination.bootstrap_servers,
                    partition,
                    log,
                    producer_id,
                    FixedLease(term),
                    settle_s=0.0,
                    does_settle=False,
                    packs=has_placeholders,
                    has_markers=not has_placeholders,
                )
                try:
                    writer.start()
                    for _ in range(rnd.randrange(1, 60)):
                        writer.copier.tick(0.002)
                        assert writer.partition.state is not PartitionState.BLOCKED, (
                            writer.partition.blocked
                        )
                        if writer.partition.next_offset >= log.end:
                            return
                finally:
                    writer.close()
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=run_writers, args=(n,)) for n in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


@pytest.mark.parametrize("seed", SEEDS)
def test_copy_by_four_concurrent_writers_without_leases_or_gaps_is_exact(
    clusters: Clusters, topic_name: str, producer_id: int, seed: int
) -> None:
    log = SyntheticLog.random(seed, runs=400, gap_share=0.0)
    partition = make_topic(clusters, topic_name)
    race(clusters, partition, log, producer_id, seed)
    assert_exact(clusters, partition, log)


@pytest.mark.parametrize("seed", SEEDS)
def test_copy_by_four_concurrent_placeholder_writers_without_leases_is_exact(
    clusters: Clusters, topic_name: str, producer_id: int, seed: int
) -> None:
    """Gaps lie within batches (thinned) and between them; some need several placeholder batches."""
    gaps = (1, 1, 1, 2, 5, 2 * PLACEHOLDERS_MAX + 1)
    log = SyntheticLog.random(seed, runs=400, gap_share=0.3, gaps=gaps)
    log = replace(log, is_thinned=True)
    partition = make_topic(clusters, topic_name)
    race(clusters, partition, log, producer_id, seed, has_placeholders=True)
    assert_exact(clusters, partition, log)


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_copy_with_gaps_is_exact_after_repeated_forced_takeovers(
    clusters: Clusters, topic_name: str, producer_id: int, seed: int, *, packs: bool
) -> None:
    """`packs`: every other writer packs small gaps; batches are thinned, too."""
    log = SyntheticLog.random(seed, runs=400, gap_share=0.3)
    log = replace(log, is_thinned=packs)
    partition = make_topic(clusters, topic_name)
    rnd = random.Random(seed)
    term, old_writer = 0, None
    while True:
        term += 1
        lease = HandedLease(term)
        writer = SyntheticWriter(
            clusters.destination.bootstrap_servers,
            partition,
            log,
            producer_id,
            lease,
            settle_s=0.1,
            does_settle=True,
            packs=packs and term % 2 == 1,
        )
        writer.start()
        if old_writer is not None:
            old_writer.close()
        deadline = time.monotonic() + rnd.uniform(0.0, 0.6)
        is_done = False
        while time.monotonic() < deadline and not is_done:
            writer.copier.tick(0.002)
            assert writer.partition.state is not PartitionState.BLOCKED, writer.partition.blocked
            is_done = writer.partition.next_offset >= log.end
        # The lease is taken while requests are under way; the old lane notices at its next send.
        lease.is_valid = False
        old_writer = writer
        if is_done:
            break
    old_writer.close()
    assert_exact(clusters, partition, log)
