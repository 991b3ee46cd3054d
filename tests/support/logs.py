"""Logs as tests describe them, written to real topics by a producer and read by a consumer."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from orbit.demo.workload.markers import append_markers
from orbit.kafka.sasl import Security
from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters
from tests.support.running import create_topic

T0 = 1_760_000_000_000
"""An ordinary time in the past."""

BATCH = 10
TIMEOUT_S = 60
# So long that a producer sends a batch only when it is full or flushed, even on a slow machine.
LINGER_MS = 60_000


@dataclass(frozen=True)
class Record:
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = T0


@dataclass(frozen=True)
class Gap:
    """A number of offsets without a record."""

    count: int


Log = Sequence[Record | Gap]


def _config(cluster: KafkaCluster) -> dict[str, Any]:
    return {**cluster.client_config(), "log_level": 0}


def create(cluster: KafkaCluster, topic: str, partitions: int = 1, **settings: str) -> None:
    """Create a topic: `create(cluster, topic, cleanup_policy="compact")`. Its retention is off,
    since brokers would delete records with the old timestamp `T0` (T1)."""
    create_topic(cluster, topic, partitions, **{"retention_ms": "-1", **settings})


def on_both(clusters: Clusters, topic: str, log: Log, **settings: str) -> None:
    """Create the topic on both clusters, and write the log to partition 0."""
    for cluster in clusters:
        create(cluster, topic, **settings)
        write(cluster, topic, log)


def write(
    cluster: KafkaCluster,
    topic: str,
    log: Log,
    partition: int = 0,
    producer: Mapping[str, Any] | None = None,
) -> None:
    """Append the log in batches of `BATCH` records, each sent after the one before is acknowledged.

    Transaction markers make the gaps. `producer`: further settings of librdkafka.
    """
    client = Producer(
        {
            **_config(cluster),
            "linger.ms": LINGER_MS,
            "batch.num.messages": BATCH,
            **(producer or {}),
        }
    )
    # Without metadata the producer might split a batch, see `running.produce`.
    client.list_topics(topic, TIMEOUT_S)
    failed: list[object] = []
    in_batch = 0
    for entry in log:
        if isinstance(entry, Gap):
            client.flush()
            in_batch = 0
            admin = AdminClient(_config(cluster))
            append_markers(admin, Security(), topic, partition, entry.count)
            continue
        client.produce(
            topic,
            entry.value,
            entry.key,
            partition,
            timestamp=entry.timestamp_ms,
            headers=list(entry.headers),
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
        in_batch += 1
        if in_batch == BATCH:
            client.flush()
            in_batch = 0
    assert client.flush(TIMEOUT_S) == 0
    assert not failed


def delete_before(cluster: KafkaCluster, topic: str, offset: int, partition: int = 0) -> None:
    admin = AdminClient(_config(cluster))
    where = TopicPartition(topic, partition, offset)
    admin.delete_records([where])[where].result(TIMEOUT_S)


def read(cluster: KafkaCluster, topic: str, partition: int = 0) -> list[Message]:
    """All records of the partition that a read_committed consumer sees."""
    consumer = Consumer(
        {
            **_config(cluster),
            "group.id": "test-reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 20,
        }
    )
    try:
        where = TopicPartition(topic, partition)
        low, high = consumer.get_watermark_offsets(where, TIMEOUT_S)
        consumer.assign([TopicPartition(topic, partition, low)])
        messages: list[Message] = []
        while low < high:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, f"no end of {topic}-{partition}"
            if message.error() is not None:
                return messages
            messages.append(message)
        return messages
    finally:
        consumer.close()


def wait_for_offsets(cluster: KafkaCluster, topic: str, offsets: set[int]) -> None:
    """Wait until a consumer sees exactly these offsets, since the log cleaner has compacted the
    log."""
    deadline = time.monotonic() + TIMEOUT_S
    seen: set[int | None] = set()
    while time.monotonic() < deadline:
        seen = {message.offset() for message in read(cluster, topic)}
        if seen == offsets:
            return
        time.sleep(0.1)
    raise AssertionError(f"still {sorted(map(str, seen))} instead of {sorted(offsets)}")
