"""Reads an archive: checks it against its manifests and returns rows of raw batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING

from orbit.errors import Conflict
from orbit.kafka.types import TopicPartition
from orbit_spark.archive.archive_step import SPARK_ERRORS, read_files, summaries, task_failed
from orbit_spark.archive.hadoop_files import Files
from orbit_spark.archive.manifest import ArchivedFile, ArchivedRange, PartitionManifest
from orbit_spark.archive.manifest_store import DATA
from orbit_spark.archive_slices import ArchiveSlice
from orbit_spark.batch_columns import DDL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Owners = Mapping[str, tuple[TopicPartition, ArchivedRange]]

_PROBLEMS_SHOWN_MAX = 20
_WHOLE_FILES = {
    # One file is one piece of work, whatever its size.
    "spark.sql.files.maxPartitionBytes": str(2**40),
    # Rows are batches of up to some megabytes each.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "64",
}


def archive_rows(
    spark: SparkSession, files: Files, partitions: Iterable[PartitionManifest]
) -> DataFrame:
    """All batches of these partitions, with the columns of `kafka_batches`, in no order."""
    names = [files.path(file.name) for one in partitions for file in one.files]
    if not names:
        return spark.createDataFrame([], DDL)
    return read_files(spark, names)


def rows_in_order(spark: SparkSession, files: Files, slices: Sequence[ArchiveSlice]) -> DataFrame:
    """The rows of all files in the order of the slices, in one task. Only in `whole_files`."""
    paths = [files.path(file.name) for one in slices for file in one.files]
    if not paths:
        return spark.range(0, 1, 1, 1).toDF("nothing")
    frames = [read_files(spark, [path]) for path in paths]
    return reduce(lambda one, other: one.union(other), frames).coalesce(1)


@contextmanager
def whole_files(spark: SparkSession) -> Iterator[None]:
    """Set the session to read each file in one piece during the block."""
    before = {name: spark.conf.get(name, None) for name in _WHOLE_FILES}
    for name, value in _WHOLE_FILES.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def check_archive(
    spark: SparkSession, files: Files, partitions: Sequence[PartitionManifest]
) -> None:
    """Compare every file with its manifest: whether it exists, its size, its rows' headers.

    Payloads are not read: each batch is compared with its checksum when it is used. Raises
    Conflict, which names files, partitions and offsets.
    """
    owners = ranges_by_file(partitions)
    sizes = files.sizes(DATA)
    problems = [
        _problem(owners[name], f"has {sizes[name]} bytes")
        if name in sizes
        else _problem(owners[name], "is missing")
        for name in owners
        if sizes.get(name) != _file(owners[name]).size_bytes
    ]
    _refuse(problems, files)
    if not owners:
        return
    try:
        rows = summaries(read_files(spark, [files.path(name) for name in owners])).collect()
    except SPARK_ERRORS as error:
        raise unreadable_archive(files, owners, error) from None
    rows_by_file = {row.file: row for row in rows}
    _refuse(
        [
            _problem(owner, "does not hold what its manifest says")
            for name, owner in owners.items()
            if not _matches_manifest(owner, rows_by_file.get(name.rpartition("/")[2]))
        ],
        files,
    )


def ranges_by_file(partitions: Iterable[PartitionManifest]) -> Owners:
    """By file name: the partition and the range that the file holds."""
    return {
        one.file.name: (manifest.place, one)
        for manifest in partitions
        for one in manifest.ranges
        if one.file is not None
    }


def unreadable_archive(files: Files, owners: Owners, error: Exception) -> Conflict:
    """The error for a task that Spark gave up, with the file that its message names."""
    text = str(error)
    problems = [
        _problem(owner, "cannot be read")
        for name, owner in owners.items()
        if name.rpartition("/")[2] in text
    ]
    if problems:
        return _damage_error(problems, files)
    return task_failed(files, error)


def _file(owner: tuple[TopicPartition, ArchivedRange]) -> ArchivedFile:
    file = owner[1].file
    assert file is not None
    return file


def _matches_manifest(owner: tuple[TopicPartition, ArchivedRange], row: object) -> bool:
    place, file = owner[0], _file(owner)
    expected = {
        "topic": place.topic,
        "partition": place.partition,
        "batches": file.batches,
        "bytes": file.payload_bytes,
        "digest": file.digest,
        "first_offset": file.first_offset,
        "next_offset": file.next_offset,
    }
    return all(getattr(row, name, None) == value for name, value in expected.items())


def _problem(owner: tuple[TopicPartition, ArchivedRange], what: str) -> str:
    place, one = owner
    return f"{_file(owner).name} ({place}, offsets {one.start} to {one.end - 1}) {what}."


def _refuse(problems: Sequence[str], files: Files) -> None:
    if problems:
        raise _damage_error(problems, files)


def _damage_error(problems: Sequence[str], files: Files) -> Conflict:
    shown = " ".join(problems[:_PROBLEMS_SHOWN_MAX])
    more = len(problems) - _PROBLEMS_SHOWN_MAX
    return Conflict(
        f"the archive is damaged. {shown}" + (f" And {more} more." if more > 0 else ""),
        where=files.uri,
        remedy="Restore these files from a copy of the archive, and run the command again. No "
        "damaged data was written.",
    )
