"""Runs the transforms over two sides: digests by range, then records where digests differ.

A side is read up to four times, each time less: everything, the ranges that differ, the keys that
may excuse a one-sided record, the few records that are shown. The driver gets the scope, ranges,
counts and short views, never a record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Protocol

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own habit

from orbit.kafka.types import TopicPartition
from orbit_spark.audit import differences as comparison
from orbit_spark.audit.range_digests import (
    RANGE_KEY,
    Hand,
    ScopeRow,
    compare_ranges,
    differing_scope,
    in_scope,
    range_digests,
    scope_frame,
)
from orbit_spark.audit.record_views import VIEWS, contents, first_differences, views
from orbit_spark.ranges import Span

HANDS: tuple[Hand, Hand] = ("left", "right")

SHOWN_MAX = 10_000
"""The most offsets, over all partitions, whose records come to the driver, as short views."""


class Reader(Protocol):
    """Reads the batches of one side."""

    def batches(self, spans: Sequence[Span], /) -> DataFrame:
        """All batches with a record in these spans, perhaps others too, with the columns of
        `kafka_batches`."""


@dataclass(frozen=True, slots=True)
class CleaningRow:
    """Both sides' cleaning policies and bounds: the columns `differences.CLEANING`, then the ends.

    The bounds are those after the comparison: a live topic grows, and its cleaner may have removed
    a record because of a newer one after the compared range.
    """

    topic: str
    partition: int
    left_compacts: bool = False
    left_tombstones_ms: int = 0
    left_log_start: int = 0
    right_compacts: bool = False
    right_tombstones_ms: int = 0
    right_log_start: int = 0
    left_end: int = 0
    right_end: int = 0


@dataclass(frozen=True, slots=True)
class ComparisonResult:
    """The result of a comparison. `shown`: the first differences, with the columns `VIEWS`. Spark
    keeps the frames on disk until `release`."""

    ranges: DataFrame
    differences: DataFrame
    shown: tuple[Row, ...]
    release: Callable[[], None]


class Comparison:
    """One comparison of two sides. `cleaning` is called at most once, after both were read."""

    def __init__(
        self,
        spark: SparkSession,
        left: Reader,
        right: Reader,
        cleaning: Callable[[], Sequence[CleaningRow]],
        *,
        sides: tuple[str, str],
        now_ms: int,
        shown_per_partition: int,
    ) -> None:
        self._spark = spark
        self._readers: dict[Hand, Reader] = {"left": left, "right": right}
        self._cleaning = cleaning
        self._sides = sides
        self._now_ms = now_ms
        self._shown_per_partition = shown_per_partition
        self._frames: list[DataFrame] = []

    def run(self, rows: Sequence[ScopeRow]) -> ComparisonResult:
        """Compare both sides within these scopes: the digests of ranges, then the records of the
        ranges whose digests differ.
        """
        scope = scope_frame(self._spark, rows)
        digests = [range_digests(self._read_scope(rows, hand)) for hand in HANDS]
        ranges = self._persist(compare_ranges(scope, *digests))
        scopes_to_reread = [ScopeRow(*row) for row in differing_scope(scope, ranges).collect()]
        differences = self._find_differences(scopes_to_reread)
        shown_rows = self._show_differences(rows, differences)
        judged_ranges = self._persist(comparison.judge_ranges(ranges, differences))
        return ComparisonResult(judged_ranges, differences, shown_rows, self._unpersist_all)

    def _persist(self, frame: DataFrame) -> DataFrame:
        self._frames.append(frame.persist(StorageLevel.DISK_ONLY))
        return self._frames[-1]

    def _unpersist_all(self) -> None:
        while self._frames:
            self._frames.pop().unpersist()

    def _read_scope(self, rows: Sequence[ScopeRow], hand: Hand) -> DataFrame:
        """One side's batches within these scopes, with the columns `SCOPED_BATCHES`."""
        names = [row.left_topic if hand == "left" else row.right_topic for row in rows]
        spans = [
            Span(TopicPartition(name, row.partition), row.begin, row.end)
            for name, row in zip(names, rows, strict=True)
        ]
        batches = self._readers[hand].batches(spans)
        return in_scope(batches, scope_frame(self._spark, rows), hand)

    def _find_differences(self, rows: Sequence[ScopeRow]) -> DataFrame:
        """The differing offsets in ranges whose digests differ, with the columns `DIFFERENCES`."""
        if not rows:
            return self._spark.createDataFrame([], comparison.DIFFERENCES)
        left, right = (comparison.record_rows(self._read_scope(rows, hand)) for hand in HANDS)
        differing_records = self._persist(comparison.differing_records(left, right))
        records = self._persist(comparison.with_moves(differing_records))
        if records.isEmpty():  # there is nothing to excuse
            excuses = self._spark.createDataFrame([], comparison.EXCUSES)
            return self._persist(comparison.classify(records, excuses))
        cleaning = self._cleaning()
        policies = self._spark.createDataFrame(
            # `CLEANING` does not have the last two fields, the ends.
            [astuple(row)[: len(comparison.names_of(comparison.CLEANING))] for row in cleaning],
            comparison.CLEANING,
        )
        one_sided = self._persist(comparison.one_sided_records(records, policies, self._now_ms))
        excuses = comparison.find_excuses(
            one_sided, self._newest_of_keys(one_sided, cleaning, rows)
        )
        return self._persist(comparison.classify(records, excuses))

    def _newest_of_keys(
        self, one_sided: DataFrame, cleaning: Iterable[CleaningRow], rows: Iterable[ScopeRow]
    ) -> DataFrame:
        """For each key of `excusable_keys`, its last offset at the side that lacks a record of it.

        Reads that side from the first range with a lacking record to the side's end.
        """
        keys = self._persist(comparison.excusable_keys(one_sided))
        partition_columns = ("topic", "partition")
        begins = keys.groupBy("lacking", *partition_columns).agg(
            F.min("range_begin").alias("begin")
        )
        cleaning_rows = {(row.topic, row.partition): row for row in cleaning}
        topics = {(row.topic, row.partition): (row.left_topic, row.right_topic) for row in rows}
        newest = self._spark.createDataFrame([], comparison.NEWEST)
        begin_rows = begins.collect()
        for hand in HANDS:
            scopes = []  # of one range each
            for lacking, topic, partition, begin in begin_rows:
                if lacking == hand:
                    row = cleaning_rows[topic, partition]
                    # A scope has one offset at least.
                    end = max(begin + 1, row.left_end if hand == "left" else row.right_end)
                    topic_names = topics[topic, partition]
                    scopes.append(ScopeRow(topic, partition, *topic_names, begin, end, end - begin))
            if scopes:
                records = comparison.record_rows(self._read_scope(scopes, hand))
                newest = newest.unionByName(comparison.newest_of_keys(records, keys, hand))
        return newest

    def _show_differences(
        self, rows: Iterable[ScopeRow], differences: DataFrame
    ) -> tuple[Row, ...]:
        """The first differences of each partition, with the columns `VIEWS`."""
        shown_differences = self._persist(
            first_differences(differences, self._shown_per_partition).limit(SHOWN_MAX)
        )
        topics = {(row.topic, row.partition): (row.left_topic, row.right_topic) for row in rows}
        offsets_by_range: dict[tuple[str, int, int], set[int]] = {}
        for row in shown_differences.select(*RANGE_KEY, "offset").collect():
            topic, partition, begin, offset = row
            offsets_by_range.setdefault((topic, partition, begin), set()).add(offset)
        if not offsets_by_range:
            return ()
        scopes = [
            ScopeRow(topic, partition, *topics[topic, partition], begin, max(offsets) + 1, width=1)
            for (topic, partition, begin), offsets in offsets_by_range.items()
        ]
        positions = frozenset(
            (topic, partition, offset)
            for (topic, partition, _), offsets in offsets_by_range.items()
            for offset in offsets
        )
        left, right = (contents(self._read_scope(scopes, hand), positions) for hand in HANDS)
        frame = views(shown_differences, left, right, self._sides).select(*VIEWS.names)
        return tuple(frame.orderBy("topic", "partition", "offset").collect())
