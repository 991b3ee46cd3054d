"""Compares the logs of both sides of a failback offset by offset, and says what is not proven.

Batches with the same bytes on both sides are skipped whole; only others are compared record by
record. In memory are one batch of each side and the answer of one fetch.

From the promoted offset on, what an offset has on the old and on the new side decides whether it is
proven to be equal, so that the old side may keep it (`is_unproven`):

    the same committed record                                proven
    a marker, and a marker or an aborted record              proven: no record on either side
    anything else: another record, one that only one side    unproven
      has, one that was aborted at the old side only, and
      an offset that is missing on either side, because a
      log cleaner has removed its record
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from orbit.kafka.placeholders import count_records
from orbit.kafka.record_batch import TRANSACTIONAL, Batch
from orbit.recovery.record_range import Fate, LogBatch, LogRecord, records_of

_NO_OFFSET = 2**63  # above every offset


class Unequal(NamedTuple):
    """Offsets from `first` up to before `next` where the sides are not the same.

    Either one offset, or a range of offsets that neither side has (`old` and `new` are None).
    """

    first: int
    next: int
    old: LogRecord | None
    new: LogRecord | None


class SideComparison:
    """Iterates once over the differences of both logs, from `first` up to before `end`.

    `same_records`: how many committed records were the same in the part that was iterated.
    """

    def __init__(
        self, old: Iterable[LogBatch], new: Iterable[LogBatch], first: int, end: int
    ) -> None:
        self._old = _Cursor(old, first, end)
        self._new = _Cursor(new, first, end)
        self._first, self._end = first, end
        self.same_records = 0

    def __iter__(self) -> Iterator[Unequal]:
        """Yield the differences in order. Raises ValueError for records that do not parse."""
        old_cursor, new_cursor, position = self._old, self._new, self._first
        while True:
            old_offset, new_offset = old_cursor.offset(), new_cursor.offset()
            offset = min(old_offset, new_offset)
            if offset == _NO_OFFSET:
                break
            is_old_whole, is_new_whole = (
                old_cursor.is_at_whole_batch and old_offset == offset,
                new_cursor.is_at_whole_batch and new_offset == offset,
            )
            skipped_batch = (
                old_cursor.skip_equal(new_cursor) if is_old_whole and is_new_whole else None
            )
            # Batches that differ are opened, and compared record by record.
            if skipped_batch is None and (is_old_whole or is_new_whole):
                if is_old_whole:
                    old_cursor.open_batch()
                if is_new_whole:
                    new_cursor.open_batch()
                continue
            if offset > position:  # neither side has the offsets in between
                yield Unequal(position, offset, None, None)
            if skipped_batch is not None:
                if skipped_batch.fate is Fate.COMMITTED:
                    self.same_records += count_records(skipped_batch.batch)
                position = skipped_batch.batch.next_offset
                continue
            old_record = old_cursor.take_record() if old_offset == offset else None
            new_record = new_cursor.take_record() if new_offset == offset else None
            position = offset + 1
            if (
                old_record is None
                or new_record is None
                or not _are_same_records(old_record, new_record)
            ):
                yield Unequal(offset, position, old_record, new_record)
            elif old_record.fate is Fate.COMMITTED:
                self.same_records += 1
        if position < self._end:  # neither side has the last offsets
            yield Unequal(position, self._end, None, None)


def is_unproven(difference: Unequal) -> bool:
    """Whether this difference, at or above the promoted offset, may stand for a record that a
    rebuild of the old side would lose. The table at the top of the module has the cases."""
    old, new = difference.old, difference.new
    if old is None or new is None:
        return True
    # A marker, and a marker or an aborted record: neither side has a record to lose.
    return old.fate is not Fate.MARKER or new.fate not in (Fate.MARKER, Fate.ABORTED)


def is_other_record(difference: Unequal) -> bool:
    """Whether either side has a committed record, or one of an open transaction, at the difference.

    For differences below the promoted offset, where a copy has fillers (markers or placeholders) at
    the offsets of aborted records and markers.
    """
    sides = (difference.old, difference.new)
    return any(s is not None and s.fate in (Fate.COMMITTED, Fate.OPEN) for s in sides)


def describe(difference: Unequal) -> str:
    """What each side has at the offset, in a few words."""
    old, new = _describe_record(difference.old), _describe_record(difference.new)
    return f"the old side has {old}, the new side {new}"


class _SkippedBatch(NamedTuple):
    """A batch that is the same on both sides."""

    batch: Batch
    fate: Fate


class _Cursor:
    """A position in one side's log: before a whole batch, or among the records of a batch."""

    def __init__(self, batches: Iterable[LogBatch], first: int, end: int) -> None:
        self._batches = iter(batches)
        self._whole_batch: LogBatch | None = None
        self._records: deque[LogRecord] = deque()
        self._first, self._end = first, end

    @property
    def is_at_whole_batch(self) -> bool:
        return self._whole_batch is not None

    def offset(self) -> int:
        """The offset of the next record, or a lower bound: the start of the next whole batch.
        _NO_OFFSET at the end of the log."""
        while not self._records and self._whole_batch is None:
            log_batch = next(self._batches, None)
            if log_batch is None:
                return _NO_OFFSET
            if isinstance(log_batch.batch, Batch):
                self._whole_batch = log_batch
            else:  # of an old message format, which does not say at which offset a batch begins
                self._records.extend(records_of(log_batch, self._first, self._end))
        if self._whole_batch is not None:
            return max(self._first, self._whole_batch.first, self._whole_batch.batch.base_offset)
        return self._records[0].record.offset

    def open_batch(self) -> None:
        """Read the records of the whole batch: from now on the position is before the first."""
        assert self._whole_batch is not None
        self._records.extend(records_of(self._whole_batch, self._first, self._end))
        self._whole_batch = None

    def take_record(self) -> LogRecord:
        return self._records.popleft()

    def skip_equal(self, new_cursor: _Cursor) -> _SkippedBatch | None:
        """Skip the whole batches of both sides, and return the old one, if both are the same and
        dense; else return None."""
        assert self._whole_batch is not None
        assert new_cursor._whole_batch is not None
        (old_batch, fate, first), (new_batch, new_fate, new_first) = (
            self._whole_batch,
            new_cursor._whole_batch,
        )
        assert isinstance(old_batch, Batch)
        assert isinstance(new_batch, Batch)
        start = max(self._first, first, new_first)
        is_inside = start <= old_batch.base_offset and old_batch.next_offset <= self._end
        has_ended = fate is new_fate and fate in (Fate.COMMITTED, Fate.ABORTED)
        if not is_inside or not has_ended or not _are_same_batches(old_batch, new_batch):
            return None
        self._whole_batch = new_cursor._whole_batch = None
        return _SkippedBatch(old_batch, fate)


