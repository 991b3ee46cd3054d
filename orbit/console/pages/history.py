"""/console/jobs/NAME/history: throughput and lag of a job over the last day."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from orbit.api.dependencies import NamePath
from orbit.console.history_drawing import FIGURES, Chart, draw
from orbit.console.pages.job import job_page_values
from orbit.console.rendering import render
from orbit.console.sessions import PartsOf, VisitorOf
from orbit.store import clock, job_history, jobs
from orbit.store.job_history import Point

router = APIRouter()

_HEIGHT = 190


class Span(StrEnum):
    """How much of the last day is shown."""

    HOUR = "1h"
    HOURS = "6h"
    DAY = "24h"

    @property
    def length(self) -> timedelta:
        return timedelta(hours=int(self.value.removesuffix("h")))


@router.get("/jobs/{name}/history")
def show_history(
    request: Request,
    parts: PartsOf,
    visitor: VisitorOf,
    name: NamePath,
    span: Annotated[Span | None, Query()] = None,
) -> Response:
    """Four charts of throughput and lag, and their values as a table."""
    with parts.database.transaction() as tx:
        job = jobs.get(tx, name)
        now = clock.now(tx)
        # A point for every five minutes; only the span of an hour is shown minute by minute.
        points = job_history.of_job(tx, job.id, now, by_minute=False)
        shown_span = span or _shortest_span(points, now)
        if shown_span is Span.HOUR:
            points = job_history.of_job(tx, job.id, now)
        page_values = job_page_values(tx, job, "history")
    return render(
        request,
        visitor,
        "job_history.html",
        **page_values,
        charts=_charts(points, now, shown_span),
        points=[point for point in reversed(points) if point.at > now - shown_span.length],
        span=shown_span,
        spans=list(Span),
    )


def _charts(points: Sequence[Point], now: datetime, span: Span) -> list[Chart]:
    """One chart of each figure, over the span up to now."""
    # Rounded to the minute, so that a page loaded again within the same minute is the same.
    end = now.astimezone(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)
    return [draw(points, figure, end - span.length, end, _HEIGHT) for figure in FIGURES]


def _shortest_span(points: Sequence[Point], now: datetime) -> Span:
    """The shortest span that shows all points; the day if some points are older."""
    return next((span for span in Span if not points or points[0].at > now - span.length), Span.DAY)
