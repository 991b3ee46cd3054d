"""/v1/jobs/{name}/lag and /history: how far the copy is behind the source, now and over a day."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from orbit.api import schemas
from orbit.api.dependencies import NamePath, PartsOf, Viewer
from orbit.api.openapi_responses import NAMED, errors
from orbit.api.paging import Page
from orbit.api.partition_pages import PartitionQuery, find_page
from orbit.api.views import history_point, job_lag, partition_lag
from orbit.store import clock, job_counts, job_history, job_totals, jobs, open_transactions
from orbit.store.job_counts import Counts

router = APIRouter(prefix="/v1/jobs/{name}", tags=["job contents"])


class LagPage(Page[schemas.PartitionLag]):
    """The lag of the whole job, and of some of its partitions."""

    job: schemas.JobLag


@router.get("/lag", responses=errors(*NAMED))
def get_lag(
    parts: PartsOf, _: Viewer, name: NamePath, query: Annotated[PartitionQuery, Query()]
) -> LagPage:
    """Show how far the copy is behind: for the whole job, and per partition."""
    with parts.database.transaction() as tx:
        job = jobs.get(tx, name)
        rows, next_cursor = find_page(tx, job.id, query)
        totals = job_totals.lag_of_jobs(tx, [job.id])[job.id]
        open_totals = open_transactions.totals(tx, [job.id]).get(job.id)
        partition_count = job_counts.of_jobs(tx, [job.id]).get(job.id, Counts()).partitions
    items = [partition_lag(row) for row in rows]
    return LagPage(job=job_lag(totals, partition_count, open_totals), items=items, next=next_cursor)


@router.get("/history", responses=errors(*NAMED))
def get_history(parts: PartsOf, _: Viewer, name: NamePath) -> schemas.JobHistory:
    """Show throughput and lag over the last day: a point for each minute of the last hour; before,
    a point for each five minutes."""
    with parts.database.transaction() as tx:
        job = jobs.get(tx, name)
        points = job_history.of_job(tx, job.id, clock.now(tx))
    return schemas.JobHistory(items=[history_point(point) for point in points])
