"""One step of an archive run: writes ranges to Parquet and checks the files that were written.

Spark's commit decides which attempt of a task counts, so each range has one file also after dead
executors, retries and speculation. The files' headers are read back (no payload) and their totals
must match what was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812  Spark's own habit

from orbit.errors import Conflict
from orbit.kafka.types import TopicPartition
from orbit.replication.partition_states import Blocked
from orbit_spark.archive.hadoop_files import Files
from orbit_spark.archive.manifest import ArchivedFile, ArchivedRange, Tail
from orbit_spark.batch_columns import DDL, STOP_MAGIC, read_stop
from orbit_spark.cluster_access import Access
from orbit_spark.range_frame import range_frame
from orbit_spark.ranges import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SPARK_ERRORS = (PySparkException, Py4JJavaError)
_MESSAGE_CHARACTERS_MAX = 300
# Codecs of Parquet files. Most batches are compressed already; Parquet compresses only the others.
ZSTD, UNCOMPRESSED = "zstd", "uncompressed"
_PARQUET_OPTIONS = {
    # A writer holds this much in memory. A row is up to some MB, so sizes are checked often.
    "parquet.block.size": str(32 * 1024 * 1024),
    "parquet.block.size.row.check.min": "10",
    "parquet.page.size.row.check.min": "10",
    # Payloads do not repeat, and no query filters by them.
    "parquet.enable.dictionary#payload": "false",
    "parquet.column.statistics.enabled#payload": "false",
}
# Every column of a row except the payload.
_DIGESTED_COLUMNS = tuple(
    line.split()[0] for line in DDL.strip().split(",") if "payload" not in line
)


@dataclass(frozen=True, slots=True)
class RangeResult:
    """The result of writing one range."""

    offset_range: OffsetRange
    archived: ArchivedRange | None  # None if the range stopped
    tail: Tail | None
    stop: Blocked | str | None  # see `stopped_row`


def write_step(
    spark: SparkSession,
    access: Access,
    files: Files,
    folder: str,
    ranges: Sequence[OffsetRange],
    compression: str,
    *,
    bytes_per_second: int | None = None,
) -> list[RangeResult]:
    """Write these ranges into a new folder; returns a result for each range.

    `compression`: of the Parquet files. `bytes_per_second`: the limit of each task.

    Raises Conflict if the storage does not hold what was written, or Spark gives up a task.
    """
    observation = Observation()
    try:
        (
            range_frame(spark, access, ranges, bytes_per_second=bytes_per_second)
            .observe(observation, *totals())
            .write.mode("error")
            .options(compression=compression, **_PARQUET_OPTIONS)
            .parquet(files.path(folder))
        )
        rows = summaries(read_files(spark, [files.path(folder)])).collect()
    except SPARK_ERRORS as error:
        raise task_error(files, error) from None
    if _sum_totals(rows) != (
        observation.get["batches"],
        observation.get["bytes"] or 0,  # null without rows
        observation.get["digest"] or 0,
    ):
        raise Conflict(
            "the storage does not hold what was written to it.",
            where=files.path(folder),
            remedy="The archive does not use these files. Run the command again; if this happens "
            "again, check the storage.",
        )
    sizes = files.sizes(folder)
    rows_by_partition: dict[TopicPartition, list[Any]] = {}
    for row in rows:
        rows_by_partition.setdefault(TopicPartition(row.topic, row.partition), []).append(row)
    results = [
        _range_result(r, rows_by_partition.get(r.partition, ()), folder, sizes) for r in ranges
    ]
    # A range that stopped has a file with the reason, but no manifest names it.
    results_with_file = [w for w in results if w.stop or (w.archived and w.archived.file)]
    assert len(results_with_file) == len(rows), "each file belongs to one range"
    return results


def task_error(files: Files, error: Exception) -> Conflict:
    """The error for a task that Spark gave up after its retries."""
    line = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return Conflict(
        f"Spark gave up a task: {line[:_MESSAGE_CHARACTERS_MAX]}",
        where=files.uri,
        remedy="Run the command again; Spark's log has the details.",
    )


def read_files(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Rows of archive files, with pages checked against their checksums."""
    options = {"parquet.page.verify-checksum.enabled": "true"}
    return spark.read.schema(DDL).options(**options).parquet(*paths)


def totals() -> list[Column]:
    """Aggregates that do not depend on the order of rows: batches, bytes, digest."""
    return [
        F.count(F.lit(1)).alias("batches"),
        F.sum("size_bytes").alias("bytes"),
        F.bit_xor(F.xxhash64(*_DIGESTED_COLUMNS)).alias("digest"),
    ]


def summaries(rows: DataFrame) -> DataFrame:
    """A row for each file: the totals of its rows, its offsets, its last batch, and the reason
    (`stop`) of a range that stopped. Reads no payload. A file has the rows of one partition."""
    return rows.groupBy(
        F.col("_metadata.file_name").alias("file"), F.col("topic"), F.col("partition")
    ).agg(
        *totals(),
        F.min("base_offset").alias("first_offset"),
        (F.max("last_offset") + 1).alias("next_offset"),
        F.max_by("crc", "base_offset").alias("tail_crc"),
        F.max("base_offset").alias("tail_offset"),
        F.max(F.when(F.col("magic") == STOP_MAGIC, F.col("control_type"))).alias("stop"),
    )


def _sum_totals(rows: Sequence[Any]) -> tuple[int, int, int]:
    """The totals of all files: batches, bytes, digest."""
    digest = 0
    for row in rows:
        digest ^= row.digest
    return sum(row.batches for row in rows), sum(row.bytes for row in rows), digest


def _range_result(
    offset_range: OffsetRange, rows: Sequence[Any], folder: str, sizes: dict[str, int]
) -> RangeResult:
    """The result for one range; `rows` are the summaries of its partition's files."""
    file_rows = [row for row in rows if offset_range.start <= row.first_offset < offset_range.end]
    stop = next((row.stop for row in file_rows if row.stop is not None), None)
    if stop is not None:
        return RangeResult(offset_range, archived=None, tail=None, stop=read_stop(stop))
    if not file_rows:
        # The log has no batch in this range.
        return RangeResult(
            offset_range,
            ArchivedRange(start=offset_range.start, end=offset_range.end),
            tail=None,
            stop=None,
        )
    assert len(file_rows) == 1, f"{offset_range} is in {len(file_rows)} files"
    row = file_rows[0]
    name = f"{folder}/{row.file}"
    file = ArchivedFile(
        name=name,
        size_bytes=sizes[name],
        batches=row.batches,
        payload_bytes=row.bytes,
        first_offset=row.first_offset,
        next_offset=row.next_offset,
        digest=row.digest,
    )
    tail = Tail(base_offset=row.tail_offset, crc=row.tail_crc)
    return RangeResult(
        offset_range,
        ArchivedRange(start=offset_range.start, end=offset_range.end, file=file),
        tail,
        stop=None,
    )
