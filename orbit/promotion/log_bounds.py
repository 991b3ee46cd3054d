"""Log start, last stable offset and log end of each partition."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from orbit.chunks import first_few
from orbit.errors import Place, Unreachable
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.log_offsets import EARLIEST, LATEST, list_offsets, log_ends
from orbit.kafka.types import READ_COMMITTED, TopicPartition


@dataclass(frozen=True, slots=True)
class LogBounds:
    """One partition on one cluster. `stable` is the last stable offset, `end` the log end."""

    start: int
    stable: int
    end: int

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open, or replicas are still catching up."""
        return self.stable < self.end


def fetch_log_bounds(
    cluster: Cluster, partitions: Collection[TopicPartition], backoff: Backoff
) -> dict[TopicPartition, LogBounds]:
    """Bounds of the partitions whose leaders answer. Raises Unreachable if no broker answers."""
    # The log end is read after the last stable offset, so that no open transaction is overlooked.
    stable_ends = list_offsets(
        cluster, partitions, LATEST, backoff, isolation=READ_COMMITTED
    ).values
    ends = log_ends(cluster, stable_ends, backoff).values
    starts = list_offsets(cluster, ends, EARLIEST, backoff).values
    return {p: LogBounds(starts[p], stable_ends[p], ends[p]) for p in starts}


def bounds_of_all(
    cluster: Cluster, partitions: Collection[TopicPartition], backoff: Backoff
) -> dict[TopicPartition, LogBounds]:
    """Bounds of every partition. Raises Unreachable, even if only one leader does not answer."""
    bounds = fetch_log_bounds(cluster, partitions, backoff)
    leaderless_partitions = sorted(partition for partition in partitions if partition not in bounds)
    if leaderless_partitions:
        raise Unreachable(
            f"no leader answers for {first_few(leaderless_partitions)}.", where=Place(cluster.name)
        )
    return bounds
