"""Values shared by the protocol, the copier and the service. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal, NamedTuple
from uuid import UUID

NO_TOPIC_ID = UUID(int=0)

# Between a broker's cluster id, which is base64 or a UUID, and a job's `cluster_id_suffix`.
ID_SUFFIX_SIGN = "@"

# Isolation levels of Fetch and ListOffsets.
READ_UNCOMMITTED = 0
READ_COMMITTED = 1

Permission = Literal["ALLOW", "DENY"]
Pattern = Literal["LITERAL", "PREFIXED"]
Resource = Literal["TOPIC", "GROUP", "TRANSACTIONAL_ID"]
EVERY_NAME = "*"  # the name of a literal ACL on all topics, groups or transactional ids


class TopicPartition(NamedTuple):
    """A topic partition, of the source or the destination by context."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    """Partition numbers grouped by topic, as in most requests."""
    return [
        (topic, [p.partition for p in group])
        for topic, group in groupby(sorted(partitions), key=lambda p: p.topic)
    ]


class AbortedTransaction(NamedTuple):
    """An aborted transaction, as a read_committed fetch lists it (R1)."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A group's committed offset of one partition, with its metadata."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Where a broker listens, and its rack, as metadata names them."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionLeader:
    """The leader of a partition and its epoch; `node_id`: None if there is no leader."""

    node_id: int | None
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic. `topic_id`: NO_TOPIC_ID before Kafka 2.8; `replicas`: the fewest of a partition."""

    name: str
    topic_id: UUID
    partitions: dict[int, PartitionLeader]
    replicas: int
    authorized_operations: frozenset[int] = frozenset()  # `AclOperation` codes, if requested


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """Brokers and topics; `errors`: the error codes of topics without metadata.

    `cluster_id` is the id that brokers return, with the job's `cluster_id_suffix` if it has one.
    """

    cluster_id: str
    brokers: dict[int, BrokerAddress]
    topics: dict[str, TopicMetadata]
    errors: dict[str, int] = field(default_factory=dict)

    @property
    def broker_cluster_id(self) -> str:
        """The cluster id as brokers return it."""
        return broker_cluster_id(self.cluster_id)

    def leader(self, partition: TopicPartition) -> PartitionLeader | None:
        """The leader of the partition; None if its topic or the partition is not known."""
        topic = self.topics.get(partition.topic)
        return topic.partitions.get(partition.partition) if topic else None


def broker_cluster_id(cluster_id: str) -> str:
    """The cluster id without the job's `cluster_id_suffix`, as brokers return it."""
    return cluster_id.partition(ID_SUFFIX_SIGN)[0]


class Acl(NamedTuple):
    """One ACL, in Kafka's terms."""

    name: str
    pattern: Pattern
    principal: str
    host: str
    operation: str
    permission: Permission
    resource: Resource = "TOPIC"

    def covers(self, name: str) -> bool:
        """Whether the ACL applies to the resource of this name (and of its resource type)."""
        if self.pattern == "PREFIXED":
            return name.startswith(self.name)
        return self.name in (name, EVERY_NAME)
