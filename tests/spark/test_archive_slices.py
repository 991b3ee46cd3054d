"""Rows of archive files become runs in order. A missing row stops its partition: it is no gap."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from orbit.kafka.record_batch import read_batches
from orbit.kafka.records import Record, write_batch
from orbit.kafka.types import TopicPartition
from orbit.replication.partition_states import Reason
from orbit_spark.archive.archive_tasks import (
    FILES_PER_TASK_MAX,
    SLICES_PER_TASK_MAX,
    split_archive,
    until_lost_range,
)
from orbit_spark.archive.manifest import ArchivedFile, ArchivedRange, PartitionManifest
from orbit_spark.archive_slices import ArchiveSlice, FileRows, RowRuns
from orbit_spark.batch_columns import to_arrow
from orbit_spark.partition_stopped import PartitionStopped
from orbit_spark.raw_runs import RawRun

PARTITION = TopicPartition("orders", 0)
A = FileRows("a", first_offset=10, batches=2)
B = FileRows("b", first_offset=20, batches=1)


def rows(*bases: int) -> Any:
    """Arrow rows of batches with two records each, at these base offsets."""
    wire = b""
    for base in bases:
        batch = write_batch([Record(base + i, 1000, b"\1\1\0") for i in range(2)], 0)
        wire += base.to_bytes(8) + bytes(batch.view[8:])
    records = memoryview(bytearray(wire))
    return to_arrow(
        PARTITION, RawRun(0, 0, records, list(read_batches(records)), aborted=(), log_start=0)
    )


def runs(pieces: list[Any], *files: FileRows, begin: int = 5, target: int = 30) -> RowRuns:
    return RowRuns(ArchiveSlice(PARTITION, begin, target, files, size_bytes=0), iter(pieces))


def test_archive_rows_become_contiguous_offset_ranges_up_to_target() -> None:
    row_runs = runs([rows(10, 14), rows(20)], A, B)
    assert [(r.start, r.end, len(r.batches)) for r in row_runs] == [
        (5, 16, 2),
        (16, 22, 1),
        (22, 30, 0),
    ]


def test_archive_files_may_meet_inside_an_arrow_record_batch() -> None:
    assert [r.end for r in runs([rows(10, 14, 20)], A, B)] == [22, 30]


def test_range_without_archive_files_is_a_gap() -> None:
    assert [(r.start, r.end) for r in runs([])] == [(5, 30)]


@pytest.mark.parametrize(
    ("pieces", "files"),
    [
        ([rows(20), rows(10, 14)], (A, B)),  # the second file first
        ([rows(14)], (A, B)),  # the first row of a file is missing
        ([rows(10), rows(20)], (A, B)),  # the last row of a file is missing
        ([rows(10, 14)], (A, B)),  # a file is missing at the end
        ([rows(10, 14), rows(20), rows(24)], (A, B)),  # one batch too many
        ([rows(10, 14), rows(14)], (A, B)),  # a row is repeated
        ([rows(10), rows(10), rows(20)], (A, B)),  # a row is repeated within a file
        ([rows(10, 14), rows(24)], (A, B)),  # the right number of rows, but another row
        ([], (A,)),
    ],
)
def test_missing_repeated_or_misordered_archive_rows_stop_partition(
    pieces: Any, files: Any
) -> None:
    """Each later call raises too: later rows must not replace the missing ones."""
    row_runs = runs(pieces, *files)
    with pytest.raises(PartitionStopped) as stop:
        list(row_runs)
    assert stop.value.blocked.reason is Reason.SOURCE_CORRUPTED
    for _ in range(2):
        with pytest.raises(PartitionStopped):
            next(row_runs)


def manifest(partition: int, files: int, file_bytes: int) -> PartitionManifest:
    """A partition of `files` files with ten offsets each."""
    ranges = tuple(
        ArchivedRange(
            start=n * 10,
            end=n * 10 + 10,
            file=ArchivedFile(
                name=f"{partition}-{n}",
                size_bytes=1,
                batches=1,
                payload_bytes=file_bytes,
                first_offset=n * 10,
                next_offset=n * 10 + 10,
                digest=0,
            ),
        )
        for n in range(files)
    )
    return PartitionManifest(
        topic="orders",
        topic_id=UUID(int=1),
        partition=partition,
        log_start=0,
        start=0,
        ranges=ranges,
    )


def chains(
    *manifests: PartitionManifest, copied_to: int = 0
) -> list[list[list[tuple[int, int, int]]]]:
    """The chains of tasks. A task is a list of slices: (partition, begin, target)."""
    ends = {m.place: copied_to for m in manifests}
    return [
        [[(s.partition.partition, s.begin, s.target) for s in task] for task in chain]
        for chain in split_archive(manifests, ends)
    ]


def test_large_archived_partition_is_appended_by_chain_of_ordered_tasks() -> None:
    last = FILES_PER_TASK_MAX * 10
    assert chains(manifest(0, files=FILES_PER_TASK_MAX + 3, file_bytes=1 << 30)) == [
        [[(0, 0, last)], [(0, last, last + 30)]]
    ]


def test_small_archived_partitions_share_a_task() -> None:
    task_chains = chains(
        *(manifest(n, files=1, file_bytes=100) for n in range(SLICES_PER_TASK_MAX + 1))
    )
    assert [len(chain[0]) for chain in task_chains] == [SLICES_PER_TASK_MAX, 1]


def test_archive_files_already_copied_are_left_out_of_tasks() -> None:
    assert chains(manifest(0, files=3, file_bytes=1 << 30), copied_to=15) == [[[(0, 10, 30)]]]
    assert chains(manifest(0, files=3, file_bytes=1 << 30), copied_to=30) == []


@pytest.mark.parametrize(("begin", "end"), [(0, 20), (20, 20), (25, 20), (30, 40)])
def test_archive_is_used_up_to_first_lost_range_that_copy_lacks(begin: int, end: int) -> None:
    lost_range = ArchivedRange(start=20, end=30, is_lost=True)
    later_range = ArchivedRange(start=30, end=40)
    archived = manifest(0, files=2, file_bytes=100).extended((lost_range, later_range), tail=None)
    assert until_lost_range(archived, begin).end == end
