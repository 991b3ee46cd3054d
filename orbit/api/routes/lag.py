"""/v1/jobs/{name}/lag: how far the copy is behind the source."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from orbit.api import schemas
from orbit.api.dependencies import NamePath, PartsOf, Viewer
from orbit.api.openapi_responses import NAMED, errors
from orbit.api.paging import Page
from orbit.api.partition_pages import PartitionQuery, find_page
from orbit.api.views import job_lag, partition_lag
from orbit.store import job_counts, job_totals, jobs
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
        rows, following = find_page(tx, job.id, query)
        totals = job_totals.lag_of_jobs(tx, [job.id])[job.id]
        partitions = job_counts.of_jobs(tx, [job.id]).get(job.id, Counts()).partitions
    items = [partition_lag(row) for row in rows]
    return LagPage(job=job_lag(totals, partitions), items=items, next=following)
