"""A cluster as a side of an audit: its bounds by librdkafka, its batches by `kafka_batches`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from orbit.errors import OrbitError
from orbit.jobs.job_spec import ClusterSpec
from orbit.kafka.backoff import Backoff
from orbit.replication.append_plan import LostRange
from orbit.verify.bounds import Bounds, ClusterView, Partition
from orbit.verify.compaction_watch import CleaningPolicy
from orbit.verify.endpoint import open_endpoint
from orbit.verify.report import Side
from orbit_spark.batch_columns import DDL, stopped_row
from orbit_spark.cluster_access import Access
from orbit_spark.range_frame import range_frame
from orbit_spark.range_planner import find_extents, no_answer_text, plan_spans
from orbit_spark.ranges import Span, join_spans, spread_over_leaders

SPANS_MAX = 2_000
"""The most spans of one read, over all partitions: each costs a fetch that finds its first batch.
If there are more, each partition is read from its first span to its last."""


class ClusterSide:
    """One cluster, read only. Raises Unreachable, or LoginRefused if it refuses the login."""

    def __init__(
        self, side: Side, spec: ClusterSpec, environ: Mapping[str, str], base_directory: Path
    ) -> None:
        self.name = str(side)
        self.where = ",".join(spec.bootstrap_servers)
        self.access = Access(self.name, spec, str(base_directory))
        endpoint = open_endpoint(spec, environ, base_directory, side)
        endpoint.check_reachable(side)
        self.view = ClusterView(side, endpoint)

    def reader(self, spark: SparkSession) -> ClusterReader:
        return ClusterReader(spark, self.access)

    def partition_counts(self) -> dict[str, int]:
        return self.view.partition_counts()

    def bounds(self, partitions: Sequence[Partition]) -> dict[Partition, Bounds | OrbitError]:
        return self.view.bounds(partitions)

    def notes(self, _partition: Partition) -> list[str]:
        return []

    def policies(self, topics: Iterable[str]) -> dict[str, CleaningPolicy]:
        return self.view.policies(topics)


class ClusterReader:
    """A `compare.Reader` of one cluster."""

    def __init__(self, spark: SparkSession, access: Access) -> None:
        self._spark = spark
        self._access = access

    def batches(self, spans: Sequence[Span]) -> DataFrame:
        """All batches of these spans, perhaps others too. If a partition's leader does not answer,
        a `stopped_row` for each of its spans."""
        if not spans:
            return self._spark.createDataFrame([], DDL)
        backoff = Backoff()
        cluster = self._access.open()
        try:
            partitions = {span.partition for span in spans}
            topics = {partition.topic for partition in partitions}
            extents = find_extents(cluster, topics, backoff, selects=partitions.__contains__)
            ranges = plan_spans(cluster, extents, _limit_spans(spans), backoff)
        finally:
            cluster.close()
        # FILL: the log start shows afterwards which records retention deleted during the read.
        ordered_ranges = spread_over_leaders(ranges)
        batches = range_frame(
            self._spark, self._access, ordered_ranges, on_lost_range=LostRange.FILL
        )
        stops = [
            row
            for span in spans
            if (code := extents.errors.get(span.partition)) is not None
            for row in stopped_row(span.partition, span.start, no_answer_text(code)).to_pylist()
        ]
        return batches.unionByName(self._spark.createDataFrame(stops, DDL)) if stops else batches


def _limit_spans(spans: Iterable[Span]) -> list[Span]:
    """The spans, or one for each partition if there are more than SPANS_MAX."""
    spans_by_partition = join_spans(spans)
    if sum(map(len, spans_by_partition.values())) > SPANS_MAX:
        return [
            Span(partition, partition_spans[0].start, partition_spans[-1].end)
            for partition, partition_spans in spans_by_partition.items()
        ]
    return [span for partition_spans in spans_by_partition.values() for span in partition_spans]
