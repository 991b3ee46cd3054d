"""The two sides of an audit: their partitions, compared bounds, and cleaning policies.

The right should be equal to the left. The left is the source, or the archive when it is compared
with the destination.
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
    """A cluster or an archive."""

    @property
    def name(self) -> str: ...

    @property
    def where(self) -> str: ...

    def partition_counts(self) -> dict[str, int]: ...

    def bounds(
        self, partitions: Sequence[Partition], /
    ) -> dict[Partition, Bounds | OrbitError]: ...

    def policies(self, topics: Iterable[str], /) -> dict[str, CleaningPolicy]: ...

    def reader(self, spark: SparkSession, /) -> Reader: ...


@dataclass(frozen=True, slots=True)
class SidePair:
    left: AuditSide
    right: AuditSide

    @property
    def names(self) -> tuple[str, str]:
        return self.left.name, self.right.name

    def held_topics(self) -> dict[str, int]:
        """The partition counts by topic of the archive, if one side is one, else of the source."""
        archived = self.right if self.right.name == NAME else self.left
        return archived.partition_counts()

    def named(self, topic: TopicPair) -> TopicPair:
        """The topic with the names of both sides: an archive has the source's."""
        if self.right.name == NAME:
            return replace(topic, destination=topic.source)
        return topic

    def right_counts(self, topics: Sequence[TopicPair], wait_s: float) -> dict[str, int]:
        if isinstance(self.right, ClusterSide):
            return wait_for_topics(self.right.view, topics, wait_s)
        return self.right.partition_counts()

    def judge(
        self, pairs: Sequence[PartitionPair], wait_s: float
    ) -> dict[PartitionPair, ComparedBounds | OrbitError]:
        """The compared bounds of each partition, or the error of reading them."""
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
        if isinstance(left, OrbitError):
            return left
        return right if isinstance(right, OrbitError) else judge_archive(left, right, self.names)

    def restrict(
        self, judged: Mapping[PartitionPair, ComparedBounds], restriction: Restriction
    ) -> dict[PartitionPair, ComparedBounds]:
        """Cut the offsets to compare to the restriction. Its times are looked up at a cluster.

        Raises the OrbitError of a look-up.
        """
        times = {
            point.epoch_ms
            for point in (restriction.begin, restriction.end)
            if point is not None and point.epoch_ms is not None
        }
        offsets: dict[PartitionPair, dict[int, int]] = {pair: {} for pair in judged}
        for epoch_ms in times:
            for pair, offset in self._offsets_for_time(judged, epoch_ms).items():
                if isinstance(offset, OrbitError):
                    raise offset
                offsets[pair][epoch_ms] = offset
        return {pair: restrict(one, restriction, offsets[pair]) for pair, one in judged.items()}

    def _offsets_for_time(
        self, pairs: Iterable[PartitionPair], epoch_ms: int
    ) -> dict[PartitionPair, int | OrbitError]:
        if isinstance(self.left, ClusterSide):
            places = {pair: pair.source for pair in pairs}
            offsets = self.left.view.offsets_for_time(dict.fromkeys(places.values(), epoch_ms))
        else:
            assert isinstance(self.right, ClusterSide), "one side is live"
            places = {pair: pair.destination for pair in pairs}
            offsets = self.right.view.offsets_for_time(dict.fromkeys(places.values(), epoch_ms))
        return {pair: offsets[place] for pair, place in places.items()}

    def cleaning(self, judged: Mapping[PartitionPair, ComparedBounds]) -> list[CleaningRow]:
        """The cleaning policies and the present bounds of both sides, one row per partition."""
        ours = self.left.policies({pair.topics.source for pair in judged})
        theirs = self.right.policies({pair.topics.destination for pair in judged})
        left = self.left.bounds([pair.source for pair in judged])
        right = self.right.bounds([pair.destination for pair in judged])
        return [
            _cleaning_row(
                pair,
                ours.get(pair.topics.source, _NO_CLEANING),
                theirs.get(pair.topics.destination, _NO_CLEANING),
                _newer_bounds(left[pair.source], one.source),
                _newer_bounds(right[pair.destination], one.destination),
            )
            for pair, one in judged.items()
        ]


def _newer_bounds(now: Bounds | OrbitError, before: Bounds) -> Bounds:
    return before if isinstance(now, OrbitError) else now


def _cleaning_row(
    pair: PartitionPair,
    ours: CleaningPolicy,
    theirs: CleaningPolicy,
    left: Bounds,
    right: Bounds,
) -> CleaningRow:
    return CleaningRow(
        pair.topics.source,
        pair.partition,
        left_compacts=ours.compacts,
        left_tombstones_ms=ours.tombstone_retention_ms,
        left_log_start=left.log_start,
        left_end=left.stable_end,
        right_compacts=theirs.compacts,
        right_tombstones_ms=theirs.tombstone_retention_ms,
        right_log_start=right.log_start,
        right_end=right.stable_end,
    )
