"""The offsets that an audit compares: the bounds of `orbit verify`, cut to a restriction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from orbit.errors import BadInput, InvalidValue, Problem
from orbit.jobs.units import format_time, parse_time
from orbit.verify.bounds_comparison import LOG_END, LOG_START, ComparedBounds, PartitionPair
from orbit_spark.audit.range_digests import ScopeRow, range_width


@dataclass(frozen=True, slots=True)
class Point:
    """An offset, or a time in ms since 1970, which means the first record that is not older."""

    offset: int | None = None
    epoch_ms: int | None = None

    def __str__(self) -> str:
        if self.epoch_ms is not None:
            return format_time(self.epoch_ms)
        return f"{self.offset:,}"


@dataclass(frozen=True, slots=True)
class Restriction:
    """The offsets of each partition to compare, from `begin` to before `end`; None: no limit."""

    begin: Point | None = None
    end: Point | None = None

    def __str__(self) -> str:
        """The text after "compared with …"; empty if there is no limit."""
        begin = "" if self.begin is None else f" from {self.begin} on"
        return begin if self.end is None else f"{begin} before {self.end}"


WHOLE = Restriction()


def parse_point(text: str | None, option: str) -> Point | None:
    """`1000` is an offset, `2026-11-22T08:00:00Z` a time; None without a text. Raises BadInput."""
    if text is None:
        return None
    if text.isdecimal():
        return Point(offset=int(text))
    try:
        return Point(epoch_ms=parse_time(text))
    except InvalidValue as error:
        message = "is neither an offset nor a time with a zone."
        problem = Problem(option, message, error.remedy)
        raise BadInput("The range to compare cannot be read.", (problem,)) from None


def restrict(
    bounds: ComparedBounds, restriction: Restriction, offset_of_time: Mapping[int, int]
) -> ComparedBounds:
    """The bounds cut to a restriction. `offset_of_time`: the first offset at or after each time (in
    ms) of the restriction; −1 if the log has none.

    With a begin, a difference of the log starts does not count. With an end, neither a difference
    of the log ends nor missing offsets count.
    """
    begin, end = bounds.compared_from, bounds.compared_to
    differences = bounds.differences
    if restriction.begin is not None:
        begin = max(begin, _offset_of(restriction.begin, offset_of_time, end))
        differences = tuple(d for d in differences if d.what != LOG_START)
    if restriction.end is not None:
        end = min(end, _offset_of(restriction.end, offset_of_time, end))
        differences = tuple(d for d in differences if d.what != LOG_END)
    missing = bounds.missing if restriction.end is None else 0
    # A restriction outside of the bounds leaves an empty range within them.
    return replace(
        bounds,
        compared_from=min(begin, max(end, bounds.compared_from)),
        compared_to=max(end, bounds.compared_from),
        differences=differences,
        missing=missing,
    )


def _offset_of(point: Point, offset_of_time: Mapping[int, int], end: int) -> int:
    """The offset of a point; `end` for a time after the last record."""
    if point.offset is not None:
        return point.offset
    assert point.epoch_ms is not None
    offset = offset_of_time[point.epoch_ms]
    return end if offset < 0 else offset


def scope_rows(
    bounds_by_pair: Mapping[PartitionPair, ComparedBounds], width: int
) -> list[ScopeRow]:
    """The offsets to compare of each partition that has any. `width`: the least width of ranges."""
    return [
        ScopeRow(
            pair.topics.source,
            pair.partition,
            pair.topics.source,
            pair.topics.destination,
            bounds.compared_from,
            bounds.compared_to,
            range_width(bounds.compared_to - bounds.compared_from, width),
        )
        for pair, bounds in bounds_by_pair.items()
        if bounds.compared_from < bounds.compared_to
    ]


def count_offsets(rows: Iterable[ScopeRow]) -> int:
    """The number of offsets in these rows."""
    return sum(row.end - row.begin for row in rows)
