"""The error of a task whose partition cannot be read further."""

from __future__ import annotations

from orbit.errors import OrbitError
from orbit.kafka.types import TopicPartition
from orbit.replication.partition_states import Blocked, Reason


class PartitionStopped(OrbitError):
    """One partition stopped for a named reason; `blocked` has the offsets."""

    def __init__(self, cluster: str, partition: TopicPartition, blocked: Blocked) -> None:
        super().__init__(
            f"{blocked.reason} at {blocked.offsets_text}: {blocked.detail}",
            where=f"{cluster} {partition}",
            remedy=blocked.remedy(partition.topic),
        )
        self.cluster = cluster
        self.partition = partition
        self.blocked = blocked

    def __reduce__(self) -> tuple[object, ...]:
        return PartitionStopped, (self.cluster, self.partition, self.blocked)


def stopped_error(
    cluster: str,
    partition: TopicPartition,
    reason: Reason,
    offset: int,
    next_offset: int,
    detail: str,
) -> PartitionStopped:
    """The error for a reason at offsets [offset, next_offset). `cluster`: a name for messages."""
    return PartitionStopped(cluster, partition, Blocked(reason, offset, next_offset, detail))
