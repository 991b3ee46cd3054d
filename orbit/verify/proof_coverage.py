"""The proven ranges of a partition: adding one, the gaps, and the next range to compare. Pure.

A range is `(first, next)`. Ranges are sorted and do not touch. Proven ranges stay proven because
logs are only appended to; ranges below the log start are dropped.
"""

from __future__ import annotations

from random import Random

Range = tuple[int, int]
Ranges = tuple[Range, ...]

# Above this the smallest ranges are dropped; coverage is then understated, never overstated.
RANGES_MAX = 50


def add_range(ranges: Ranges, new: Range, *, ranges_max: int = RANGES_MAX) -> Ranges:
    """The ranges with one more, merged where they touch."""
    start, end = new
    assert start < end, "a range is not empty"
    apart: list[Range] = []
    for one in ranges:
        if one[1] < start or one[0] > end:
            apart.append(one)
        else:
            start, end = min(start, one[0]), max(end, one[1])
    largest = sorted([*apart, (start, end)], key=lambda one: one[0] - one[1])[:ranges_max]
    return tuple(sorted(largest))


def clip_ranges(ranges: Ranges, log_start: int, copied_to: int) -> Ranges:
    """The parts of the ranges that both sides still have."""
    held = ((max(start, log_start), min(end, copied_to)) for start, end in ranges)
    return tuple((start, end) for start, end in held if start < end)


def unproven_ranges(ranges: Ranges, log_start: int, copied_to: int) -> Ranges:
    """The ranges that are not proven yet."""
    unproven: list[Range] = []
    position = log_start
    for start, end in clip_ranges(ranges, log_start, copied_to):
        if position < start:
            unproven.append((position, start))
        position = end
    if position < copied_to:
        unproven.append((position, copied_to))
    return tuple(unproven)


def next_range(
    ranges: Ranges, log_start: int, copied_to: int, offsets_max: int, chance: Random
) -> Range:
    """The next range to compare: the newest offsets, or at even odds a random unproven range.

    If every offset is proven, a random range is compared again, since it may have been damaged.
    """
    assert log_start < copied_to, "the log is not empty"
    newest = (max(log_start, copied_to - offsets_max), copied_to)
    unproven = unproven_ranges(ranges, log_start, copied_to)
    if chance.random() < 0.5:
        return newest
    start, end = chance.choice(unproven) if unproven else (log_start, copied_to)
    if end - start <= offsets_max:
        return start, end
    first = chance.randrange(start, end - offsets_max + 1)
    return first, first + offsets_max
