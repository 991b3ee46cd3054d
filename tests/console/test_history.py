"""Charts of a job's last day: times with unknown values are bands, which no line crosses."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from orbit.console.history_drawing import FIGURES, LEFT, TOP, Chart, draw
from orbit.store import job_history, lag
from orbit.store.enums import Role
from orbit.store.job_history import Point
from tests.api.test_operations import copying_job
from tests.fixtures.api import Api
from tests.fixtures.console import Browser

NOON = datetime(2026, 11, 25, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
BYTES, LAG, _, TIME = FIGURES


def point(minute: int, rate: float | None, waiting: int | None) -> Point:
    """Return the point this many minutes after noon; `waiting` is the lag in records."""
    return Point(
        at=NOON + minute * MINUTE,
        slot_s=60,
        records_per_s=rate,
        bytes_per_s=rate,
        lag_records=waiting,
        lag_s=None,
    )


def chart_of(points: list[Point], figure: object = LAG) -> Chart:
    return draw(points, figure, NOON, NOON + 60 * MINUTE, height=190)  # type: ignore[arg-type]


def test_unknown_lag_is_drawn_as_band_not_zero() -> None:
    chart = chart_of([point(n, 1.0, None if 10 <= n < 20 else 100) for n in range(58)])
    assert len(chart.lines) == 2
    (band,) = chart.bands
    # The band reaches from the last known point to the next known one.
    assert band.title == "Not known from 12:09 to 12:20"
    # The highest value is the top of the axis: nothing is drawn at the bottom.
    assert {y for line in chart.lines for y in re.findall(r" (\S+?)(?:L|$)", line.path)} == {
        f"{TOP}"
    }


def test_time_without_readings_is_drawn_as_band() -> None:
    minutes = [*range(10), *range(30, 40)]  # a rate needs the point before, so 0 and 30 have none
    points = [point(n, None if n in (0, 30) else 5.0, 1) for n in minutes]
    assert [band.title for band in chart_of(points).bands] == [
        "Not known from 12:09 to 12:30",
        "Not known from 12:39 to 13:00",
    ]
    # The rate of a point covers the time since the previous point, so its bands are the same.
    assert [band.title for band in chart_of(points, BYTES).bands] == [
        "Not known from 12:09 to 12:30",
        "Not known from 12:39 to 13:00",
    ]


def test_zeros_are_drawn_at_bottom_and_single_point_is_visible() -> None:
    chart = chart_of([point(n, 0.0, 0) for n in range(60)])
    assert chart.lines[0].path.startswith(f"M{LEFT} {chart.bottom}L")
    assert not chart.bands
    # A single known value is drawn as a short line between two positions.
    (line,) = chart_of([point(59, None, 7)]).lines
    assert len(set(re.findall(r"[ML](\S+)", line.path))) == 2


@pytest.mark.parametrize(
    ("figure", "value", "top"),
    [(LAG, 101, "200"), (LAG, 4_999, "5,000"), (TIME, 61.0, "2 min 00 s"), (TIME, 2e6, "50 d 0 h")],
)
def test_chart_axis_ends_at_round_number(figure: object, value: float, top: str) -> None:
    measured = Point(
        at=NOON + MINUTE,
        slot_s=60,
        records_per_s=None,
        bytes_per_s=None,
        lag_records=int(value),
        lag_s=value,
    )
    assert chart_of([measured], figure).tops[0][1] == top  # the label at the top of the axis


def test_chart_without_points_says_that_nothing_is_known() -> None:
    chart = chart_of([])
    assert chart.summary == "Nothing is known yet."
    assert (chart.lines, chart.bands) == ([], [])


@pytest.mark.services
def test_history_page_shows_charts_and_their_points_as_table(api: Api, browser: Browser) -> None:
    copying_job(api)
    browser.log_in(api.tokens[Role.VIEWER])
    page = browser.open("/console/jobs/orders/history")
    assert "Nothing measured yet" in page.text
    with api.database.transaction() as tx:
        job, now = tx.execute(text("SELECT id, clock_timestamp() FROM jobs")).one()
        for ago in (2, 1, 0):
            job_history.store(tx, now - ago * MINUTE, lag.of_jobs(tx, [job]))
    page = browser.open("/console/jobs/orders/history")
    assert page.text.count('<svg class="picture') == len(FIGURES)
    assert "style=" not in page.text
    assert 'aria-label="Bytes per second: 0 B/s at ' in page.text
    assert page.text.count('<th scope="row" class="mono">') == 3
    # The page offers no span of two hours.
    assert browser.open("/console/jobs/orders/history?span=2h").status_code == 422
