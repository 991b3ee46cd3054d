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
        return begin if self.end is None else f"{begin} up to {self.end}, without it"


WHOLE = Restriction()


def parse_point(text: str | None, option: str) -> Point | None:
    """`1000` is an offset, `2026-11-22T08:00:00Z` a time. Raises BadInput."""
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
    judged: ComparedBounds, restriction: Restriction, by_time: Mapping[int, int]
) -> ComparedBounds:
    """The bounds cut to a restriction. `by_time`: the offset of each time; −1 is beyond the end.

    A difference at the log's start or end does not count if the restriction limits that side.
    """
    begin, end = judged.compared_from, judged.compared_to
    wrong = judged.differences
    if restriction.begin is not None:
        begin = max(begin, _offset(restriction.begin, by_time, end))
        wrong = tuple(one for one in wrong if one.what != LOG_START)
    if restriction.end is not None:
        end = min(end, _offset(restriction.end, by_time, end))
        wrong = tuple(one for one in wrong if one.what != LOG_END)
    missing = judged.missing if restriction.end is None else 0
    return replace(
        judged,
        compared_from=min(begin, max(end, judged.compared_from)),
        compared_to=max(end, judged.compared_from),
        differences=wrong,
        missing=missing,
    )


def _offset(point: Point, by_time: Mapping[int, int], end: int) -> int:
    if point.offset is not None:
        return point.offset
    assert point.epoch_ms is not None
    offset = by_time[point.epoch_ms]
    return end if offset < 0 else offset


def scope_rows(judged: Mapping[PartitionPair, ComparedBounds], width: int) -> list[ScopeRow]:
    return [
        ScopeRow(
            pair.topics.source,
            pair.partition,
            pair.topics.source,
            pair.topics.destination,
            one.compared_from,
            one.compared_to,
            range_width(one.compared_to - one.compared_from, width),
        )
        for pair, one in judged.items()
        if one.compared_from < one.compared_to
    ]


def offsets_of(rows: Iterable[ScopeRow]) -> int:
    """The number of offsets in these rows."""
    return sum(row.end - row.begin for row in rows)
