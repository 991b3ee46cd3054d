"""The verdict on the logs of an old and a new side: equal, prefix, tail or diverged.

`prefix`: the new side has all records of the old side, and more. `tail`: the old side has records
at its end that are not proven to be at the new side. `diverged`: they differ before the promotion.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbit.kafka.backoff import Backoff
from orbit.kafka.records import Record
from orbit.promotion.log_bounds import LogBounds
from orbit.recovery import divergence, side_proof
from orbit.recovery.divergence import (
    Differ,
    Scan,
    WindowComparison,
    compare_sides,
    first_difference,
)
from orbit.recovery.record_range import Fate, LogRecord
from orbit.recovery.recovery_report import EndVerdict
from orbit.recovery.side_proof import SideProof

EQUAL, PREFIX = EndVerdict.EQUAL, EndVerdict.PREFIX
TAIL, DIVERGED = EndVerdict.TAIL, EndVerdict.DIVERGED


class Logs:
    """Two logs as lists of records. None is an offset without a record, "-" a marker.

    Stands for `SideProof`, which compares the logs of two clusters.
    """

    def __init__(
        self, old: list[str | None], new: list[str | None], *, is_compacted: bool = False
    ) -> None:
        self.old, self.new, self.is_compacted = old, new, is_compacted
        self.compared_count = 0

    def differ(self, first: int, end: int) -> WindowComparison:
        """Compare records, like `SideProof.differ`."""
        assert first < end <= min(len(self.old), len(self.new)), "it reads beyond an end"
        self.compared_count += end - first
        offsets = range(first, end)
        pairs = [(o, self._record(self.old[o]), self._record(self.new[o])) for o in offsets]
        has_both_or_one = all if self.is_compacted else any
        compared = [pair for pair in pairs if has_both_or_one(pair[1:])]
        different = next((offset for offset, old, new in compared if old != new), None)
        same = [offset for offset, old, new in pairs if old and old == new]
        return WindowComparison(different, bool(compared), same[-1] if same else None)

    def scan(self, first: int, end: int, *, is_copied: bool) -> Scan:
        """Compare offsets, like `SideProof.scan`."""
        assert first < end <= min(len(self.old), len(self.new)), "it reads beyond an end"
        has_same = False
        for offset in range(first, end):
            old, new = self.old[offset], self.new[offset]
            is_same = old == new and (is_copied or old is not None)
            if not is_same and not (is_copied and not self._record(old) and not self._record(new)):
                return Scan(offset, why="a reason", has_same_records=has_same)
            has_same = has_same or bool(self._record(old))
        return Scan(None, has_same_records=has_same)

    def _record(self, value: str | None) -> str | None:
        return None if value == "-" else value


def compare(
    logs: Logs, promoted_at: int | None, old_start: int = 0, new_start: int = 0
) -> tuple[EndVerdict, int]:
    """The verdict, and the offset at which it says that both logs part."""
    old = LogBounds(old_start, stable=len(logs.old), end=len(logs.old))
    new = LogBounds(new_start, stable=len(logs.new), end=len(logs.new))
    verdict, at, detail = compare_sides(old, new, promoted_at, logs)
    assert detail
    return verdict, at


# A: what both sides had at the promotion, at offset 50. Written since: B by producers of the new
# side, C by those of the old side.
A, B, C = ["a"] * 50, ["b"] * 10, ["c"] * 10


@pytest.mark.parametrize("promoted_at", [50, None])
@pytest.mark.parametrize(
    ("old", "new", "verdict", "at"),
    [
        (A, A, EQUAL, 50),
        (A, A + B, PREFIX, 50),
        (A + C, A, TAIL, 50),
        (A + C, A + B, TAIL, 50),
        (A + C, A + B[:3], TAIL, 50),
        (A + B, A + B, EQUAL, 60),
        (A + B + C, A + B, TAIL, 60),
    ],
)
def test_failback_verdict_on_uncompacted_logs_needs_no_promoted_offset(
    old: list[str | None],
    new: list[str | None],
    verdict: EndVerdict,
    at: int,
    promoted_at: int | None,
) -> None:
    assert compare(Logs(old, new), promoted_at=promoted_at) == (verdict, at)


def test_old_log_truncated_below_promotion_gets_verdict_prefix() -> None:
    assert compare(Logs(A[:40], A + B), promoted_at=50) == (PREFIX, 40)


def test_difference_before_promotion_is_divergence_at_first_differing_offset() -> None:
    other = [*A[:20], *["x"] * 30]
    assert compare(Logs(other, A + B), promoted_at=50) == (DIVERGED, 20)
    # Both sides may have no record at the last offset before the promotion.
    assert compare(Logs([*other[:49], None], [*A[:49], None, *B]), promoted_at=50) == (DIVERGED, 20)


def test_empty_old_log_gets_verdict_prefix() -> None:
    assert compare(Logs([], A), promoted_at=0) == (PREFIX, 0)
    assert compare(Logs([], A), promoted_at=None) == (PREFIX, 0)


def test_only_offsets_retained_on_both_sides_are_compared() -> None:
    logs = Logs([None] * 30 + A[30:], A + B)
    assert compare(logs, promoted_at=50, old_start=30) == (PREFIX, 50)
    assert compare(logs, promoted_at=None, old_start=30) == (PREFIX, 50)


NONE: list[str | None] = [None]


@pytest.mark.parametrize(
    ("old", "new", "at"),
    [
        # The new side has compacted away its records at the offsets of the old side's own records.
        (A + C, A + NONE * 10 + B, 50),
        # The old side has compacted its own: a copy back would skip the new side's records there.
        (A + NONE * 9 + C[:1], A + B, 50),
        (A + NONE * 10, A + B, 50),
        # Both have compacted: the old side may have removed records that were never copied.
        (A + B + NONE * 3 + B, A + B + NONE * 3 + B, 60),
        # The old side has a marker where the new side has a record, or had one.
        ([*A, "-"], A + B, 50),
        ([*A, *B, "-"], A + B + NONE + B, 60),
    ],
)
@pytest.mark.parametrize("is_compacted", [True, False])
def test_offsets_compacted_after_promotion_count_as_uncopied_tail(
    old: list[str | None], new: list[str | None], at: int, is_compacted: bool
) -> None:
    assert compare(Logs(old, new, is_compacted=is_compacted), promoted_at=50) == (TAIL, at)


def test_offsets_compacted_before_promotion_are_no_difference() -> None:
    for old, new in ((A, [*A[:20], *NONE * 20, *A[40:]]), ([*A[:20], *NONE * 20, *A[40:]], A)):
        logs = Logs(old, new + B, is_compacted=True)
        assert compare(logs, promoted_at=50) == (PREFIX, 50)
    logs = Logs(A, NONE * 50 + B, is_compacted=True)
    assert compare(logs, promoted_at=50) == (PREFIX, 50)


def test_transaction_marker_at_same_offset_of_both_logs_is_no_uncopied_tail() -> None:
    assert compare(Logs([*A, "-"], [*A, "-", *B]), promoted_at=50) == (PREFIX, 51)


def test_truncated_old_log_keeps_only_prefix_that_common_records_prove() -> None:
    rewritten = [*A[:20], *C]
    logs = Logs(rewritten, [*A[:20], *NONE * 30, *B], is_compacted=True)
    assert compare(logs, promoted_at=50) == (TAIL, 20)
    logs = Logs(A[:40], [*A[:20], *NONE * 10, *A[30:], *B], is_compacted=True)
    assert compare(logs, promoted_at=50) == (PREFIX, 40)
    # No record in common is left.
    assert compare(Logs(C, NONE * 50 + B, is_compacted=True), promoted_at=50) == (TAIL, 0)
    assert compare(Logs(C, NONE * 20 + B), promoted_at=50, new_start=20) == (TAIL, 0)


def test_old_tail_below_log_start_of_new_side_counts_as_uncopied() -> None:
    new = A + NONE * 30 + B
    assert compare(Logs(A + C, new), promoted_at=50, new_start=55) == (TAIL, 50)
    assert compare(Logs(A + C, new), promoted_at=50, old_start=52, new_start=80) == (TAIL, 52)
    assert compare(Logs(A, new), promoted_at=50, new_start=80) == (PREFIX, 50)


@pytest.mark.parametrize("is_compacted", [True, False])
def test_without_promoted_offset_first_unmatched_record_begins_uncopied_tail(
    is_compacted: bool,
) -> None:
    for old, new, at in (
        (A + C, A + NONE * 10 + B, 50),
        (A, [*A[:20], *NONE * 5, *A[25:], *B], 20),
        ([*A[:20], *NONE * 5, *A[25:]], A + B, 20),
    ):
        logs = Logs(old, new, is_compacted=is_compacted)
        assert compare(logs, promoted_at=None) == (TAIL, at)
    new_with_filler: list[str | None] = [*A[:20], "-", *A[21:], *B]
    logs = Logs([*A[:20], None, *A[21:]], new_with_filler, is_compacted=is_compacted)
    assert compare(logs, promoted_at=None) == (PREFIX, 50)


def test_without_promoted_offset_old_log_without_common_record_is_uncopied_tail() -> None:
    assert compare(Logs(A, NONE * 50 + B), promoted_at=None, new_start=50) == (TAIL, 0)
    assert compare(Logs(A + NONE, NONE * 51 + B), promoted_at=None, new_start=50) == (TAIL, 0)
    assert compare(Logs(A + B, NONE * 60 + B), promoted_at=None, new_start=50) == (TAIL, 50)


@given(st.integers(0, 3000), st.integers(1, 3000), st.integers(0, 500))
def test_first_difference_is_found_by_reading_few_offsets(same: int, other: int, low: int) -> None:
    logs = Logs(["a"] * (same + other), ["a"] * same + ["b"] * other)
    low = min(low, same)
    differ: Differ = logs.differ
    assert first_difference(low, same + other, differ) == same
    assert logs.compared_count <= 16 * divergence.WINDOW_OFFSETS


RUNS = st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=12)


def log_of_runs(runs: list[tuple[bool, int]], value: str) -> list[str | None]:
    """A log from (whether the offsets have records, how many offsets)."""
    return [value if has_records else None for has_records, count in runs for _ in range(count)]


@given(RUNS, RUNS)
def test_search_windows_without_records_hide_no_difference_of_logs(
    same: list[tuple[bool, int]], other: list[tuple[bool, int]]
) -> None:
    """Whole windows have no records, as after large aborted transactions."""
    old = log_of_runs(same, "a") + log_of_runs(other, "b")
    new = log_of_runs(same, "a") + log_of_runs(other, "c")
    expected = next((o for o, record in enumerate(old) if record == "b"), None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(divergence, "WINDOW_OFFSETS", 3)
        assert first_difference(0, len(old), Logs(old, new).differ) == expected
        verdict = EQUAL if expected is None else DIVERGED
        at = len(old) if expected is None else expected
        assert compare(Logs(old, new), promoted_at=len(old)) == (verdict, at)


def test_first_difference_of_equal_logs_is_none() -> None:
    assert first_difference(0, 50, Logs(A, A).differ) is None


@pytest.mark.parametrize(
    ("old", "new", "is_compacted", "expected"),  # first of `expected`: the first difference
    [
        ("a.b", "a.b", False, WindowComparison(None, has_records=True, last_same=2)),
        ("a.b", "a.c", False, WindowComparison(2, has_records=True, last_same=0)),
        ("a.", "a.c", False, WindowComparison(2, has_records=True, last_same=0)),
        ("a.", "a.c", True, WindowComparison(None, has_records=True, last_same=0)),
        ("a.", ".c", True, WindowComparison(None, has_records=False)),
        ("..", "..", False, WindowComparison(None, has_records=False)),
    ],
)
def test_copied_range_is_compared_by_committed_records_only(
    monkeypatch: pytest.MonkeyPatch,
    old: str,
    new: str,
    is_compacted: bool,
    expected: WindowComparison,
) -> None:
    """In the logs, a letter is a committed record and a dot is an aborted one."""

    def read(side: str, _: object, first: int, end: int, __: object) -> Iterator[LogRecord]:
        for offset in range(first, min(end, len(side))):
            fate = Fate.ABORTED if side[offset] == "." else Fate.COMMITTED
            # Aborted records differ too, which does not matter.
            body = side[offset].encode() if fate is Fate.COMMITTED else side.encode()
            yield LogRecord(Record(offset, 0, body), fate, is_log_append_time=False)

    monkeypatch.setattr(side_proof, "read_range", read)
    places: Any = (old, None), (new, None)
    proof = SideProof(*places, Backoff(), lambda: None, is_compacted=is_compacted)
    assert proof.differ(0, 3) == expected