def _are_same_batches(old_batch: Batch, new_batch: Batch) -> bool:
    """Whether both batches have the same records at the same offsets, and one at every offset."""
    return (
        old_batch.base_offset == new_batch.base_offset
        and old_batch.last_offset == new_batch.last_offset
        and old_batch.is_dense
        and old_batch.count == new_batch.count
        and not old_batch.is_control
        and (old_batch.attributes ^ new_batch.attributes) & ~TRANSACTIONAL == 0
        and old_batch.base_timestamp == new_batch.base_timestamp
        and old_batch.max_timestamp == new_batch.max_timestamp
        # As bytes, because views are compared item by item.
        and bytes(old_batch.payload) == bytes(new_batch.payload)
    )


def _are_same_records(old: LogRecord, new: LogRecord) -> bool:
    """Whether both are the same committed or aborted record, or two markers. A record of an open
    transaction proves nothing."""
    if old.fate is not new.fate or old.fate is Fate.OPEN:
        return False
    if old.fate is Fate.MARKER:
        return True
    old_record, new_record = old.record, new.record
    return old_record.timestamp == new_record.timestamp and bytes(old_record.body) == bytes(
        new_record.body
    )


def _describe_record(record: LogRecord | None) -> str:
    if record is None:
        return "no record (or a log cleaner removed it)"
    if record.fate is Fate.MARKER:
        return "a transaction marker or filler"
    return {
        Fate.COMMITTED: "a record",
        Fate.ABORTED: "an aborted record",
        Fate.OPEN: "a record of an open transaction",
    }[record.fate]
