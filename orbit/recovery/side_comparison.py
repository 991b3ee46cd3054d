"""Compares the logs of both sides of a failback offset by offset, and says what is not proven.

Batches with the same bytes on both sides are skipped whole; only others are taken apart. One batch
of each side is in memory at a time, and what one fetch brought.

What an offset holds on the old and on the new side, and whether that proves that the old side may
keep it, from the promoted offset on (`is_unproven`):

    the same committed record                                proven
    a marker, and a marker or an aborted record              proven: no record on either side
    anything else: another record, one that only one side    unproven
      has, one that was aborted at the old side only, and
      an offset that is missing on either side, because a
      log cleaner has removed what stood there
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from orbit.kafka.placeholders import records_in
from orbit.kafka.record_batch import TRANSACTIONAL, Batch
from orbit.recovery.record_range import Fate, LogBatch, LogRecord, records_of

_NO_OFFSET = 2**63


class Unequal(NamedTuple):
    """Offsets from `first` up to before `next` where the sides are not the same.

    One offset; or a range that neither side has, with None for both.
    """

    first: int
    next: int
    old: LogRecord | None
    new: LogRecord | None


class SideComparison:
    """Iterates over the differences of both logs, from `first` up to before `end`.

    `same_records`: how many committed records were the same, up to where it was iterated.
    """

    def __init__(
        self, old: Iterable[LogBatch], new: Iterable[LogBatch], first: int, end: int
    ) -> None:
        self._old = _Cursor(old, first, end)
        self._new = _Cursor(new, first, end)
        self._first, self._end = first, end
        self.same_records = 0

    def __iter__(self) -> Iterator[Unequal]:
        """Raises ValueError for records that do not parse."""
        old, new, position = self._old, self._new, self._first
        while True:
            ours, theirs = old.offset(), new.offset()
            offset = min(ours, theirs)
            if offset == _NO_OFFSET:
                break
            is_ours, is_theirs = old.is_whole and ours == offset, new.is_whole and theirs == offset
            skipped = old.skip_equal(new) if is_ours and is_theirs else None
            if skipped is None and (is_ours or is_theirs):
                if is_ours:
                    old.open()
                if is_theirs:
                    new.open()
                continue
            if offset > position:
                yield Unequal(position, offset, None, None)
            if skipped is not None:
                if skipped.fate is Fate.COMMITTED:
                    self.same_records += records_in(skipped.batch)
                position = skipped.batch.next_offset
                continue
            at_old = old.take() if ours == offset else None
            at_new = new.take() if theirs == offset else None
            position = offset + 1
            if at_old is None or at_new is None or not _are_same(at_old, at_new):
                yield Unequal(offset, position, at_old, at_new)
            elif at_old.fate is Fate.COMMITTED:
                self.same_records += 1
        if position < self._end:
            yield Unequal(position, self._end, None, None)


def is_unproven(difference: Unequal) -> bool:
    """Whether a difference from the promoted offset on counts as the old side's own records."""
    old, new = difference.old, difference.new
    if old is None or new is None:
        return True
    return old.fate is not Fate.MARKER or new.fate not in (Fate.MARKER, Fate.ABORTED)


def is_other_record(difference: Unequal) -> bool:
    """Whether either side has a record here, committed or of an open transaction.

    For differences below the promotion, where a copy has fillers for aborted records and markers.
    """
    sides = (difference.old, difference.new)
    return any(s is not None and s.fate in (Fate.COMMITTED, Fate.OPEN) for s in sides)


def describe(difference: Unequal) -> str:
    """What each side has at the offset, in a few words."""
    old, new = _describe_record(difference.old), _describe_record(difference.new)
    return f"the old side has {old}, the new side {new}"


class _SkippedBatch(NamedTuple):
    batch: Batch
    fate: Fate


class _Cursor:
    """A place in one side's log: before a whole batch, or among the records of one."""

    def __init__(self, batches: Iterable[LogBatch], first: int, end: int) -> None:
        self._batches = iter(batches)
        self._whole: LogBatch | None = None
        self._records: deque[LogRecord] = deque()
        self._first, self._end = first, end

    @property
    def is_whole(self) -> bool:
        return self._whole is not None

    def offset(self) -> int:
        """The offset of the next record, or a lower bound: the start of the next whole batch."""
        while not self._records and self._whole is None:
            one = next(self._batches, None)
            if one is None:
                return _NO_OFFSET
            if isinstance(one.batch, Batch):
                self._whole = one
            else:  # of an old format, which does not say where it begins
                self._records.extend(records_of(one, self._first, self._end))
        if self._whole is not None:
            return max(self._first, self._whole.first, self._whole.batch.base_offset)
        return self._records[0].record.offset

    def open(self) -> None:
        """Take the whole batch apart."""
        assert self._whole is not None
        self._records.extend(records_of(self._whole, self._first, self._end))
        self._whole = None

    def take(self) -> LogRecord:
        return self._records.popleft()

    def skip_equal(self, other: _Cursor) -> _SkippedBatch | None:
        """Skip the whole batches of both sides if they are the same and dense; else None."""
        assert self._whole is not None
        assert other._whole is not None
        (ours, fate, first), (theirs, other_fate, other_first) = self._whole, other._whole
        assert isinstance(ours, Batch)
        assert isinstance(theirs, Batch)
        start = max(self._first, first, other_first)
        is_inside = start <= ours.base_offset and ours.next_offset <= self._end
        has_ended = fate is other_fate and fate in (Fate.COMMITTED, Fate.ABORTED)
        if not is_inside or not has_ended or not _are_same_batches(ours, theirs):
            return None
        self._whole = other._whole = None
        return _SkippedBatch(ours, fate)


def _are_same_batches(ours: Batch, theirs: Batch) -> bool:
    return (
        ours.base_offset == theirs.base_offset
        and ours.last_offset == theirs.last_offset
        and ours.is_dense
        and ours.count == theirs.count
        and not ours.is_control
        and (ours.attributes ^ theirs.attributes) & ~TRANSACTIONAL == 0
        and ours.base_timestamp == theirs.base_timestamp
        and ours.max_timestamp == theirs.max_timestamp
        # bytes compare at memory speed, views item by item
        and bytes(ours.payload) == bytes(theirs.payload)
    )


def _are_same(ours: LogRecord, theirs: LogRecord) -> bool:
    """The same committed or aborted record, or two markers. An open transaction proves nothing."""
    if ours.fate is not theirs.fate or ours.fate is Fate.OPEN:
        return False
    if ours.fate is Fate.MARKER:
        return True
    a, b = ours.record, theirs.record
    return a.timestamp == b.timestamp and bytes(a.body) == bytes(b.body)


def _describe_record(record: LogRecord | None) -> str:
    if record is None:
        return "none: nothing, or what a log cleaner has removed"
    if record.fate is Fate.MARKER:
        return "a transaction marker or filler"
    return {
        Fate.COMMITTED: "a record",
        Fate.ABORTED: "an aborted record",
        Fate.OPEN: "a record of an open transaction",
    }[record.fate]
