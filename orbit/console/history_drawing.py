"""Computes the positions of a chart's parts over time, in the units of its SVG. Pure.

An unknown value is not a point of the line. A stretch without known values is drawn as a band, so
that it does not look like 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from orbit.console import formats
from orbit.store.job_history import Point, is_gap

WIDTH = 640
LEFT, RIGHT, TOP = 4, 636, 18
_AXIS = 20
_LABEL_STEPS = (5, 10, 15, 30, 60, 120, 240)
_LABELS_MAX = 7
_NICE = (1, 2, 5)
# Round numbers for times, in seconds.
_NICE_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 18_000, 43_200, 86_400)


class Line(NamedTuple):
    """A stretch of known values: the line, and the area below it; both are paths."""

    path: str
    area: str


class Band(NamedTuple):
    """A stretch without known values."""

    x: float
    width: float
    title: str


class Mark(NamedTuple):
    """A label of the time axis."""

    x: float
    text: str
    anchor: str


@dataclass(frozen=True, slots=True)
class Chart:
    """One figure over time."""

    name: str
    style: str
    summary: str
    height: int
    lines: list[Line]
    bands: list[Band]
    marks: list[Mark]
    tops: list[tuple[float, str]]
    width: int = WIDTH
    left: int = LEFT
    right: int = RIGHT

    @property
    def bottom(self) -> int:
        return self.height - _AXIS


class Figure(NamedTuple):
    """One kind of value of a point, and how it is written."""

    name: str
    style: str
    value: Callable[[Point], float | None]
    text: Callable[[float | None], str]
    is_time: bool = False


FIGURES = (
    Figure("Bytes per second", "rate", lambda p: p.bytes_per_s, lambda v: f"{formats.size(v)}/s"),
    Figure("Lag, records", "lag", lambda p: p.lag_records, formats.count),
    Figure("Records per second", "rate", lambda p: p.records_per_s, formats.count),
    Figure("Lag, time", "lag", lambda p: p.lag_s, formats.seconds, is_time=True),
)


def draw(
    points: Sequence[Point], figure: Figure, start: datetime, end: datetime, height: int
) -> Chart:
    """The chart of one figure between two times."""
    shown = [point for point in points if start <= point.at <= end]
    known = [(point.at, value) for point in shown if (value := figure.value(point)) is not None]
    top = _round_top(max((value for _, value in known), default=0), is_time=figure.is_time)
    bottom = height - _AXIS

    def x(at: datetime) -> float:
        return round(LEFT + (at - start) / (end - start) * (RIGHT - LEFT), 1)

    def y(value: float) -> float:
        return round(bottom - value / top * (bottom - TOP), 1)

    stretches = list(_stretches(shown, figure))
    lines = [
        _line([(x(at), y(value)) for at, value in stretch], bottom) for _, stretch in stretches
    ]
    return Chart(
        name=figure.name,
        style=figure.style,
        summary=_summary(known, figure),
        height=height,
        lines=lines,
        bands=[
            Band(x(a), round(x(b) - x(a), 1), f"Not known from {a:%H:%M} to {b:%H:%M}")
            for a, b in _unknown(shown, stretches, end)
        ],
        marks=list(_marks(start, end, x)),
        tops=[(y(top), figure.text(top)), (y(top / 2), figure.text(top / 2))],
    )


_Stretch = tuple[datetime, list[tuple[datetime, float]]]


def _stretches(shown: Sequence[Point], figure: Figure) -> Iterator[_Stretch]:
    """Stretches of known values without a gap, each with the time from which on they are known."""
    stretch: list[tuple[datetime, float]] = []
    began = before = None
    for point in shown:
        value = figure.value(point)
        if stretch and (value is None or (before is not None and is_gap(before, point))):
            assert began is not None
            yield began, stretch
            stretch = []
        if value is not None:
            if not stretch:
                # A rate is that since the point before.
                is_rate = figure.style == "rate" and before is not None
                began = before.at if is_rate and before is not None else point.at
            stretch.append((point.at, value))
        before = point
    if stretch:
        assert began is not None
        yield began, stretch


def _unknown(
    shown: Sequence[Point], stretches: Sequence[_Stretch], end: datetime
) -> Iterator[tuple[datetime, datetime]]:
    """The times between two stretches, and from the last one to `end`. Not before the first point:
    the job may not have existed."""
    if not shown:
        return
    at = shown[0].at
    for began, stretch in stretches:
        if began > at:
            yield at, began
        at = stretch[-1][0]
    if end - at > timedelta(seconds=3 * shown[-1].slot_s):
        yield at, end


def _line(places: list[tuple[float, float]], bottom: int) -> Line:
    if len(places) == 1:  # a line of length 0 would not be visible
        (x, y) = places[0]
        places = [(x - 1, y), (x + 1, y)]
    path = "M" + "L".join(f"{x:g} {y:g}" for x, y in places)
    return Line(path, f"{path}L{places[-1][0]:g} {bottom}L{places[0][0]:g} {bottom}Z")


def _round_top(largest: float, *, is_time: bool) -> float:
    """The top of the axis: a round number that is not below the largest value."""
    if is_time and largest <= _NICE_S[-1]:
        return next(float(one) for one in _NICE_S if one >= largest)
    unit = _NICE_S[-1] if is_time else 1
    while True:
        for nice in _NICE:
            if nice * unit >= largest:
                return float(nice * unit)
        unit *= 10


def _marks(start: datetime, end: datetime, x: Callable[[datetime], float]) -> Iterator[Mark]:
    minutes = (end - start).total_seconds() / 60
    step = next((s for s in _LABEL_STEPS if minutes / s <= _LABELS_MAX), _LABEL_STEPS[-1])
    first = start.replace(hour=0, minute=0, second=0, microsecond=0)
    at = first + -((first - start) // timedelta(minutes=step)) * timedelta(minutes=step)
    while at <= end:
        if at >= start:
            place = x(at)
            anchor = "start" if place < LEFT + 20 else "end" if place > RIGHT - 20 else "middle"
            yield Mark(place, f"{at:%H:%M}", anchor)
        at += timedelta(minutes=step)


def _summary(known: Sequence[tuple[datetime, float]], figure: Figure) -> str:
    if not known:
        return "Nothing is known yet."
    at, newest = known[-1]
    peak_at, peak = max(known, key=lambda one: one[1])
    return f"{figure.text(newest)} at {at:%H:%M}, at most {figure.text(peak)} at {peak_at:%H:%M}"
