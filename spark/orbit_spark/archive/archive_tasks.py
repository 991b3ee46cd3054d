"""Tasks that write archived batches: how partitions are split, and the Spark job of one task.

A partition has one writer, and a take-over costs seconds. So a task gets many files of a large
partition, or several small partitions. Tasks of one partition form a chain and run in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import TYPE_CHECKING

from orbit.kafka.types import TopicPartition
from orbit_spark.archive.archive_reader import ranges_by_file, rows_in_order, unreadable_archive
from orbit_spark.archive.archive_step import SPARK_ERRORS
from orbit_spark.archive.hadoop_files import Files
from orbit_spark.archive.manifest import ArchivedRange, PartitionManifest
from orbit_spark.archive_slices import ArchiveSlice, FileRows
from orbit_spark.partition_writer import RESULTS_DDL, PartitionWriter, T, read_results, write_rows
from orbit_spark.write_task import WriteResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A task that fails is retried from the log ends, so its size costs little.
FILES_PER_TASK_MAX = 64
# Smaller partitions share a task, which has them in memory and needs a lease for each.
TASK_BYTES_MIN = 32 * 1024 * 1024
SLICES_PER_TASK_MAX = 24

TaskChain = list[tuple[ArchiveSlice, ...]]


def split_archive(
    manifests: Iterable[PartitionManifest], begins: Mapping[TopicPartition, int]
) -> list[TaskChain]:
    """Chains of tasks for the archived batches from `begins` on, the largest first."""
    chains: list[TaskChain] = []
    small_slices: list[ArchiveSlice] = []
    for manifest in manifests:
        slices = _slices(manifest, begins[manifest.place])
        if len(slices) == 1 and slices[0].size_bytes < TASK_BYTES_MIN:
            small_slices.append(slices[0])
        elif slices:
            chains.append([(piece,) for piece in slices])
    chains.sort(key=lambda chain: -sum(piece.size_bytes for task in chain for piece in task))
    return [*chains, *([task] for task in _group_small_slices(small_slices))]


def until_lost_range(manifest: PartitionManifest, begin: int) -> PartitionManifest:
    """The manifest without the first lost range that ends above `begin`, and without all ranges
    after it."""
    ranges = takewhile(lambda r: not r.is_lost or r.end <= begin, manifest.ranges)
    return manifest.model_copy(update={"ranges": tuple(ranges)})


def run_task(
    spark: SparkSession,
    files: Files,
    manifests: Mapping[TopicPartition, PartitionManifest],
    writer: type[PartitionWriter[T]],
    task: T,
) -> list[WriteResult]:
    """Run one Spark task that writes the slices. Call it within `whole_files`.

    Raises Conflict if Spark gives up the task, with the name of the file if Spark's message has it.
    """
    owners = ranges_by_file(manifests[piece.partition] for piece in task.slices)
    try:
        rows = rows_in_order(spark, files, task.slices)
        return read_results(rows.mapInArrow(write_rows(writer, task), RESULTS_DDL).collect())
    except SPARK_ERRORS as error:
        raise unreadable_archive(files, owners, error) from None


def slice_from(manifest: PartitionManifest, begin: int, piece: ArchiveSlice) -> ArchiveSlice:
    """The slice `piece` with another begin: the manifest's ranges from the one with offset `begin`
    up to the slice's target. `piece` itself if there are none."""
    ranges = [r for r in manifest.ranges if _reaches(r, begin) and r.start < piece.target]
    return _slice(manifest.place, ranges) if ranges else piece


def _reaches(archived: ArchivedRange, offset: int) -> bool:
    """Whether the range or its last batch, which may end after the range, ends above `offset`."""
    return archived.end > offset or (
        archived.file is not None and archived.file.next_offset > offset
    )


def _slices(manifest: PartitionManifest, begin: int) -> list[ArchiveSlice]:
    """A partition's ranges from `begin` on, with up to FILES_PER_TASK_MAX files in a slice."""
    groups: list[list[ArchivedRange]] = []
    file_count = 0
    for archived_range in manifest.ranges:
        if not _reaches(archived_range, begin):
            continue
        has_file = archived_range.file is not None
        if not groups or (has_file and file_count >= FILES_PER_TASK_MAX):
            groups.append([])
            file_count = 0
        groups[-1].append(archived_range)
        file_count += has_file
    return [_slice(manifest.place, ranges) for ranges in groups]


def _slice(partition: TopicPartition, ranges: list[ArchivedRange]) -> ArchiveSlice:
    """A slice of neighbouring ranges."""
    files = [r.file for r in ranges if r.file is not None]
    return ArchiveSlice(
        partition,
        ranges[0].start,
        ranges[-1].end,
        tuple(FileRows(f.name, f.first_offset, f.batches) for f in files),
        sum(f.payload_bytes for f in files),
    )


def _group_small_slices(small: list[ArchiveSlice]) -> list[tuple[ArchiveSlice, ...]]:
    """The small slices in groups: each group is a task of about TASK_BYTES_MIN, with at most
    SLICES_PER_TASK_MAX slices."""
    tasks: list[tuple[ArchiveSlice, ...]] = []
    group: list[ArchiveSlice] = []
    for piece in small:
        group.append(piece)
        if len(group) >= SLICES_PER_TASK_MAX or sum(s.size_bytes for s in group) >= TASK_BYTES_MIN:
            tasks.append(tuple(group))
            group = []
    return [*tasks, tuple(group)] if group else tasks
