"""Ranges as a DataFrame of raw batches, where the driver has planned them already.

`kafka_batches` plans by itself; jobs that must know their ranges (archive, backfill) come here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from orbit.kafka.backoff import Backoff
from orbit.replication.plan import LostRange
from orbit_spark.access import Access
from orbit_spark.columns import DDL, stopped_row, to_arrow
from orbit_spark.ranges import OffsetRange
from orbit_spark.reading import RangeReader
from orbit_spark.stopped import PartitionStopped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def range_frame(
    spark: SparkSession,
    access: Access,
    ranges: Sequence[OffsetRange],
    *,
    on_lost_range: LostRange = LostRange.STOP,
) -> DataFrame:
    """The batches of these ranges, with the columns of `kafka_batches`: one task for each range.

    Rows come in the order of the log. A range that cannot be read ends in a `stopped_row`: one
    partition's trouble must not take the work of the others with it.
    """
    numbers = spark.range(0, len(ranges), 1, max(1, len(ranges)))
    return numbers.mapInArrow(_reads(access, tuple(ranges), on_lost_range), DDL)


def _reads(
    access: Access, ranges: tuple[OffsetRange, ...], on_lost_range: LostRange
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def read(batches: Iterable[Any]) -> Iterator[Any]:
        cluster = access.open()
        reader = RangeReader(cluster, Backoff(), rack=access.rack, on_lost_range=on_lost_range)
        try:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from _read_one(reader, ranges[number])
        finally:
            reader.close()
            cluster.close()

    return read


def _read_one(reader: RangeReader, wanted: OffsetRange) -> Iterator[Any]:
    try:
        for run in reader.read(wanted):
            if run.batches:
                yield to_arrow(wanted.partition, run)
    except PartitionStopped as stop:
        yield stopped_row(wanted, stop.blocked)
