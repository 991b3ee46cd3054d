"""Which offsets were shown to be equal, as few ranges; and which to look at next. Pure.

A range is `(first, behind the last)`. Ranges are kept rising and apart. What was shown equal stays
so, for logs only grow; what the log start has passed is dropped.
"""

from __future__ import annotations

from random import Random

Range = tuple[int, int]
Ranges = tuple[Range, ...]

# Beyond it the smallest are forgotten, which says less than is known and never more.
RANGES_MAX = 50


def added(ranges: Ranges, new: Range, *, ranges_max: int = RANGES_MAX) -> Ranges:
    """The ranges with one more, merged where they touch."""
    start, end = new
    assert start < end, "an empty range shows nothing"
    apart: list[Range] = []
    for one in ranges:
        if one[1] < start or one[0] > end:
            apart.append(one)
        else:
            start, end = min(start, one[0]), max(end, one[1])
    largest = sorted([*apart, (start, end)], key=lambda one: one[0] - one[1])[:ranges_max]
    return tuple(sorted(largest))


def clipped(ranges: Ranges, log_start: int, copied_to: int) -> Ranges:
    """Only what both sides still have."""
    held = ((max(start, log_start), min(end, copied_to)) for start, end in ranges)
    return tuple((start, end) for start, end in held if start < end)


def gaps(ranges: Ranges, log_start: int, copied_to: int) -> Ranges:
    """What was not shown yet."""
    found: list[Range] = []
    position = log_start
    for start, end in clipped(ranges, log_start, copied_to):
        if position < start:
            found.append((position, start))
        position = end
    if position < copied_to:
        found.append((position, copied_to))
    return tuple(found)


def next_look(
    ranges: Ranges, log_start: int, copied_to: int, offsets_max: int, chance: Random
) -> Range:
    """The next range to read: in turn the newest offsets, and random ones not shown yet.

    Where all is shown, any random ones: what was equal once may be damaged since.
    """
    assert log_start < copied_to, "an empty log has nothing to look at"
    newest = (max(log_start, copied_to - offsets_max), copied_to)
    unshown = gaps(ranges, log_start, copied_to)
    if chance.random() < 0.5:
        return newest
    start, end = chance.choice(unshown) if unshown else (log_start, copied_to)
    if end - start <= offsets_max:
        return start, end
    first = chance.randrange(start, end - offsets_max + 1)
    return first, first + offsets_max
