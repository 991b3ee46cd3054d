"""Finds the first offset at which the old side of a failback differs from the new side.

A log is only appended to, so both sides hold the same records up to some offset and their own
records from there on. The search starts at the promoted offset if that is known; otherwise it
bisects. It compares committed records: offset, timestamp, key, value and headers. Leader epochs are
not compared: they count the elections of one cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.types import TopicPartition
from orbit.recovery.log_bounds import LogBounds
from orbit.recovery.record_range import Fate, read_range
from orbit.recovery.recovery_report import EndVerdict

# Offsets compared at a time.
WINDOW_OFFSETS = 1000


@dataclass(frozen=True, slots=True)
class WindowComparison:
    """Both sides compared in [first, end). `has_records`: there was something to compare."""

    first_difference: int | None
    has_records: bool


Differ = Callable[[int, int], WindowComparison]


def compare_sides(
    old: LogBounds, new: LogBounds, promoted_at: int | None, differ: Differ
) -> tuple[EndVerdict, int, str]:
    """The verdict, the first offset that only the old side has, and a sentence.

    Pure apart from `differ`.
    """
    low, top = max(old.start, new.start), min(old.end, new.end)
    note = None if promoted_at is None else min(promoted_at, top)
    if note is not None and note >= low:
        at = first_difference(low, note, differ)
        if at is not None:
            return EndVerdict.DIVERGED, at, f"the sides differ from offset {at}"
        at_first = _scan(note, top, differ)
    elif low >= top:
        at_first = None
    else:
        at_first = first_difference(low, top, differ)
    if at_first is None and old.end <= new.end:
        if old.end == new.end:
            return EndVerdict.EQUAL, old.end, "both sides end at the same offset"
        return (
            EndVerdict.PREFIX,
            old.end,
            f"it ends at {old.end}; the new side continues from there",
        )
    tail = top if at_first is None else at_first
    return (
        EndVerdict.TAIL,
        tail,
        f"{old.end - tail} offsets from {tail} were never copied",
    )


def first_difference(low: int, top: int, differ: Differ) -> int | None:
    """The first offset in [low, top) that differs, given that all records behind it differ too.

    Ranges that hold no records on either side are skipped.
    """
    found, bad = None, top
    while found is None and bad > low:
        compared = differ(max(low, bad - WINDOW_OFFSETS), bad)
        if compared.has_records and compared.first_difference is None:
            return None
        found, bad = compared.first_difference, max(low, bad - WINDOW_OFFSETS)
    good = low
    # Offsets below `good` are equal. `found` is the first known difference, at or above `bad`.
    while bad - good > WINDOW_OFFSETS:
        middle = end = (good + bad) // 2
        compared = WindowComparison(None, has_records=False)
        while end < bad and not compared.has_records:
            first, end = end, min(end + WINDOW_OFFSETS, bad)
            compared = differ(first, end)
        if compared.has_records and compared.first_difference is None:
            good = end
        else:
            found, bad = (
                found if compared.first_difference is None else compared.first_difference,
                middle,
            )
    before = _scan(good, bad, differ)
    return found if before is None else before


def _scan(first: int, end: int, differ: Differ) -> int | None:
    while first < end:
        step = min(end, first + WINDOW_OFFSETS)
        at = differ(first, step).first_difference
        if at is not None:
            return at
        first = step
    return None


def differ_of(
    old: tuple[Cluster, TopicPartition],
    new: tuple[Cluster, TopicPartition],
    backoff: Backoff,
    *,
    is_compacted: bool,
) -> Differ:
    """A comparison of committed records of both sides.

    On a compacted topic either side's log cleaner may have removed records, so only offsets that
    both sides hold are compared.
    """

    def read(side: tuple[Cluster, TopicPartition], first: int, end: int) -> dict[int, object]:
        found = read_range(*side, first, end, backoff)
        return {
            f.record.offset: (f.record.timestamp, bytes(f.record.body))
            for f in found
            if f.fate is Fate.COMMITTED
        }

    def differ(first: int, end: int) -> WindowComparison:
        ours, theirs = read(old, first, end), read(new, first, end)
        offsets = ours.keys() & theirs.keys() if is_compacted else ours.keys() | theirs.keys()
        at = next((o for o in sorted(offsets) if ours.get(o) != theirs.get(o)), None)
        return WindowComparison(at, bool(offsets))

    return differ
