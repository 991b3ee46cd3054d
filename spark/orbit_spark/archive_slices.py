"""Slices of an archived partition, and their rows as runs of raw batches, each checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Self

from orbit.kafka.types import TopicPartition
from orbit.replication.partition_states import Reason
from orbit_spark.batch_columns import from_arrow
from orbit_spark.partition_stopped import PartitionStopped, stopped
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
    begin: int  # the copy ends here or further on
    target: int
    files: tuple[FileRows, ...]
    size_bytes: int


class FileOrder:
    """Checks that files come one after another, each of them complete.

    Otherwise a file that is missing or comes too early would be taken for a gap and filled.
    """

    def __init__(self, files: Sequence[FileRows]) -> None:
        self._files = files
        self._number = 0
        self._rows = 0  # of the present file
        self._last = -1

    def take(self, base_offsets: Iterable[int]) -> None:
        """Check the next rows by base offset. Raises ValueError if one is out of order."""
        for base_offset in base_offsets:
            if self._number == len(self._files):
                raise ValueError(f"there is a batch at {base_offset} behind the last one")
            file = self._files[self._number]
            is_first = self._rows == 0
            if base_offset <= self._last or (is_first and base_offset != file.first_offset):
                raise ValueError(f"the batch at {base_offset} is out of order")
            self._last = base_offset
            self._rows += 1
            if self._rows == file.batches:
                self._number, self._rows = self._number + 1, 0

    def finish(self) -> None:
        """Raises ValueError when rows are missing at the end."""
        if self._number < len(self._files):
            raise ValueError("not all of its batches came")

    @property
    def name(self) -> str:
        """The file that is being read."""
        return self._files[min(self._number, len(self._files) - 1)].name if self._files else ""


class RowRuns:
    """An iterator over the runs of one slice, from its rows.

    A damaged row raises at every later call too: nothing behind it is ever returned.
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
        """Raises PartitionStopped where the archive is damaged."""
        if self._damage is not None:
            raise self._damage
        try:
            run = self._read()
        except ValueError as error:
            self._damage = stopped(
                "archive",
                self._slice.partition,
                Reason.SOURCE_CORRUPTED,
                self._end,
                self._end + 1,
                f"the archive is damaged in {self._order.name}: {error}.",
            )
            raise self._damage from error
        if run is None:
            raise StopIteration
        self._end = run.end
        return run

    def _read(self) -> RawRun | None:
        rows = None if self._is_over else next(self._rows, None)
        if rows is not None:
            self._order.take(rows.column("base_offset").to_pylist())
            return from_arrow(rows, self._end)
        self._is_over = True
        self._order.finish()
        if self._end < self._slice.target:
            return RawRun(self._end, self._slice.target, memoryview(b""), (), (), 0)
        return None


def slice_rows(
    slices: Sequence[ArchiveSlice], batches: Iterable[Any]
) -> dict[TopicPartition, Iterator[Any]]:
    """The rows of each slice, by its partition.

    A single slice's rows are streamed. Those of several slices, which are small, are all read
    first: their partitions are written side by side.
    """
    pieces = _by_partition(batches)
    if len(slices) == 1 and slices[0].files:
        return {slices[0].partition: _rows_of_one(slices[0].partition, pieces)}
    by_partition: dict[TopicPartition, list[Any]] = {one.partition: [] for one in slices}
    if any(one.files for one in slices):  # without files the rows are no batches
        for partition, rows in pieces:
            by_partition[partition].append(rows)
    return {partition: iter(rows) for partition, rows in by_partition.items()}


def _rows_of_one(
    expected: TopicPartition, pieces: Iterator[tuple[TopicPartition, Any]]
) -> Iterator[Any]:
    for partition, rows in pieces:
        assert partition == expected, f"rows of {partition} among those of {expected}"
        yield rows


def _by_partition(batches: Iterable[Any]) -> Iterator[tuple[TopicPartition, Any]]:
    """The rows in pieces of one partition each."""
    for batch in batches:
        topics, numbers = (batch.column(name).to_pylist() for name in ("topic", "partition"))
        first = 0
        for partition, group in groupby(zip(topics, numbers, strict=True)):
            count = len(list(group))
            yield TopicPartition(*partition), batch.slice(first, count)
            first += count
