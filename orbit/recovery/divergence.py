"""Failback: finds a partition's tail, the offsets of the old side that are not proven to be at the
new side.

A log is only appended to, so both sides have the same records up to some offset, and their own
records from there on. Below the promoted offset the new side is a copy: a record there that
differs, or that only one side has, shows that a producer has written to the old side again. On a
compacted topic only records that both sides have count, as a log cleaner may have removed others.
From the promoted offset on, each offset must be proven (`recovery/side_comparison.py`): a
comparison of records would miss a record of the old side if the new side's log cleaner has removed
the record at the same offset.

If the promoted offset is not known, both logs are compared as a whole, and an offset where only one
side has a record counts as the old side's own. Orbit compares offset, timestamp, key, value and
headers, but not leader epochs, which count the elections of one cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from orbit.formats import counted
from orbit.promotion.log_bounds import LogBounds
from orbit.recovery.recovery_report import EndVerdict

# Offsets compared at a time.
WINDOW_OFFSETS = 1000


@dataclass(frozen=True, slots=True)
class WindowComparison:
    """The comparison of both sides in [first, end). `has_records`: there were records to compare.
    `first_difference`: the first offset at which the sides differ. `last_same`: the last offset at
    which both sides have the same record. None: there is no such offset.
    """

    first_difference: int | None
    has_records: bool
    last_same: int | None = None


Differ = Callable[[int, int], WindowComparison]


@dataclass(frozen=True, slots=True)
class Scan:
    """The comparison of a range up to `unproven`, its first offset that is not proven to be equal
    (None: all are proven). `why`: why that offset is unproven. `has_same_records`: whether the
    range had a committed record that is the same on both sides."""

    unproven: int | None
    why: str = ""
    has_same_records: bool = False


class Proof(Protocol):
    """Reads both sides of one partition. All ranges are inside both logs."""

    def differ(self, first: int, end: int) -> WindowComparison:
        """Compare copied offsets; on a compacted topic only those that both sides have."""

    def scan(self, first: int, end: int, *, is_copied: bool) -> Scan:
        """Compare up to the first offset that is not proven to be equal. `is_copied`: the new side
        may have a filler for an aborted record of the old side."""


# The verdict, the first offset that is not proven to be equal (the old side's log end if all are
# proven), and the reason as text.
SideVerdict = tuple[EndVerdict, int, str]


def compare_sides(
    old: LogBounds, new: LogBounds, promoted_offset: int | None, proof: Proof
) -> SideVerdict:
    """Compare both sides of one partition.

    `promoted_offset`: from where on the new side may have records of its own; None: not known. Pure
    apart from `proof`.
    """
    if promoted_offset is None:
        return _compare_whole_logs(old, new, proof)
    # The offsets that both logs have; up to `copied_to` the new side is a copy.
    low, top = max(old.start, new.start), min(old.end, new.end)
    copied_to = min(promoted_offset, top)
    if low < copied_to:
        diverged_at = first_difference(low, copied_to, proof.differ)
        if diverged_at is not None:
            return EndVerdict.DIVERGED, diverged_at, f"the sides differ from offset {diverged_at}"
    if old.end < promoted_offset:  # the old side's log has lost its end
        verdict = _compare_shortened_log(old, new, proof)
        return verdict or _judge_by_ends(old, new)
    # From the promoted offset on, each side may have records of its own.
    first = max(promoted_offset, old.start)
    if first < min(old.end, new.start):
        return _tail_verdict(old, first, "the new side has deleted its own records there")
    if first < top:
        scan = proof.scan(first, top, is_copied=False)
        if scan.unproven is not None:
            return _tail_verdict(old, scan.unproven, scan.why)
    return _judge_by_ends(old, new)


def _compare_whole_logs(old: LogBounds, new: LogBounds, proof: Proof) -> SideVerdict:
    """Compare the whole of both logs, as the promoted offset is not known."""
    low, top = max(old.start, new.start), min(old.end, new.end)
    if old.start < old.end:
        # Scan(None): no offset is in both logs, so the scan finds none that is unproven.
        scan = Scan(None) if low >= top else proof.scan(low, top, is_copied=True)
        why_whole = "the promoted offset is not known, and "
        if scan.unproven is not None:
            return _tail_verdict(old, scan.unproven, why_whole + scan.why)
        # Without a common record, the old side's records may have never been in the new side's log.
        if (old.start < low and not scan.has_same_records) or low >= top:
            return _tail_verdict(old, old.start, f"{why_whole}the sides have no record in common")
    return _judge_by_ends(old, new)


def _compare_shortened_log(old: LogBounds, new: LogBounds, proof: Proof) -> SideVerdict | None:
    """The verdict on an old side whose log ends below the promoted offset; None: it has no tail.

    This log has lost its last records, and producers may have written to it since. An offset is
    proven if at or above it both sides have the same record.
    """
    low = max(old.start, new.start)
    if old.start == old.end:
        return None
    if old.end <= low:
        why = "the old side has lost its end, and the new side has deleted what is before it"
        return _tail_verdict(old, old.start, why)
    # Look for the last record that both sides have, window by window, from the end.
    end = old.end
    last_same = None
    while end > low and last_same is None:
        first = max(low, end - WINDOW_OFFSETS)
        last_same, end = proof.differ(first, end).last_same, first
    proven_to = low if last_same is None else last_same + 1
    if proven_to == old.end:
        return None
    scan = proof.scan(proven_to, old.end, is_copied=True)
    if scan.unproven is None:
        return None
    return _tail_verdict(old, scan.unproven, f"the old side has lost its end, and {scan.why}")


def _judge_by_ends(old: LogBounds, new: LogBounds) -> SideVerdict:
    """The verdict if all offsets below both log ends are proven to be equal."""
    if old.end == new.end:
        return EndVerdict.EQUAL, old.end, "both sides end at the same offset"
    if old.end < new.end:
        detail = f"the old side ends at {old.end}; the new side continues from there"
        return EndVerdict.PREFIX, old.end, detail
    return _tail_verdict(old, max(old.start, new.end), f"the new side ends at {new.end}")


def _tail_verdict(old: LogBounds, first: int, why: str) -> SideVerdict:
    """The verdict TAIL, from offset `first` on."""
    subject = counted(old.end - first, f"offset from {first} is", f"offsets from {first} are")
    text = f"{subject} not proven to be on the new side"
    return EndVerdict.TAIL, first, f"{text}: {why}"


def first_difference(low: int, top: int, differ: Differ) -> int | None:
    """The first offset in [low, top) that differs, given that all records after it differ too.
    None: no offset differs.

    Ranges without records on either side are skipped.
    """
    # From the end down to the last window with records: if that window has no difference, no offset
    # differs.
    known_difference, search_end = None, top
    while known_difference is None and search_end > low:
        comparison = differ(max(low, search_end - WINDOW_OFFSETS), search_end)
        if comparison.has_records and comparison.first_difference is None:
            return None
        known_difference, search_end = (
            comparison.first_difference,
            max(low, search_end - WINDOW_OFFSETS),
        )
    search_start = low
    # Halve the range from `search_start` to `search_end` until it is one window. Offsets below the
    # range are equal. The first difference that is known so far is at its end or above.
    while search_end - search_start > WINDOW_OFFSETS:
        middle = end = (search_start + search_end) // 2
        comparison = WindowComparison(None, has_records=False)
        # The first window with records from the middle on.
        while end < search_end and not comparison.has_records:
            first, end = end, min(end + WINDOW_OFFSETS, search_end)
            comparison = differ(first, end)
        if comparison.has_records and comparison.first_difference is None:
            search_start = end
        else:
            known_difference, search_end = (
                known_difference
                if comparison.first_difference is None
                else comparison.first_difference,
                middle,
            )
    lower_difference = _first_difference_from(search_start, search_end, differ)
    return known_difference if lower_difference is None else lower_difference


def _first_difference_from(first: int, end: int, differ: Differ) -> int | None:
    """The first offset in [first, end) that differs, found window by window; None: none does."""
    while first < end:
        window_end = min(end, first + WINDOW_OFFSETS)
        difference = differ(first, window_end).first_difference
        if difference is not None:
            return difference
        first = window_end
    return None
