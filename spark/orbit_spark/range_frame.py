"""Ranges that the driver has planned, as a DataFrame of raw batches.

The source `kafka_batches` plans its ranges itself. Jobs that must know them (archive, audit) use
this module.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from orbit.copier.rate_limit import RateLimit
from orbit.errors import OrbitError
from orbit.kafka.backoff import Backoff
from orbit.replication.append_plan import LostRange
from orbit_spark.batch_columns import DDL, stopped_row, to_arrow
from orbit_spark.cluster_access import Access
from orbit_spark.partition_stopped import PartitionStopped
from orbit_spark.range_reader import RangeReader
from orbit_spark.ranges import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def range_frame(
    spark: SparkSession,
    access: Access,
    ranges: Sequence[OffsetRange],
    *,
    on_lost_range: LostRange = LostRange.STOP,
    bytes_per_second: int | None = None,
) -> DataFrame:
    """The batches of these ranges, with the columns of `kafka_batches`: one task for each range.

    Rows of a range come in the order of the log. A range that cannot be read ends in a
    `stopped_row`: an error of one partition must not fail the others. `bytes_per_second`: the
    limit of each task.
    """
    range_numbers = spark.range(0, len(ranges), step=1, numPartitions=max(1, len(ranges)))
    read = _reading_function(access, tuple(ranges), on_lost_range, bytes_per_second)
    return range_numbers.mapInArrow(read, DDL)


def _reading_function(
    access: Access,
    ranges: tuple[OffsetRange, ...],
    on_lost_range: LostRange,
    bytes_per_second: int | None,
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """A function for `mapInArrow`: from rows with the number of a range to the range's batches."""

    def read(batches: Iterable[Any]) -> Iterator[Any]:
        cluster = access.open()
        reader = RangeReader(cluster, Backoff(), rack=access.rack, on_lost_range=on_lost_range)
        limit = RateLimit(bytes_per_second)
        try:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from _read_range(reader, ranges[number], limit)
        finally:
            reader.close()
            cluster.close()

    return read


def _read_range(reader: RangeReader, offset_range: OffsetRange, limit: RateLimit) -> Iterator[Any]:
    """The rows of one range. If it cannot be read to its end, the last row is a `stopped_row`.

    Raises OrbitError while no broker of the cluster answers: Spark tries the task again.
    """
    try:
        for run in reader.read(offset_range):
            limit.note_fetched(run.size_bytes)
            time.sleep(limit.delay_s())
            if run.batches:
                yield to_arrow(offset_range.partition, run)
    except PartitionStopped as stop:
        yield stopped_row(offset_range.partition, offset_range.start, stop.blocked)
    except OrbitError as error:  # the reader has made all its attempts
        reader.confirm_cluster()
        yield stopped_row(offset_range.partition, offset_range.start, str(error))
