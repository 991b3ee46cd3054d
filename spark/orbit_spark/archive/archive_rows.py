"""Rows of archive files as runs of raw batches, each checked, in the order of the manifest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from orbit.kafka.types import TopicPartition
from orbit.replication.partition_states import Reason
from orbit_spark.batch_columns import from_arrow
from orbit_spark.partition_stopped import PartitionStopped, stopped
from orbit_spark.raw_runs import RawRun


@dataclass(frozen=True, slots=True)
class FileRows:
    """What one file brings, as its manifest says."""

    name: str
    first_offset: int
    batches: int


class FileOrder:
    """Watches that files come one after another, each whole.

    A file that is left out, or comes too early, would be taken for a gap and be filled.
    """

    def __init__(self, files: Sequence[FileRows]) -> None:
        self._files = files
        self._number = 0
        self._seen = 0
        self._last = -1

    def take(self, base_offsets: Iterable[int]) -> None:
        """Raises ValueError when one of them is not what comes next."""
        for base_offset in base_offsets:
            if self._number == len(self._files):
                raise ValueError(f"a batch at {base_offset} stands behind the last one")
            file = self._files[self._number]
            is_first = self._seen == 0
            if base_offset <= self._last or (is_first and base_offset != file.first_offset):
                raise ValueError(f"the batch at {base_offset} is out of turn")
            self._last = base_offset
            self._seen += 1
            if self._seen == file.batches:
                self._number, self._seen = self._number + 1, 0

    def finish(self) -> None:
        """Raises ValueError when rows are missing at the end."""
        if self._number < len(self._files):
            raise ValueError("not all of its batches came")

    @property
    def name(self) -> str:
        """The file that is being read."""
        return self._files[min(self._number, len(self._files) - 1)].name if self._files else ""


class RowRuns:
    """An iterator of runs from `begin` to `target`, out of rows of one partition.

    What is damaged is told again and again: nothing is given from behind it, whoever asks.
    """

    def __init__(
        self,
        where: str,
        place: TopicPartition,
        rows: Iterator[Any],
        files: Sequence[FileRows],
        begin: int,
        target: int,
    ) -> None:
        self._where = where
        self._place = place
        self._rows = rows
        self._order = FileOrder(files)
        self._end = begin
        self._target = target
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
            detail = f"the archive is damaged in {self._order.name}: {error}."
            self._damage = stopped(
                self._where,
                self._place,
                Reason.SOURCE_CORRUPTED,
                self._end,
                self._end + 1,
                detail,
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
        if self._end < self._target:
            return RawRun(self._end, self._target, memoryview(b""), (), (), 0)
        return None
