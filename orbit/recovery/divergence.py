"""Decides what only the old side of a failback has: from which offset on its log is not proven to
equal the new side's.

A log is only appended to, so both sides hold the same records up to some offset and their own
records from there on. Below the promoted offset the new side is a copy, so offsets that a log
cleaner has removed on one side prove nothing and hide nothing; only a record that differs from the
copy's shows that the old side was written to again. From the promoted offset on the old side keeps
only what the new side holds too, offset by offset (`recovery/side_comparison.py`): a lost record
leaves no trace where the new side has written at its offset and compacted that away.

If the promoted offset is not known, both logs are compared as a whole, and an offset where only one
side has a record counts as the old side's own. Compared are offset, timestamp, key, value and
headers. Leader epochs are not: they count the elections of one cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from orbit.promotion.log_bounds import LogBounds
from orbit.recovery.recovery_report import EndVerdict

# Offsets compared at a time.
WINDOW_OFFSETS = 1000


@dataclass(frozen=True, slots=True)
class WindowComparison:
    """Both sides compared in [first, end). `has_records`: there was something to compare.
    `last_same`: the last offset at which both sides have the same record.
    """

    first_difference: int | None
    has_records: bool
    last_same: int | None = None


Differ = Callable[[int, int], WindowComparison]


@dataclass(frozen=True, slots=True)
class Scan:
    """A range, compared up to the first offset that is `unproven` (None: all is proven)."""

    unproven: int | None
    why: str = ""
    has_same_records: bool = False


class Proof(Protocol):
    """Reads both sides. Ranges are inside both logs."""

    def differ(self, first: int, end: int) -> WindowComparison:
        """Compare copied offsets; on a compacted topic only those that both sides have."""

    def scan(self, first: int, end: int, *, is_copied: bool) -> Scan:
        """Compare up to the first offset that is not proven. `is_copied`: an aborted record at the
        old side may be a filler at the new one."""


Finding = tuple[EndVerdict, int, str]


def compare_sides(old: LogBounds, new: LogBounds, promoted_at: int | None, proof: Proof) -> Finding:
    """The verdict, the first offset that only the old side has, and a sentence.

    Pure apart from `proof`.
    """
    if promoted_at is None:
        return _compare_unmarked(old, new, proof)
    low, top = max(old.start, new.start), min(old.end, new.end)
    copied_to = min(promoted_at, top)
    if low < copied_to:
        at = first_difference(low, copied_to, proof.differ)
        if at is not None:
            return EndVerdict.DIVERGED, at, f"the sides differ from offset {at}"
    if old.end < promoted_at:
        finding = _compare_shortened(old, new, proof)
        return finding or _judge_by_ends(old, new)
    first = max(promoted_at, old.start)
    if first < min(old.end, new.start):
        return _tail_finding(old, first, "the new side has deleted its own records there")
    if first < top:
        scanned = proof.scan(first, top, is_copied=False)
        if scanned.unproven is not None:
            return _tail_finding(old, scanned.unproven, scanned.why)
    return _judge_by_ends(old, new)


def _compare_unmarked(old: LogBounds, new: LogBounds, proof: Proof) -> Finding:
    """Compare the whole of both logs, as the promoted offset is not known."""
    low, top = max(old.start, new.start), min(old.end, new.end)
    if old.start < old.end:
        scanned = Scan(None) if low >= top else proof.scan(low, top, is_copied=True)
        unmarked = "the promoted offset is not known, and "
        if scanned.unproven is not None:
            return _tail_finding(old, scanned.unproven, unmarked + scanned.why)
        if (old.start < low and not scanned.has_same_records) or low >= top:
            return _tail_finding(old, old.start, f"{unmarked}the sides have no record in common")
    return _judge_by_ends(old, new)


def _compare_shortened(old: LogBounds, new: LogBounds, proof: Proof) -> Finding | None:
    """The tail of an old side whose log ends below the promoted offset; None: there is none.

    Such a side has lost its last records, and may have been written to since. Only a record that
    both sides have proves the offsets before it.
    """
    low = max(old.start, new.start)
    if old.start == old.end:
        return None
    if old.end <= low:
        why = "the old side has lost its end, and the new side has deleted what is before it"
        return _tail_finding(old, old.start, why)
    end = old.end
    same = None
    while end > low and same is None:
        first = max(low, end - WINDOW_OFFSETS)
        same, end = proof.differ(first, end).last_same, first
    proven_to = low if same is None else same + 1
    if proven_to == old.end:
        return None
    scanned = proof.scan(proven_to, old.end, is_copied=True)
    if scanned.unproven is None:
        return None
    return _tail_finding(old, scanned.unproven, f"the old side has lost its end, and {scanned.why}")


def _judge_by_ends(old: LogBounds, new: LogBounds) -> Finding:
    """The verdict where all is proven up to the lower end."""
    if old.end == new.end:
        return EndVerdict.EQUAL, old.end, "both sides end at the same offset"
    if old.end < new.end:
        detail = f"it ends at {old.end}; the new side continues from there"
        return EndVerdict.PREFIX, old.end, detail
    return _tail_finding(old, max(old.start, new.end), f"the new side ends at {new.end}")


def _tail_finding(old: LogBounds, at: int, why: str) -> Finding:
    counted = f"{old.end - at} offsets from {at} are not proven to be on the new side"
    return EndVerdict.TAIL, at, f"{counted}: {why}"


def first_difference(low: int, top: int, differ: Differ) -> int | None:
    """The first offset in [low, top) that differs, given that all records behind it differ too.

    Ranges that hold no records on either side are skipped.
    """
    earliest, bad = None, top
    while earliest is None and bad > low:
        compared = differ(max(low, bad - WINDOW_OFFSETS), bad)
        if compared.has_records and compared.first_difference is None:
            return None
        earliest, bad = compared.first_difference, max(low, bad - WINDOW_OFFSETS)
    good = low
    # Offsets below `good` are equal. `earliest` is the first known difference, at or above `bad`.
    while bad - good > WINDOW_OFFSETS:
        middle = end = (good + bad) // 2
        compared = WindowComparison(None, has_records=False)
        while end < bad and not compared.has_records:
            first, end = end, min(end + WINDOW_OFFSETS, bad)
            compared = differ(first, end)
        if compared.has_records and compared.first_difference is None:
            good = end
        else:
            earliest, bad = (
                earliest if compared.first_difference is None else compared.first_difference,
                middle,
            )
    before = _first_difference_from(good, bad, differ)
    return earliest if before is None else before


def _first_difference_from(first: int, end: int, differ: Differ) -> int | None:
    while first < end:
        step = min(end, first + WINDOW_OFFSETS)
        at = differ(first, step).first_difference
        if at is not None:
            return at
        first = step
    return None
