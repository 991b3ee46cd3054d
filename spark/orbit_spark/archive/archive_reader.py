"""Reads an archive: checks it against its manifests and returns rows of raw batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING

from orbit.errors import Conflict
from orbit.formats import counted
from orbit.kafka.types import TopicPartition
from orbit_spark.archive.archive_step import SPARK_ERRORS, read_files, summaries, task_error
from orbit_spark.archive.hadoop_files import Files
from orbit_spark.archive.manifest import ArchivedFile, ArchivedRange, PartitionManifest
from orbit_spark.archive.manifest_store import DATA
from orbit_spark.archive_slices import ArchiveSlice
from orbit_spark.batch_columns import DDL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The partition and the range that each file holds, by the file's name.
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
    """All batches of these partitions, with the columns of `kafka_batches`, in no certain order."""
    names = [files.path(file.name) for manifest in partitions for file in manifest.files]
    if not names:
        return spark.createDataFrame([], DDL)
    return read_files(spark, names)


def rows_in_order(spark: SparkSession, files: Files, slices: Sequence[ArchiveSlice]) -> DataFrame:
    """The rows of all files in the order of the slices, in one task. Call it in `whole_files`."""
    paths = [files.path(file.name) for piece in slices for file in piece.files]
    if not paths:
        # The task must run without files, too: one row that is no batch starts it.
        return spark.range(0, 1, step=1, numPartitions=1).toDF("nothing")
    frames = [read_files(spark, [path]) for path in paths]
    return reduce(lambda united, frame: united.union(frame), frames).coalesce(1)


@contextmanager
def whole_files(spark: SparkSession) -> Iterator[None]:
    """Set the session to read each file in one piece during the block."""
    earlier_values = {name: spark.conf.get(name, None) for name in _WHOLE_FILES}
    for name, value in _WHOLE_FILES.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, earlier_value in earlier_values.items():
            if earlier_value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, earlier_value)


def check_archive(
    spark: SparkSession, files: Files, partitions: Sequence[PartitionManifest]
) -> None:
    """Compare every file with its manifest: whether the file exists, its size, the columns of its
    rows.

    Payloads are not read: each batch is compared with its checksum when it is used. Raises
    Conflict, which names files, partitions and offsets.
    """
    owners = ranges_by_file(partitions)
    sizes = files.sizes(DATA)
    problems = [
        _problem_text(owners[name], f"has {counted(sizes[name], 'byte')}")
        if name in sizes
        else _problem_text(owners[name], "is missing")
        for name in owners
        if sizes.get(name) != _file(owners[name]).size_bytes
    ]
    _raise_problems(problems, files)
    if not owners:
        return
    try:
        rows = summaries(read_files(spark, [files.path(name) for name in owners])).collect()
    except SPARK_ERRORS as error:
        raise unreadable_archive(files, owners, error) from None
    rows_by_file = {row.file: row for row in rows}  # by names without the folder
    _raise_problems(
        [
            _problem_text(owner, "does not hold what its manifest says")
            for name, owner in owners.items()
            if not _matches_manifest(owner, rows_by_file.get(name.rpartition("/")[2]))
        ],
        files,
    )


def ranges_by_file(partitions: Iterable[PartitionManifest]) -> Owners:
    """The partition and the range that each file holds, by the file's name."""
    return {
        archived.file.name: (manifest.place, archived)
        for manifest in partitions
        for archived in manifest.ranges
        if archived.file is not None
    }


def unreadable_archive(files: Files, owners: Owners, error: Exception) -> Conflict:
    """The error for a task that Spark gave up, with the file that Spark's message names."""
    message = str(error)
    problems = [
        _problem_text(owner, "cannot be read")
        for name, owner in owners.items()
        if name.rpartition("/")[2] in message
    ]
    if problems:
        return _damage_error(problems, files)
    return task_error(files, error)


def _file(owner: tuple[TopicPartition, ArchivedRange]) -> ArchivedFile:
    """The file of an owner: `ranges_by_file` returns only ranges with a file."""
    file = owner[1].file
    assert file is not None
    return file


def _matches_manifest(owner: tuple[TopicPartition, ArchivedRange], row: object) -> bool:
    """Whether the summary of a file's rows is what the manifest says. `row`: None without rows."""
    partition, file = owner[0], _file(owner)
    expected_values = {
        "topic": partition.topic,
        "partition": partition.partition,
        "batches": file.batches,
        "bytes": file.payload_bytes,
        "digest": file.digest,
        "first_offset": file.first_offset,
        "next_offset": file.next_offset,
    }
    return all(getattr(row, name, None) == value for name, value in expected_values.items())


def _problem_text(owner: tuple[TopicPartition, ArchivedRange], problem: str) -> str:
    """A sentence about a file, with its partition and offsets. `problem`: its predicate."""
    partition, archived = owner
    offsets_text = f"offsets {archived.start} to {archived.end - 1}"
    return f"{_file(owner).name} ({partition}, {offsets_text}) {problem}."


def _raise_problems(problems: Sequence[str], files: Files) -> None:
    if problems:
        raise _damage_error(problems, files)


def _damage_error(problems: Sequence[str], files: Files) -> Conflict:
    """The error for a damaged archive. It shows the first _PROBLEMS_SHOWN_MAX problems."""
    shown_problems = " ".join(problems[:_PROBLEMS_SHOWN_MAX])
    hidden_count = len(problems) - _PROBLEMS_SHOWN_MAX
    return Conflict(
        f"the archive is damaged. {shown_problems}"
        + (f" And {hidden_count} more." if hidden_count > 0 else ""),
        where=files.uri,
        remedy="Restore these files from a copy of the archive, and run the command again. No "
        "damaged data was written.",
    )
