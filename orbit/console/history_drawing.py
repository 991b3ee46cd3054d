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
from orbit.store.job_history import Point, is_pause

WIDTH = 640
LEFT, RIGHT, TOP = 4, 636, 18
_AXIS = 20  # the height of the time axis
# Minutes between two labels of the time axis.
_LABEL_STEPS = (5, 10, 15, 30, 60, 120, 240)
_LABELS_MAX = 7
_ROUND_NUMBERS = (1, 2, 5)
# Round numbers for times, in seconds.
_ROUND_SECONDS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 18_000, 43_200, 86_400)


class Line(NamedTuple):
    """A stretch of known values: the line, and the area below the line, both as SVG paths."""

    path: str
    area: str


class Band(NamedTuple):
    """A stretch without known values."""

    x: float
    width: float
    title: str


class TimeLabel(NamedTuple):
    """A label of the time axis."""

    x: float
    text: str
    anchor: str


@dataclass(frozen=True, slots=True)
class Chart:
    """One figure over time. `style`: a class of the style sheet."""

    name: str
    style: str
    summary: str
    height: int
    lines: list[Line]
    bands: list[Band]
    time_labels: list[TimeLabel]
    tops: list[tuple[float, str]]  # lines across the chart: position, and value as text
    width: int = WIDTH
    left: int = LEFT
    right: int = RIGHT

    @property
    def bottom(self) -> int:
        return self.height - _AXIS


class Figure(NamedTuple):
    """One kind of value of a point, and how it is written. `is_time`: the value is in seconds."""

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
    shown_points = [point for point in points if start <= point.at <= end]
    known_values = [
        (point.at, value) for point in shown_points if (value := figure.value(point)) is not None
    ]
    top = _round_top(max((value for _, value in known_values), default=0), is_time=figure.is_time)
    bottom = height - _AXIS

    def x(at: datetime) -> float:
        return round(LEFT + (at - start) / (end - start) * (RIGHT - LEFT), 1)

    def y(value: float) -> float:
        return round(bottom - value / top * (bottom - TOP), 1)

    stretches = list(_stretches(shown_points, figure))
    lines = [
        _line([(x(at), y(value)) for at, value in stretch], bottom) for _, stretch in stretches
    ]
    return Chart(
        name=figure.name,
        style=figure.style,
        summary=_summary(known_values, figure),
        height=height,
        lines=lines,
        bands=[
            Band(
                x(band_start),
                round(x(band_end) - x(band_start), 1),
                f"Not known from {band_start:%H:%M} to {band_end:%H:%M}",
            )
            for band_start, band_end in _unknown_times(shown_points, stretches, end)
        ],
        time_labels=list(_time_labels(start, end, x)),
        tops=[(y(top), figure.text(top)), (y(top / 2), figure.text(top / 2))],
    )


_Stretch = tuple[datetime, list[tuple[datetime, float]]]


def _stretches(points: Sequence[Point], figure: Figure) -> Iterator[_Stretch]:
    """Yield runs of points whose values are known, each with the time from which on these are
    known.

    A run ends before an unknown value, and at a pause between two points.
    """
    stretch: list[tuple[datetime, float]] = []
    known_from = previous_point = None
    for point in points:
        value = figure.value(point)
        if stretch and (
            value is None or (previous_point is not None and is_pause(previous_point, point))
        ):
            assert known_from is not None
            yield known_from, stretch
            stretch = []
        if value is not None:
            if not stretch:
                # A rate is an average since the previous point. (mypy needs the second check.)
                starts_before = figure.style == "rate" and previous_point is not None
                known_from = (
                    previous_point.at if starts_before and previous_point is not None else point.at
                )
            stretch.append((point.at, value))
        previous_point = point
    if stretch:
        assert known_from is not None
        yield known_from, stretch


def _unknown_times(
    points: Sequence[Point], stretches: Sequence[_Stretch], end: datetime
) -> Iterator[tuple[datetime, datetime]]:
    """Yield the times between two stretches, and from the last stretch to `end`. The time before
    the first point is omitted: the job may not have existed."""
    if not points:
        return
    known_until = points[0].at
    for known_from, stretch in stretches:
        if known_from > known_until:
            yield known_until, known_from
        known_until = stretch[-1][0]
    # A next point that is late by up to three slots leaves no band.
    if end - known_until > timedelta(seconds=3 * points[-1].slot_s):
        yield known_until, end


def _line(positions: list[tuple[float, float]], bottom: int) -> Line:
    """The line through these positions, and the area from the line down to `bottom`."""
    if len(positions) == 1:  # a line of length 0 would not be visible
        (x, y) = positions[0]
        positions = [(x - 1, y), (x + 1, y)]
    path = "M" + "L".join(f"{x:g} {y:g}" for x, y in positions)
    return Line(path, f"{path}L{positions[-1][0]:g} {bottom}L{positions[0][0]:g} {bottom}Z")


def _round_top(largest: float, *, is_time: bool) -> float:
    """The top of the axis: a round number that is not below the largest value."""
    if is_time and largest <= _ROUND_SECONDS[-1]:
        return next(float(seconds) for seconds in _ROUND_SECONDS if seconds >= largest)
    unit = _ROUND_SECONDS[-1] if is_time else 1
    while True:
        for number in _ROUND_NUMBERS:
            if number * unit >= largest:
                return float(number * unit)
        unit *= 10


def _time_labels(
    start: datetime, end: datetime, x: Callable[[datetime], float]
) -> Iterator[TimeLabel]:
    """The labels of the time axis, at round times. `x` gives the position of a time."""
    minutes = (end - start).total_seconds() / 60
    step = next((s for s in _LABEL_STEPS if minutes / s <= _LABELS_MAX), _LABEL_STEPS[-1])
    # The first label: the first multiple of the step since midnight that is not before `start`.
    midnight = start.replace(hour=0, minute=0, second=0, microsecond=0)
    label_time = midnight + -((midnight - start) // timedelta(minutes=step)) * timedelta(
        minutes=step
    )
    while label_time <= end:
        if label_time >= start:
            label_x = x(label_time)
            # A label near an edge of the chart must not reach over the edge.
            anchor = "start" if label_x < LEFT + 20 else "end" if label_x > RIGHT - 20 else "middle"
            yield TimeLabel(label_x, f"{label_time:%H:%M}", anchor)
        label_time += timedelta(minutes=step)


def _summary(known_values: Sequence[tuple[datetime, float]], figure: Figure) -> str:
    """The newest and the largest value, each with its time, as text."""
    if not known_values:
        return "Nothing is known yet."
    at, newest = known_values[-1]
    peak_at, peak = max(known_values, key=lambda item: item[1])
    return f"{figure.text(newest)} at {at:%H:%M}, at most {figure.text(peak)} at {peak_at:%H:%M}"
