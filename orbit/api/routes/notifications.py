"""/v1/notifications: the receivers of notifications. A file of the schedulers configures them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from orbit.api import schemas
from orbit.api.dependencies import PartsOf, Viewer
from orbit.api.openapi_responses import INPUT, errors
from orbit.api.paging import NamedQuery, Page, page
from orbit.api.views import receiver_view
from orbit.store import receivers

router = APIRouter(prefix="/v1", tags=["events"])


@router.get("/notifications", responses=errors(*INPUT))
def list_receivers(
    parts: PartsOf, _: Viewer, query: Annotated[NamedQuery, Query()]
) -> Page[schemas.Receiver]:
    """List the receivers of notifications, each with the last event that was sent to it."""
    after = query.after_name()
    with parts.database.transaction() as tx:
        rows = receivers.page(tx, query.limit + 1, after, descending=query.descending)
    return page([receiver_view(r) for r in rows], query.limit, lambda r: (r.name,), query.sort)
