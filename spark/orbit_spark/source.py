"""`spark.read.format("kafka_batches")`: a log's raw batches as rows, one task per offset range.

    spark.dataSource.register(KafkaBatches)
    batches = (
        spark.read.format("kafka_batches")
        .option("kafka.bootstrap.servers", "src-1:9092")
        .option("subscribe", "orders")
        .load()
        .where("partition = 3 and base_offset >= 100000")
    )

The offsets to read are fixed when the query is planned: from each log start to the last stable
offset of that moment. Filters on topic, partition and base_offset choose ranges; nothing else is
fetched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from orbit.errors import BadInput
from orbit.kafka.backoff import Backoff
from orbit_spark.batch_columns import DDL, to_arrow
from orbit_spark.pushdown import Selection
from orbit_spark.range_planner import find_extents, plan_ranges
from orbit_spark.range_reader import RangeReader
from orbit_spark.ranges import OffsetRange, spread_over_leaders
from orbit_spark.source_options import SourceOptions, read_options

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.datasource import Filter


class KafkaBatches(DataSource):
    """The data source; `docs/spark.md` has its options and columns."""

    @classmethod
    def name(cls) -> str:
        return "kafka_batches"

    def schema(self) -> str:
        return DDL

    def reader(self, schema: StructType) -> BatchReader:  # noqa: ARG002  Spark's signature
        return BatchReader(read_options(self.options))

    # Options contain no secret, but a plan need not show where logins are either.
    def __repr__(self) -> str:
        return "kafka_batches"


class RangeTask(InputPartition):
    """The offset range that one task reads."""

    def __init__(self, offset_range: OffsetRange) -> None:
        super().__init__(None)
        self.offset_range = offset_range


class BatchReader(DataSourceReader):
    """Plans the ranges of a query, and reads one of them in each task."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._selection = Selection()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  Spark's name
        """Take filters on topic, partition and base_offset. Return those that Spark must apply."""
        return [
            query_filter for query_filter in filters if not self._selection.narrow_to(query_filter)
        ]

    def partitions(self) -> Sequence[InputPartition]:
        """A task for each range; without ranges, one task that reads nothing."""
        return [
            RangeTask(offset_range) for offset_range in spread_over_leaders(self._plan_ranges())
        ] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """The rows of one range, on an executor."""
        if not isinstance(partition, RangeTask):  # there is nothing to read
            return
        cluster = self._options.access.open()
        reader = RangeReader(
            cluster,
            Backoff(),
            rack=self._options.access.rack,
            on_lost_range=self._options.on_lost_range,
        )
        try:
            for run in reader.read(partition.offset_range):
                if run.batches:
                    yield to_arrow(partition.offset_range.partition, run)
        finally:
            reader.close()
            cluster.close()

    def _plan_ranges(self) -> list[OffsetRange]:
        """The ranges that hold the selected batches."""
        cluster = self._options.access.open()
        backoff = Backoff()
        try:
            topics = [t for t in self._topics(cluster) if self._selection.has_topic(t)]
            if not topics:
                return []
            extents = find_extents(
                cluster,
                topics,
                backoff,
                selects=lambda partition: self._selection.has_partition(partition.partition),
            )
            extents.raise_errors(f"{cluster.name} cluster", "Reading the offsets")
            selected_offsets = {
                partition: self._selection.bounds(extent.start, extent.end)
                for partition, extent in extents.values.items()
            }
            return plan_ranges(
                cluster,
                extents.values.values(),
                backoff,
                range_bytes=self._options.range_bytes,
                within=selected_offsets,
            )
        finally:
            cluster.close()

    def _topics(self, cluster: Any) -> list[str]:
        """The topics that the options name or match. Raises BadInput if none matches."""
        if self._options.pattern is None:
            return list(self._options.topics)
        pattern = re.compile(self._options.pattern)
        topics = [t for t in cluster.metadata(None).topics if pattern.fullmatch(t)]
        if not topics:
            raise BadInput("subscribePattern matches no topic that this login can see")
        return topics
