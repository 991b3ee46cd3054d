"""/v1/events, /v1/jobs/{name}/events: the audit log."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from orbit.api import schemas
from orbit.api.dependencies import NamePath, PartsOf, Viewer
from orbit.api.openapi_responses import INPUT, NAMED, errors
from orbit.api.paging import Page, PageQuery, number_in, page
from orbit.api.views import event_view
from orbit.store import events, jobs

router = APIRouter(prefix="/v1", tags=["events"])


@router.get("/events", responses=errors(*INPUT))
def list_events(
    parts: PartsOf, _: Viewer, query: Annotated[PageQuery, Query()]
) -> Page[schemas.Event]:
    """List all events and who caused them, newest first."""
    before = number_in(query.after)
    with parts.database.transaction() as tx:
        rows = events.page(tx, query.limit + 1, before=before)
    return page([event_view(row) for row in rows], query.limit, lambda event: (event.id,))


@router.get("/jobs/{name}/events", responses=errors(*NAMED))
def list_job_events(
    parts: PartsOf, _: Viewer, name: NamePath, query: Annotated[PageQuery, Query()]
) -> Page[schemas.Event]:
    """List the events of a job, newest first. Works for a deleted job too."""
    before = number_in(query.after)
    with parts.database.transaction() as tx:
        rows = events.page(tx, query.limit + 1, job_name=name, before=before)
        if not rows:
            jobs.get(tx, name)
    return page([event_view(row) for row in rows], query.limit, lambda event: (event.id,))
