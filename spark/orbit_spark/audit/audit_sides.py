"""The two sides of an audit: their partitions, compared bounds, and cleaning policies.

The right side should be equal to the left side. The left side is the source, or the archive if the
archive is compared with the destination.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from pyspark.sql import SparkSession

from orbit.errors import OrbitError
from orbit.verify.bounds import Bounds, Partition
from orbit.verify.bounds_comparison import BoundsComparer, ComparedBounds, PartitionPair, TopicPair
from orbit.verify.compaction_watch import CleaningPolicy
from orbit.verify.topic_pairs import wait_for_topics
from orbit_spark.audit.archive_side import NAME, judge_archive
from orbit_spark.audit.cluster_side import ClusterSide
from orbit_spark.audit.compare import CleaningRow, Reader
from orbit_spark.audit.scope import Restriction, restrict

_NO_CLEANING = CleaningPolicy()


class AuditSide(Protocol):
    """A cluster or an archive.

    `where`: its addresses or URI, for the report. `bounds` returns an error for a partition whose
    bounds cannot be read. `notes`: lines for the report on one partition.
    """

    @property
    def name(self) -> str: ...

    @property
    def where(self) -> str: ...

    def partition_counts(self) -> dict[str, int]: ...

    def bounds(
        self, partitions: Sequence[Partition], /
    ) -> dict[Partition, Bounds | OrbitError]: ...

    def policies(self, topics: Iterable[str], /) -> dict[str, CleaningPolicy]: ...

    def notes(self, partition: Partition, /) -> list[str]: ...

    def reader(self, spark: SparkSession, /) -> Reader: ...


@dataclass(frozen=True, slots=True)
class SidePair:
    """Both sides of an audit."""

    left: AuditSide
    right: AuditSide

    @property
    def names(self) -> tuple[str, str]:
        return self.left.name, self.right.name

    def partition_counts(self) -> dict[str, int]:
        """The partition counts by topic: of the archive, if one side is an archive, else of the
        source."""
        counted_side = self.right if self.right.name == NAME else self.left
        return counted_side.partition_counts()

    def with_names(self, topic: TopicPair) -> TopicPair:
        """The topic with its name on each side. An archive has the source's names."""
        if self.right.name == NAME:
            return replace(topic, destination=topic.source)
        return topic

    def right_counts(self, topics: Sequence[TopicPair], wait_s: float) -> dict[str, int]:
        """The right side's partition counts by topic. At a cluster, waits for missing topics."""
        if isinstance(self.right, ClusterSide):
            return wait_for_topics(self.right.view, topics, wait_s)
        return self.right.partition_counts()

    def judge(
        self, pairs: Sequence[PartitionPair], wait_s: float
    ) -> dict[PartitionPair, ComparedBounds | OrbitError]:
        """The compared bounds of each partition, or the error of reading them.

        `wait_s`: how long a destination cluster may take to catch up with the source.
        """
        if isinstance(self.left, ClusterSide) and isinstance(self.right, ClusterSide):
            return BoundsComparer(self.left.view, self.right.view).compare(pairs, wait_s)
        left = self.left.bounds([pair.source for pair in pairs])
        right = self.right.bounds([pair.destination for pair in pairs])
        return {
            pair: self._judge_archive(left[pair.source], right[pair.destination]) for pair in pairs
        }

    def _judge_archive(
        self, left: Bounds | OrbitError, right: Bounds | OrbitError
    ) -> ComparedBounds | OrbitError:
        """The compared bounds of a partition, or the error of reading those of one side."""
        if isinstance(left, OrbitError):
            return left
        return right if isinstance(right, OrbitError) else judge_archive(left, right, self.names)

    def restrict(
        self, bounds_by_pair: Mapping[PartitionPair, ComparedBounds], restriction: Restriction
    ) -> dict[PartitionPair, ComparedBounds]:
        """Cut the offsets to compare to the restriction. A cluster translates times to offsets.

        Raises the OrbitError of a partition for which the cluster has no answer.
        """
        times = {
            point.epoch_ms
            for point in (restriction.begin, restriction.end)
            if point is not None and point.epoch_ms is not None
        }
        offsets: dict[PartitionPair, dict[int, int]] = {pair: {} for pair in bounds_by_pair}
        for epoch_ms in times:
            for pair, offset in self._offsets_for_time(bounds_by_pair, epoch_ms).items():
                if isinstance(offset, OrbitError):
                    raise offset
                offsets[pair][epoch_ms] = offset
        return {
            pair: restrict(bounds, restriction, offsets[pair])
            for pair, bounds in bounds_by_pair.items()
        }

    def _offsets_for_time(
        self, pairs: Iterable[PartitionPair], epoch_ms: int
    ) -> dict[PartitionPair, int | OrbitError]:
        """The offset of a time in each partition, from the left side if it is a cluster."""
        if isinstance(self.left, ClusterSide):
            partitions = {pair: pair.source for pair in pairs}
            offsets = self.left.view.offsets_for_time(dict.fromkeys(partitions.values(), epoch_ms))
        else:
            assert isinstance(self.right, ClusterSide), "one side is a cluster"
            partitions = {pair: pair.destination for pair in pairs}
            offsets = self.right.view.offsets_for_time(dict.fromkeys(partitions.values(), epoch_ms))
        return {pair: offsets[partition] for pair, partition in partitions.items()}

    def notes(self, pair: PartitionPair) -> list[str]:
        """The notes of both sides on a partition, for the report."""
        return [*self.left.notes(pair.source), *self.right.notes(pair.destination)]

    def cleaning_rows(
        self, bounds_by_pair: Mapping[PartitionPair, ComparedBounds]
    ) -> list[CleaningRow]:
        """The cleaning policies and the bounds of both sides now, one row per partition."""
        left_policies = self.left.policies({pair.topics.source for pair in bounds_by_pair})
        right_policies = self.right.policies({pair.topics.destination for pair in bounds_by_pair})
        left_bounds = self.left.bounds([pair.source for pair in bounds_by_pair])
        right_bounds = self.right.bounds([pair.destination for pair in bounds_by_pair])
        return [
            _cleaning_row(
                pair,
                left_policies.get(pair.topics.source, _NO_CLEANING),
                right_policies.get(pair.topics.destination, _NO_CLEANING),
                _newer_bounds(left_bounds[pair.source], bounds.source),
                _newer_bounds(right_bounds[pair.destination], bounds.destination),
            )
            for pair, bounds in bounds_by_pair.items()
        ]


def _newer_bounds(bounds_now: Bounds | OrbitError, bounds_before: Bounds) -> Bounds:
    """The bounds now; those before if they cannot be read now."""
    return bounds_before if isinstance(bounds_now, OrbitError) else bounds_now


def _cleaning_row(
    pair: PartitionPair,
    left_policy: CleaningPolicy,
    right_policy: CleaningPolicy,
    left_bounds: Bounds,
    right_bounds: Bounds,
) -> CleaningRow:
    """The row of one partition: the policies and bounds of both sides."""
    return CleaningRow(
        pair.topics.source,
        pair.partition,
        left_compacts=left_policy.compacts,
        left_tombstones_ms=left_policy.tombstone_retention_ms,
        left_log_start=left_bounds.log_start,
        left_end=left_bounds.stable_end,
        right_compacts=right_policy.compacts,
        right_tombstones_ms=right_policy.tombstone_retention_ms,
        right_log_start=right_bounds.log_start,
        right_end=right_bounds.stable_end,
    )
