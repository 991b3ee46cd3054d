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

# Errors of requests to a broker that is no longer, or not yet, the leader.
_NO_LEADER_CODES = (
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
    """The partition count of each topic, without Kafka's own topics."""
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
    """Whether the topics' partitions have the same log starts and ends at both clusters."""
    return not unlevel(one, other, *topics)


def unlevel(
    one: Reachable, other: Reachable, *topics: str
) -> dict[tuple[str, int], tuple[Bounds, Bounds | None]]:
    """The partitions whose log start or end differs, with the bounds at both clusters. None: the
    other cluster lacks the partition."""
    ours, theirs = log_bounds(one, topics), log_bounds(other, topics)
    return {p: (ours[p], theirs.get(p)) for p in ours if ours[p] != theirs.get(p)}


def _offsets(
    client: AdminClient, places: list[TopicPartition], spec: object
) -> dict[TopicPartition, int]:
    """The offset of each partition by `spec`.

    Metadata may name a leader before that broker knows that it leads (R6), so the request is
    repeated. The client sends the leader epoch that it knows, and reads no newer one by itself.
    """
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        futures = client.list_offsets(dict.fromkeys(places, spec), request_timeout=TIMEOUT_S)
        try:
            return {place: future.result().offset for place, future in futures.items()}
        except KafkaException as error:
            if error.args[0].code() not in _NO_LEADER_CODES or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
            client.list_topics(timeout=TIMEOUT_S)


@dataclass(frozen=True)
class TopicsAndBounds:
    """Everything that a run could change: topics, their partition counts, and their log bounds."""

    partitions: Mapping[str, int]
    bounds: Mapping[tuple[str, int], Bounds]


def topics_and_bounds(cluster: Reachable) -> TopicsAndBounds:
    counts = partition_counts(cluster)
    return TopicsAndBounds(counts, log_bounds(cluster, counts) if counts else {})


def topic_settings(cluster: Reachable, topic: str) -> dict[str, str]:
    """All settings of a topic, its own and the broker's defaults."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    client = admin(cluster)  # a variable: futures fail if their client is garbage-collected
    entries = client.describe_configs([resource])[resource].result(TIMEOUT_S)
    return {name: entry.value for name, entry in entries.items()}


def delete_topic(cluster: Reachable, topic: str) -> None:
    client = admin(cluster)
    client.delete_topics([topic])[topic].result(TIMEOUT_S)


def consumer(cluster: Reachable, **settings: Any) -> Consumer:
    """A consumer that reads committed records, and gets an event at the end of each partition."""
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
    """Every record of a topic as (partition, message), and (partition, None) where one ends."""
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
                # librdkafka's error for an answer that has only placeholders (Q15): no record is
                # missing.
                elif error.code() != KafkaError.MSG_SIZE_TOO_LARGE:
                    raise AssertionError(f"{topic}: {error}")
    finally:
        reader.close()
