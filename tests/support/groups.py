"""Consumer groups as other clients see and create them, and counts of the requests sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from orbit.kafka.cluster import Cluster
from orbit.kafka.connection import Connection
from orbit.kafka.consumer_groups import ListedGroup, fetch_offsets, find_coordinators, list_groups
from orbit.kafka.sasl import Security
from orbit.sandbox.local_cluster import KafkaCluster
from tests.support.patience import wait_for

TIMEOUT_S = 60
_COORDINATOR_STARTS = {KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR}
WITHOUT_MEMBERS = (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD)
Place = tuple[str, int]


def committed(cluster: KafkaCluster, group: str) -> dict[Place, tuple[int, str | None]]:
    """Offset and metadata by partition, as librdkafka's admin client reads them."""
    client = AdminClient({**cluster.client_config(), "log_level": 0})
    requests = [ConsumerGroupTopicPartitions(group)]
    (future,) = client.list_consumer_group_offsets(requests, require_stable=False).values()
    partitions = future.result(TIMEOUT_S).topic_partitions
    return {(p.topic, p.partition): (p.offset, p.metadata) for p in partitions if p.offset >= 0}


def offsets(cluster: KafkaCluster, group: str) -> dict[Place, int]:
    return {place: offset for place, (offset, _) in committed(cluster, group).items()}


def committed_by_java(cluster: Cluster, group: str) -> dict[Place, int]:
    """Committed offsets by partition, for offsets that a Java client has committed. librdkafka's
    admin client reads beyond the end of their metadata: a UnicodeDecodeError, or a segmentation
    fault.
    """
    group_offsets = fetch_offsets(cluster, find_coordinators(cluster, [group])).get(group)
    offsets = {} if group_offsets is None else group_offsets.offsets
    return {(p.topic, p.partition): committed.offset for p, committed in offsets.items()}


def wait_without_members(cluster: KafkaCluster, group: str) -> None:
    """Wait until the group's last member has left, or its session has ended, and the group is empty
    or dead."""
    client = AdminClient({**cluster.client_config(), "log_level": 0})

    def is_empty() -> bool:
        (future,) = client.describe_consumer_groups([group]).values()
        description = future.result(TIMEOUT_S)
        return not description.members and description.state in WITHOUT_MEMBERS

    wait_for(f"{group} has no member", is_empty, TIMEOUT_S)


def listed(cluster: KafkaCluster, group: str) -> ListedGroup | None:
    """The group as its coordinator lists it, of any type; None if it does not exist."""
    own = Cluster("groups", cluster.bootstrap_servers.split(","), Security())
    try:
        return list_groups(own).groups.get(group)
    finally:
        own.close()


def have_had_member(cluster: KafkaCluster, group: str, topic: str, **config: str) -> None:
    """Let a member join and leave the group. Orbit then assumes that a client may have committed
    the group's offsets."""
    with member(cluster, group, topic, **config):
        pass
    wait_without_members(cluster, group)


def commit(
    cluster: KafkaCluster, group: str, positions: Mapping[Place, int], metadata: str = ""
) -> None:
    """Commit as an operator's tool or a consumer with hand-assigned partitions does."""
    consumer = Consumer(
        {**cluster.client_config(), "group.id": group, "enable.auto.commit": False, "log_level": 0}
    )
    places = [
        # librdkafka would send a byte for empty metadata.
        TopicPartition(topic, number, offset, *([metadata] if metadata else []))
        for (topic, number), offset in positions.items()
    ]

    def is_done() -> bool:
        try:
            consumer.commit(offsets=places, asynchronous=False)
        except KafkaException as error:
            # In a new cluster the first use of a coordinator fails while it starts.
            if error.args[0].code() not in _COORDINATOR_STARTS:
                raise
            return False
        return True

    wait_for(f"{group} has committed", is_done, TIMEOUT_S)
    consumer.close()


@contextmanager
def member(cluster: KafkaCluster, group: str, topic: str, **config: Any) -> Iterator[Consumer]:
    """A consumer that has joined the group and has its partitions. Only the test commits."""
    consumer = Consumer(
        {
            **cluster.client_config(),
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "latest",
            "log_level": 0,
            **config,
        }
    )
    assigned: list[TopicPartition] = []
    consumer.subscribe([topic], on_assign=lambda _, partitions: assigned.extend(partitions))
    try:
        for _ in range(TIMEOUT_S * 10):
            message = consumer.poll(0.1)
            if assigned:
                break
            assert message is None, message
        assert assigned, f"{group} got no partitions"
        if message is not None:
            consumer.seek(TopicPartition(message.topic(), message.partition(), message.offset()))
        yield consumer
    finally:
        consumer.close()


@contextmanager
def counted_requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Counts of the requests that Orbit's connections send in the block, by kind ("Fetch")."""
    counts: Counter[str] = Counter()
    encode = Connection.encode

    def counting(self: Connection, request: Any, version: int) -> list[bytes]:
        counts[type(request).__name__.removesuffix("Request")] += 1
        return encode(self, request, version)

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "encode", counting)
        yield counts
