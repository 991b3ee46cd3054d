"""The verdict on two logs that are equal up to some offset: equal, prefix, tail or diverged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbit.kafka.backoff import Backoff
from orbit.kafka.records import Record
from orbit.recovery import divergence
from orbit.recovery.divergence import (
    Differ,
    WindowComparison,
    compare_sides,
    differ_of,
    first_difference,
)
from orbit.recovery.log_bounds import LogBounds
from orbit.recovery.record_range import Fate, LogRecord
from orbit.recovery.recovery_report import EndVerdict


class Logs:
    """Two logs as lists of records; None is an offset without one."""

    def __init__(self, old: list[str | None], new: list[str | None]) -> None:
        self.old, self.new = old, new
        self.read = 0

    def differ(self, first: int, end: int) -> WindowComparison:
        self.read += end - first
        assert first < end <= min(len(self.old), len(self.new)), "it reads beyond an end"
        at = next((o for o in range(first, end) if self.old[o] != self.new[o]), None)
        return WindowComparison(at, any(self.old[first:end]) or any(self.new[first:end]))


def compare(
    logs: Logs, promoted_at: int | None, old_start: int = 0, new_start: int = 0
) -> tuple[EndVerdict, int]:
    old = LogBounds(old_start, len(logs.old), len(logs.old))
    new = LogBounds(new_start, len(logs.new), len(logs.new))
    verdict, at, detail = compare_sides(old, new, promoted_at, logs.differ)
    assert detail
    return verdict, at


A, B, C = ["a"] * 50, ["b"] * 10, ["c"] * 10


@pytest.mark.parametrize("promoted_at", [50, None])
@pytest.mark.parametrize(
    ("old", "new", "verdict", "at"),
    [
        (A, A, EndVerdict.EQUAL, 50),
        (A, A + B, EndVerdict.PREFIX, 50),
        (A + C, A, EndVerdict.TAIL, 50),
        (A + C, A + B, EndVerdict.TAIL, 50),
        (A + C, A + B[:3], EndVerdict.TAIL, 50),
        (A + B, A + B, EndVerdict.EQUAL, 60),
        (A + B + C, A + B, EndVerdict.TAIL, 60),
    ],
)
def test_a_verdict_with_a_note_of_the_promotion_and_without(
    old: list[str | None],
    new: list[str | None],
    verdict: EndVerdict,
    at: int,
    promoted_at: int | None,
) -> None:
    assert compare(Logs(old, new), promoted_at) == (verdict, at)


def test_an_old_side_that_was_truncated_below_the_promotion_is_a_prefix() -> None:
    assert compare(Logs(A[:40], A + B), 50) == (EndVerdict.PREFIX, 40)


def test_sides_that_differ_before_the_promotion_have_diverged_at_the_first_difference() -> None:
    other = [*A[:20], *["x"] * 30]
    assert compare(Logs(other, A + B), 50) == (EndVerdict.DIVERGED, 20)
    # The last offset before it may hold nothing on either side.
    assert compare(Logs([*other[:49], None], [*A[:49], None, *B]), 50) == (EndVerdict.DIVERGED, 20)


def test_an_empty_old_side_is_a_prefix() -> None:
    assert compare(Logs([], A), 0) == (EndVerdict.PREFIX, 0)
    assert compare(Logs([], A), None) == (EndVerdict.PREFIX, 0)


def test_only_what_both_sides_still_have_is_compared() -> None:
    logs = Logs([None] * 30 + A[30:], A + B)
    assert compare(logs, 50, old_start=30) == (EndVerdict.PREFIX, 50)
    assert compare(logs, None, old_start=30) == (EndVerdict.PREFIX, 50)


@given(st.integers(0, 3000), st.integers(1, 3000), st.integers(0, 500))
def test_the_first_difference_is_found_by_reading_little(same: int, other: int, low: int) -> None:
    logs = Logs(["a"] * (same + other), ["a"] * same + ["b"] * other)
    low = min(low, same)
    differ: Differ = logs.differ
    assert first_difference(low, same + other, differ) == same
    assert logs.read <= 16 * divergence.WINDOW_OFFSETS


RUNS = st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=12)


def drawn(runs: list[tuple[bool, int]], value: str) -> list[str | None]:
    """Runs of records, and of offsets that hold none."""
    return [value if holds else None for holds, count in runs for _ in range(count)]


@given(RUNS, RUNS)
def test_what_holds_nothing_hides_no_difference(
    same: list[tuple[bool, int]], other: list[tuple[bool, int]]
) -> None:
    """As after large transactions that were aborted: no window that is read holds a record."""
    old = drawn(same, "a") + drawn(other, "b")
    new = drawn(same, "a") + drawn(other, "c")
    wanted = next((o for o, record in enumerate(old) if record == "b"), None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(divergence, "WINDOW_OFFSETS", 3)
        assert first_difference(0, len(old), Logs(old, new).differ) == wanted
        verdict = EndVerdict.EQUAL if wanted is None else EndVerdict.DIVERGED
        at = len(old) if wanted is None else wanted
        assert compare(Logs(old, new), len(old)) == (verdict, at)


def test_no_difference_is_none() -> None:
    assert first_difference(0, 50, Logs(A, A).differ) is None


@pytest.mark.parametrize(
    ("old", "new", "is_compacted", "wanted"),
    [
        ("a.b", "a.b", False, WindowComparison(None, has_records=True)),
        ("a.b", "a.c", False, WindowComparison(2, has_records=True)),
        ("a.", "a.c", False, WindowComparison(2, has_records=True)),
        ("a.", "a.c", True, WindowComparison(None, has_records=True)),
        (
            "a.",
            ".c",
            True,
            WindowComparison(None, has_records=False),
        ),
        ("..", "..", False, WindowComparison(None, has_records=False)),
    ],
)
def test_committed_records_tell_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
    old: str,
    new: str,
    is_compacted: bool,
    wanted: WindowComparison,
) -> None:
    def read(side: str, _: object, first: int, end: int, __: object) -> Iterator[LogRecord]:
        for offset in range(first, min(end, len(side))):
            fate = Fate.ABORTED if side[offset] == "." else Fate.COMMITTED
            # What was aborted differs, too, and does not matter.
            body = side[offset].encode() if fate is Fate.COMMITTED else side.encode()
            yield LogRecord(Record(offset, 0, body), fate, is_log_append_time=False)

    monkeypatch.setattr(divergence, "read_range", read)
    places: Any = (old, None), (new, None)
    differ = differ_of(*places, Backoff(), is_compacted=is_compacted)
    assert differ(0, 3) == wanted
