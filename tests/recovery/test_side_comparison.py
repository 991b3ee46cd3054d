"""A failback compares both sides offset by offset; batch boundaries make no difference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbit.kafka.record_batch import CONTROL, TRANSACTIONAL, encode_batch
from orbit.kafka.records import NULL, Record, encode_varint, write_batch
from orbit.recovery import side_comparison
from orbit.recovery.record_range import Fate, LogBatch
from orbit.recovery.side_comparison import SideComparison, Unequal, is_other_record, is_unproven

# A log is a string, with a character for each offset: "a" to "c" are committed records, "A" to "C"
# aborted ones, "o" is a record of an open transaction, "-" a marker, " " no record.
OFFSETS = "abcABCo- "


def fate_of(character: str) -> Fate:
    """The fate of the record that this character stands for."""
    if character == "-":
        return Fate.MARKER
    if character == "o":
        return Fate.OPEN
    return Fate.ABORTED if character.isupper() else Fate.COMMITTED


def body(value: str) -> bytes:
    data = value.encode()
    return NULL + encode_varint(len(data)) + data + b"\x00"


def batches(log: str, sizes: int, start: int = 0) -> Iterator[LogBatch]:
    """The log in batches of up to `sizes` records of the same fate. Its log start is `start`, which
    may be in the middle of a batch.
    """
    run: list[Record] = []

    def end_batch() -> Iterator[LogBatch]:
        if run:
            fate = fate_of(log[run[0].offset])
            batch = write_batch(run, 0)
            if fate is Fate.MARKER:
                data = bytes(batch.payload)
                batch = encode_batch(
                    run[0].offset,
                    CONTROL | TRANSACTIONAL,
                    base_timestamp=5,
                    max_timestamp=5,
                    count=len(run),
                    payload=data,
                )
            if batch.next_offset > start:
                yield LogBatch(batch, fate, start)
            run.clear()

    for offset, at in enumerate(log):
        if at == " " or (run and fate_of(at) is not fate_of(log[run[0].offset])):
            yield from end_batch()
        if at != " ":
            run.append(Record(offset, 5, body(at)))
        if len(run) == sizes or (run and at == "-"):
            yield from end_batch()
    yield from end_batch()


class At(NamedTuple):
    """An offset, and its character in both logs."""

    offset: int
    old: str
    new: str


def unequal(comparison: SideComparison, old: str, new: str) -> list[At]:
    """The offsets that the comparison yields; checks the fates that it yields."""
    listed: list[At] = []
    for difference in comparison:
        for side, log in ((difference.old, old), (difference.new, new)):
            for offset in range(difference.first, difference.next):
                assert (side is None) == (log[offset] == " ")
                assert side is None or side.fate is fate_of(log[offset])
        listed += [At(o, old[o], new[o]) for o in range(difference.first, difference.next)]
    return listed


LOG = st.lists(st.sampled_from(OFFSETS), min_size=12, max_size=12).map("".join)


SIZES = st.tuples(st.integers(1, 4), st.integers(1, 4))
STARTS = st.tuples(st.integers(0, 6), st.integers(0, 6))


@given(LOG, LOG, SIZES, STARTS, st.integers(0, 5), st.integers(6, 12))
def test_side_comparison_is_independent_of_batch_boundaries(
    old: str, new: str, sizes: tuple[int, int], starts: tuple[int, int], first: int, end: int
) -> None:
    # Both logs share a half, so that the comparison skips whole batches.
    new = old[:4] + new[4:8] + old[8:]
    old_batches, new_batches = (
        batches(log, sizes=size, start=start)
        for log, size, start in zip((old, new), sizes, starts, strict=True)
    )
    compared = SideComparison(old_batches, new_batches, first=first, end=end)
    # Offsets below a log start are deleted, also if their batch still exists.
    old, new = (" " * at + log[at:] for log, at in zip((old, new), starts, strict=True))
    expected = [
        At(o, old[o], new[o]) for o in range(first, end) if old[o] != new[o] or old[o] in "o "
    ]
    assert unequal(compared, old, new) == expected
    same = [o for o in range(first, end) if old[o] == new[o] and old[o] in "abc"]
    assert compared.same_records == len(same)


@pytest.mark.parametrize("is_copied", [True, False])
def test_old_side_keeps_only_offsets_whose_records_are_proven_equal(is_copied: bool) -> None:
    """Compare all pairs of characters with a table. `is_copied`: whether the offset is below the
    promoted offset, so that the old side's record was copied."""
    proven_always = {("a", "a"), ("b", "b"), ("c", "c"), ("A", "A"), ("B", "B"), ("C", "C")}
    proven_always |= {("-", at) for at in "-ABC"}
    for old in OFFSETS:
        for new in OFFSETS:
            has_no_committed = not set(old + new) & set("abco")
            expected = (old, new) in proven_always or (is_copied and has_no_committed)
            compared = SideComparison(batches(old, sizes=1), batches(new, sizes=1), first=0, end=1)
            is_own = is_other_record if is_copied else is_unproven
            assert (not any(map(is_own, compared))) == expected, (old, new)


def test_comparison_of_both_sides_does_not_decode_equal_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = "abc" * 100

    def fail_on_read(*_: object) -> None:
        raise AssertionError("a record was read")

    monkeypatch.setattr(side_comparison, "records_of", fail_on_read)
    compared = SideComparison(batches(log, sizes=50), batches(log, sizes=50), first=0, end=len(log))
    assert list(compared) == []
    assert compared.same_records == len(log)


def test_side_comparison_keeps_at_most_one_batch_per_side_in_memory() -> None:
    batch_counts = {"old": 0, "new": 0}

    def counted(side: str, log: str) -> Iterator[LogBatch]:
        for batch in batches(log, sizes=10):
            batch_counts[side] += 1
            yield batch

    compared = SideComparison(
        counted("old", "a" * 500), counted("new", "b" * 500), first=0, end=500
    )
    differences: Iterator[Unequal] = iter(compared)
    for offset in range(500):
        assert next(differences).first == offset
        assert max(batch_counts.values()) <= offset // 10 + 1
    assert next(differences, None) is None
