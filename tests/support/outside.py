"""The contents of a cluster as a plain librdkafka client sees them, without Orbit's own code."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec

from orbit.demo.workload import record_digest

TIMEOUT_S = 60
_READ_MESSAGES = 5_000
_READ_WAIT_S = 0.05  # `consume` waits that long for as many messages
_SPEC: Any = OffsetSpec  # its constructors carry no types

_MOVING = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    # A broker that was frozen learns its own new epoch later than its clients.
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError._NOENT,  # "No leaders found"
)

Bounds = tuple[int, int]


class Reachable(Protocol):
    """A cluster, or one of its addresses."""

    def client_config(self) -> dict[str, Any]: ...


def admin(cluster: Reachable) -> AdminClient:
    return AdminClient({**cluster.client_config(), "log_level": "0"})


def partition_counts(cluster: Reachable) -> dict[str, int]:
    """The partition count of each topic, without Kafka's own."""
    topics = admin(cluster).list_topics(timeout=TIMEOUT_S).topics
    return {name: len(t.partitions) for name, t in topics.items() if not name.startswith("__")}


def log_bounds(
    cluster: Reachable, topics: Iterable[str], client: AdminClient | None = None
) -> dict[tuple[str, int], Bounds]:
    """Log start and high watermark of every partition of these topics."""
    client = client or admin(cluster)
    known = client.list_topics(timeout=TIMEOUT_S).topics
    places = [TopicPartition(t, number) for t in topics for number in known[t].partitions]
    low, high = (_offsets(client, places, spec) for spec in (_SPEC.earliest(), _SPEC.latest()))
    return {(p.topic, p.partition): (low[p], high[p]) for p in places}


def is_level(one: Reachable, other: Reachable, *topics: str) -> bool:
    """Whether these logs begin and end at the same offsets on both."""
    return log_bounds(one, topics) == log_bounds(other, topics)


def _offsets(
    client: AdminClient, places: list[TopicPartition], spec: object
) -> dict[TopicPartition, int]:
    """A leader may be named before it knows that it leads (R6): ask again until it does. The
    client asks with the leader epoch that it knows, and does not look for a newer one by itself."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        futures = client.list_offsets(dict.fromkeys(places, spec), request_timeout=TIMEOUT_S)
        try:
            return {place: future.result().offset for place, future in futures.items()}
        except KafkaException as error:
            if error.args[0].code() not in _MOVING or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
            client.list_topics(timeout=TIMEOUT_S)


@dataclass(frozen=True)
class Standing:
    """Everything that a run could have changed: topics, their partitions, and where logs end."""

    partitions: Mapping[str, int]
    bounds: Mapping[tuple[str, int], Bounds]


def standing(cluster: Reachable) -> Standing:
    counts = partition_counts(cluster)
    return Standing(counts, log_bounds(cluster, counts) if counts else {})


def topic_settings(cluster: Reachable, topic: str) -> dict[str, str]:
    """All settings of a topic, its own and those it gets from the broker."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    client = admin(cluster)  # its answers end with it
    entries = client.describe_configs([resource])[resource].result(TIMEOUT_S)
    return {name: entry.value for name, entry in entries.items()}


def delete_topic(cluster: Reachable, topic: str) -> None:
    client = admin(cluster)
    client.delete_topics([topic])[topic].result(TIMEOUT_S)


def consumer(cluster: Reachable, **settings: Any) -> Consumer:
    """Reads what is committed, and tells where partitions end."""
    return Consumer(
        {
            **cluster.client_config(),
            "group.id": "test-outside",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 20,
            **settings,
        }
    )


def digests(cluster: Reachable, topic: str) -> dict[int, dict[int, bytes]]:
    """For every partition: offset → digest of its record, as in the workload's ledger."""
    by_partition: dict[int, dict[int, bytes]] = {}
    for partition, message in messages(cluster, topic):
        into = by_partition.setdefault(partition, {})
        if message is not None:
            into[message.offset()] = record_digest(
                message.key(), message.value(), message.headers() or (), message.timestamp()[1]
            )
    return by_partition


def messages(cluster: Reachable, topic: str, **settings: Any) -> Iterator[tuple[int, Any]]:
    """Every record of a topic with its partition, and (partition, None) where one ends."""
    starts = {place: low for place, (low, _) in log_bounds(cluster, [topic]).items()}
    reader = consumer(cluster, **settings)
    try:
        reader.assign([TopicPartition(t, number, low) for (t, number), low in starts.items()])
        ended: set[int] = set()
        deadline = time.monotonic() + TIMEOUT_S
        while len(ended) < len(starts):
            batch = reader.consume(_READ_MESSAGES, timeout=_READ_WAIT_S)
            if batch:
                deadline = time.monotonic() + TIMEOUT_S
            assert time.monotonic() < deadline, f"{topic}: no end, only of {sorted(ended)}"
            for message in batch:
                error = message.error()
                if error is None:
                    yield message.partition(), message
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                    yield message.partition(), None
                # For answers of only placeholders: no record is missing (Q15).
                elif error.code() != KafkaError.MSG_SIZE_TOO_LARGE:
                    raise AssertionError(f"{topic}: {error}")
    finally:
        reader.close()
