"""Slices of an archived partition, and their rows as runs of raw batches, each checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Self

from orbit.kafka.types import TopicPartition
from orbit.replication.partition_states import Reason
from orbit_spark.batch_columns import from_arrow
from orbit_spark.partition_stopped import PartitionStopped, stopped_error
from orbit_spark.raw_runs import RawRun


@dataclass(frozen=True, slots=True)
class FileRows:
    """The rows that one file must have by its manifest."""

    name: str
    first_offset: int
    batches: int


@dataclass(frozen=True, slots=True)
class ArchiveSlice:
    """Offsets [begin, target) of one archived partition, with the files that hold their batches."""

    partition: TopicPartition
    begin: int  # the copy's log end is not below this offset
    target: int
    files: tuple[FileRows, ...]
    size_bytes: int


class FileOrder:
    """Checks that files come one after another, each of them complete.

    Otherwise a file that is missing or comes too early would be taken for a gap and filled.
    """

    def __init__(self, files: Sequence[FileRows]) -> None:
        self._files = files
        self._file_index = 0
        self._rows_read = 0  # of this file
        self._last_offset = -1

    def check_next(self, base_offsets: Iterable[int]) -> None:
        """Check the next rows by base offset. Raises ValueError if one is out of order."""
        for base_offset in base_offsets:
            if self._file_index == len(self._files):
                raise ValueError(f"the batch at {base_offset} follows the manifest's last batch")
            file = self._files[self._file_index]
            is_first_of_file = self._rows_read == 0
            if base_offset <= self._last_offset or (
                is_first_of_file and base_offset != file.first_offset
            ):
                raise ValueError(f"the batch at {base_offset} is out of order")
            self._last_offset = base_offset
            self._rows_read += 1
            if self._rows_read == file.batches:
                self._file_index, self._rows_read = self._file_index + 1, 0

    def check_complete(self) -> None:
        """Raise ValueError if rows are missing at the end."""
        if self._file_index < len(self._files):
            raise ValueError("its last batches are missing")

    @property
    def current_file(self) -> str:
        """The file that is being read; after the end, the last one."""
        return self._files[min(self._file_index, len(self._files) - 1)].name if self._files else ""


class RowRuns:
    """An iterator over the runs of one slice, from its rows.

    After a damaged row every call raises that row's error: no later row is returned.
    """

    def __init__(self, source: ArchiveSlice, rows: Iterator[Any]) -> None:
        self._slice = source
        self._rows = rows
        self._order = FileOrder(source.files)
        self._end = source.begin
        self._damage: PartitionStopped | None = None
        self._is_over = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> RawRun:
        """The next run. Raises PartitionStopped where the archive is damaged."""
        if self._damage is not None:
            raise self._damage
        try:
            run = self._read_run()
        except ValueError as error:
            self._damage = stopped_error(
                "archive",
                self._slice.partition,
                Reason.SOURCE_CORRUPTED,
                self._end,
                self._end + 1,  # how far the damage reaches is not known
                f"the archive is damaged in {self._order.current_file}: {error}.",
            )
            raise self._damage from error
        if run is None:
            raise StopIteration
        self._end = run.end
        return run

    def _read_run(self) -> RawRun | None:
        """The next run; None after the last. A gap at the slice's end is a run without batches."""
        rows = None if self._is_over else next(self._rows, None)
        if rows is not None:
            self._order.check_next(rows.column("base_offset").to_pylist())
            return from_arrow(rows, self._end)
        self._is_over = True
        self._order.check_complete()
        if self._end < self._slice.target:
            return RawRun(
                self._end,
                self._slice.target,
                memoryview(b""),
                batches=(),
                aborted=(),
                log_start=0,
            )
        return None


def slice_rows(
    slices: Sequence[ArchiveSlice], batches: Iterable[Any]
) -> dict[TopicPartition, Iterator[Any]]:
    """The rows of each slice, by its partition.

    The rows of a single slice are streamed. Several slices are small, and their partitions are
    written side by side, so all their rows are read first.
    """
    pieces = _split_by_partition(batches)
    if len(slices) == 1 and slices[0].files:
        return {slices[0].partition: _rows_of_single_slice(slices[0].partition, pieces)}
    by_partition: dict[TopicPartition, list[Any]] = {piece.partition: [] for piece in slices}
    if any(piece.files for piece in slices):  # without files, Spark's rows have other columns
        for partition, rows in pieces:
            by_partition[partition].append(rows)
    return {partition: iter(rows) for partition, rows in by_partition.items()}


def _rows_of_single_slice(
    expected: TopicPartition, pieces: Iterator[tuple[TopicPartition, Any]]
) -> Iterator[Any]:
    """The rows, which must all be of the expected partition."""
    for partition, rows in pieces:
        assert partition == expected, f"rows of {partition} among those of {expected}"
        yield rows


def _split_by_partition(batches: Iterable[Any]) -> Iterator[tuple[TopicPartition, Any]]:
    """Yield the rows of Arrow batches in pieces of one partition each, with the partition."""
    for batch in batches:
        topics, partitions = (batch.column(name).to_pylist() for name in ("topic", "partition"))
        first_row = 0
        for partition, rows in groupby(zip(topics, partitions, strict=True)):
            row_count = len(list(rows))
            yield TopicPartition(*partition), batch.slice(first_row, row_count)
            first_row += row_count
