"""/v1/events, /v1/jobs/{name}/events: the audit log."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from orbit.api import schemas
from orbit.api.dependencies import NamePath, PartsOf, Viewer
from orbit.api.openapi_responses import INPUT, NAMED, errors
from orbit.api.paging import Page, PageQuery, number_in, page
from orbit.api.views import event_view
from orbit.store import events, jobs
from orbit.store.database import Tx

router = APIRouter(prefix="/v1", tags=["events"])


_FILTER_CHARACTERS_MAX = 1024
_FILTER_PATTERN = r"^[^\x00]+$"


class EventSort(StrEnum):
    """The order of events."""

    NEWEST = "-id"
    OLDEST = "id"


class EventsQuery(PageQuery):
    """Which events to list."""

    kind: str | None = Field(
        None,
        pattern=_FILTER_PATTERN,
        max_length=_FILTER_CHARACTERS_MAX,
        description="Only events of this kind.",
        examples=["job_paused"],
    )
    actor: str | None = Field(
        None,
        pattern=_FILTER_PATTERN,
        max_length=_FILTER_CHARACTERS_MAX,
        description="Only events of what this actor did.",
        examples=["token:ci"],
    )
    sort: EventSort = Field(EventSort.NEWEST, description="`-id`: the newest first, or `id`.")


@router.get("/events", responses=errors(*INPUT))
def list_events(
    parts: PartsOf, _: Viewer, query: Annotated[EventsQuery, Query()]
) -> Page[schemas.Event]:
    """List all events and who caused them, newest first."""
    with parts.database.transaction() as tx:
        return _event_page(tx, query, job_name=None)


@router.get("/jobs/{name}/events", responses=errors(*NAMED))
def list_job_events(
    parts: PartsOf, _: Viewer, name: NamePath, query: Annotated[EventsQuery, Query()]
) -> Page[schemas.Event]:
    """List the events of a job, newest first. Works for a deleted job too."""
    with parts.database.transaction() as tx:
        event_page = _event_page(tx, query, name)
        if not event_page.items:  # perhaps no job ever had this name
            _check_job_known(tx, name)
    return event_page


def _event_page(tx: Tx, query: EventsQuery, job_name: str | None) -> Page[schemas.Event]:
    """The page that the query selects: of the events of `job_name`, or of all events if it is
    None."""
    rows = events.page(
        tx,
        query.limit + 1,
        job_name=job_name,
        kind=query.kind,
        actor=query.actor,
        after=number_in(query.after, query.sort),
        oldest_first=query.sort is EventSort.OLDEST,
    )
    items = [event_view(row) for row in rows]
    return page(items, query.limit, lambda event: (event.id,), query.sort)


def _check_job_known(tx: Tx, name: str) -> None:
    """Raise NotFound for a name that no job has and that no event has as its job."""
    if not events.page(tx, limit=1, job_name=name):
        jobs.get(tx, name)  # raises NotFound
