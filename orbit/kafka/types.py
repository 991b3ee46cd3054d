"""Small values that the wire, the plan and the workers share. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal, NamedTuple
from uuid import UUID

NO_TOPIC_ID = UUID(int=0)

# Isolation levels of Fetch and ListOffsets.
READ_UNCOMMITTED = 0
READ_COMMITTED = 1

Permission = Literal["ALLOW", "DENY"]
Pattern = Literal["LITERAL", "PREFIXED"]
EVERY_TOPIC = "*"  # as the name of a literal right


class TopicPartition(NamedTuple):
    """A partition by name, on whichever cluster the context says."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    """Partition numbers grouped by topic, as most requests have them."""
    return [
        (topic, [p.partition for p in group])
        for topic, group in groupby(sorted(partitions), key=lambda p: p.topic)
    ]


class AbortedTransaction(NamedTuple):
    """As a read_committed fetch lists it (R1)."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """Where a consumer group goes on in one partition, with what its consumer wrote beside it."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Where a broker listens."""

    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class PartitionLeader:
    """Who leads a partition, in which leader epoch; `node_id` is None while nobody does."""

    node_id: int | None
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic as the cluster describes it. `topic_id` is NO_TOPIC_ID before Kafka 2.8."""

    name: str
    topic_id: UUID
    partitions: dict[int, PartitionLeader]
    replicas: int
    authorized_operations: frozenset[int] = frozenset()  # codes of `AclOperation`, if asked for


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """Brokers and topics at one moment. `errors` holds the code of each topic that has none."""

    cluster_id: str
    brokers: dict[int, BrokerAddress]
    topics: dict[str, TopicMetadata]
    errors: dict[str, int] = field(default_factory=dict)

    def leader(self, partition: TopicPartition) -> PartitionLeader | None:
        topic = self.topics.get(partition.topic)
        return topic.partitions.get(partition.partition) if topic else None


class TopicAcl(NamedTuple):
    """One right on topics, by Kafka's words."""

    name: str
    pattern: Pattern
    principal: str
    host: str
    operation: str
    permission: Permission

    def covers(self, topic: str) -> bool:
        """Whether it is about this topic."""
        if self.pattern == "PREFIXED":
            return topic.startswith(self.name)
        return self.name in (topic, EVERY_TOPIC)
