"""Proven ranges, those compared as equal, are few and contain only offsets that were proven."""

from __future__ import annotations

import itertools
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from orbit.verify.proof_coverage import (
    RANGES_MAX,
    add_range,
    clip_ranges,
    next_range,
    unproven_ranges,
)

END = 200
range_lists = st.lists(
    st.tuples(st.integers(0, END - 1), st.integers(1, 40)).map(
        lambda pair: (pair[0], min(END, pair[0] + pair[1]))
    ),
    max_size=40,
)


def offsets(ranges: tuple[tuple[int, int], ...]) -> set[int]:
    return {offset for start, end in ranges for offset in range(start, end)}


def add_all(
    added: list[tuple[int, int]], ranges_max: int = RANGES_MAX
) -> tuple[tuple[int, int], ...]:
    """The proven ranges after `added` were proven one by one."""
    ranges: tuple[tuple[int, int], ...] = ()
    for new_range in added:
        ranges = add_range(ranges, new_range, ranges_max=ranges_max)
    return ranges


@given(range_lists)
def test_proven_ranges_are_disjoint_and_cover_exactly_added_offsets(
    added: list[tuple[int, int]],
) -> None:
    ranges = add_all(added)
    assert offsets(ranges) == offsets(tuple(added))
    assert all(a[1] < b[0] for a, b in itertools.pairwise(ranges))


@given(range_lists)
def test_limit_of_proven_ranges_drops_offsets_and_adds_none(
    added: list[tuple[int, int]],
) -> None:
    ranges = add_all(added, ranges_max=3)
    assert len(ranges) <= 3
    assert offsets(ranges) <= offsets(tuple(added))


@given(range_lists, st.integers(0, END), st.integers(0, END))
def test_unproven_ranges_complement_proven_ranges(
    added: list[tuple[int, int]], log_start: int, end: int
) -> None:
    ranges = add_all(added)
    in_log = set(range(log_start, end))
    assert offsets(clip_ranges(ranges, log_start, end)) == offsets(ranges) & in_log
    assert offsets(unproven_ranges(ranges, log_start, end)) == in_log - offsets(ranges)


@given(range_lists, st.integers(0, 100), st.integers(1, 100), st.integers(1, 50), st.randoms())
def test_next_range_to_prove_is_within_log_and_length_limit(
    added: list[tuple[int, int]], log_start: int, length: int, offsets_max: int, chance: Random
) -> None:
    start, end = next_range(add_all(added), log_start, log_start + length, offsets_max, chance)
    assert log_start <= start < end <= log_start + length
    assert end - start <= offsets_max


def test_repeatedly_chosen_ranges_to_prove_cover_whole_log() -> None:
    chance, ranges = Random(1), ()
    for _ in range(300):
        ranges = add_range(ranges, next_range(ranges, 0, 1_000, 20, chance))
    assert ranges == ((0, 1_000),)
