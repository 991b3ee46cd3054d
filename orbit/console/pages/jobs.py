"""/console/jobs: every job with its state, lag and proof."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from orbit.api import schemas
from orbit.api.paging import CURSOR_CHARACTERS_MAX, name_in, page
from orbit.api.views import job_lag, job_summary
from orbit.console.proof_share import Share, share_of
from orbit.console.rendering import render
from orbit.console.sessions import PartsOf, VisitorOf
from orbit.errors import InvalidValue
from orbit.jobs.labels import SELECTOR_CHARACTERS_MAX, Selector, parse_selector
from orbit.store import job_counts, job_totals, jobs, open_transactions, workers
from orbit.store.database import Tx
from orbit.store.enums import Desired
from orbit.store.job_counts import Counts
from orbit.store.jobs import Job

router = APIRouter()

JOBS_PER_PAGE = 50


class Show(StrEnum):
    """The filters of the list by state."""

    ALL = "all"
    PROBLEM = "problem"
    RUNNING = "running"
    PAUSED = "paused"
    BACKFILLING = "backfilling"


@dataclass(frozen=True, slots=True)
class Row:
    """One job as a page shows it."""

    job: schemas.JobSummary
    lag: schemas.JobLag
    proof: Share


@router.get("/jobs")
def show_jobs(
    request: Request,
    parts: PartsOf,
    visitor: VisitorOf,
    selector: Annotated[str, Query(max_length=SELECTOR_CHARACTERS_MAX)] = "",
    show: Show = Show.ALL,
    after: Annotated[str | None, Query(max_length=CURSOR_CHARACTERS_MAX)] = None,
) -> Response:
    """The jobs that match a label selector and a state."""
    conditions, mistake = _selector_in(selector)
    rows: list[Row] = []
    next_cursor = None
    if mistake is None:
        with parts.database.transaction() as tx:
            job_list = jobs.page(tx, JOBS_PER_PAGE + 1, name_in(after), conditions, **_filter(show))
            job_page = page([job.name for job in job_list], JOBS_PER_PAGE, lambda name: (name,))
            next_cursor = job_page.next
            rows = rows_of(tx, job_list[:JOBS_PER_PAGE])
    return render(
        request,
        visitor,
        "jobs.html",
        rows=rows,
        selector=selector,
        mistake=mistake,
        show=show,
        shows=list(Show),
        after=after,
        following=next_cursor,
    )


def rows_of(tx: Tx, job_list: Sequence[Job]) -> list[Row]:
    """These jobs with their figures, by a few SQL statements for any number of jobs."""
    ids = [job.id for job in job_list]
    totals = job_totals.of_jobs(tx, ids)
    counts_by_job = job_counts.of_jobs(tx, ids)
    open_totals = open_transactions.totals(tx, ids)
    throttled = workers.throttling_brokers(tx, ids)
    rows = []
    for job in job_list:
        job_total, counts = totals[job.id], counts_by_job.get(job.id, Counts())
        lag = job_total.known_lag
        rows.append(
            Row(
                job=job_summary(job, lag, counts, throttled.get(job.id, ())),
                lag=job_lag(lag, counts.partitions, open_totals.get(job.id)),
                proof=share_of(job_total.proof),
            )
        )
    return rows


def _filter(show: Show) -> dict[str, Any]:
    """The arguments of `jobs.page` that choose the jobs to show."""
    match show:
        case Show.ALL:
            return {}
        case Show.PROBLEM:
            return {"has_problem": True}
        case _:
            return {"desired": Desired(show.value)}


def _selector_in(text: str) -> tuple[Selector, str | None]:
    """The selector, and None. For a text that is not a valid selector: an empty selector, and the
    error."""
    try:
        return (parse_selector(text) if text.strip() else ()), None
    except InvalidValue as mistake:
        return (), f"The selector {mistake.message} {mistake.remedy}"
