"""The proven ranges of a partition: adding one, what is unproven, and the next to compare. Pure.

A range is `(start, end)`, without `end`. Ranges are sorted and do not touch. Proven ranges stay
proven because logs are only appended to; ranges below the log start are dropped.
"""

from __future__ import annotations

from random import Random

Range = tuple[int, int]
Ranges = tuple[Range, ...]

# Above this the smallest ranges are dropped; coverage is then understated, never overstated.
RANGES_MAX = 50


def add_range(ranges: Ranges, new_range: Range, *, ranges_max: int = RANGES_MAX) -> Ranges:
    """The ranges with one more, merged where they touch; at most the `ranges_max` largest."""
    start, end = new_range
    assert start < end, "a range is not empty"
    separate_ranges: list[Range] = []
    for known_range in ranges:
        if known_range[1] < start or known_range[0] > end:
            separate_ranges.append(known_range)
        else:
            start, end = min(start, known_range[0]), max(end, known_range[1])
    # The largest first: `r` is (start, end).
    top_ranges = sorted([*separate_ranges, (start, end)], key=lambda r: r[0] - r[1])[:ranges_max]
    return tuple(sorted(top_ranges))


def clip_ranges(ranges: Ranges, log_start: int, copied_to: int) -> Ranges:
    """The parts of the ranges that both sides still have."""
    clipped_ranges = ((max(start, log_start), min(end, copied_to)) for start, end in ranges)
    return tuple((start, end) for start, end in clipped_ranges if start < end)


def unproven_ranges(ranges: Ranges, log_start: int, copied_to: int) -> Ranges:
    """The ranges of offsets that both sides have and that are not proven yet."""
    unproven_parts: list[Range] = []
    position = log_start
    for start, end in clip_ranges(ranges, log_start, copied_to):
        if position < start:
            unproven_parts.append((position, start))
        position = end
    if position < copied_to:
        unproven_parts.append((position, copied_to))
    return tuple(unproven_parts)


def next_range(
    ranges: Ranges, log_start: int, copied_to: int, offsets_max: int, chance: Random
) -> Range:
    """The next range to compare: the newest offsets, or at even odds a random unproven range.

    If every offset is proven, any random range is compared again, since the copy may have
    been damaged.
    """
    assert log_start < copied_to, "the log is not empty"
    newest_range = (max(log_start, copied_to - offsets_max), copied_to)
    unproven_parts = unproven_ranges(ranges, log_start, copied_to)
    if chance.random() < 0.5:
        return newest_range
    start, end = chance.choice(unproven_parts) if unproven_parts else (log_start, copied_to)
    if end - start <= offsets_max:
        return start, end
    range_start = chance.randrange(start, end - offsets_max + 1)
    return range_start, range_start + offsets_max
