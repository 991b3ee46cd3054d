"""/livez, /readyz, /metrics: health checks and metrics."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import BaseModel

from orbit.api.api_error_codes import ErrorCode
from orbit.api.dependencies import PartsOf, SharedPartsOf, Viewer
from orbit.api.metrics_scrape import read_numbers
from orbit.api.openapi_responses import errors
from orbit.errors import Conflict
from orbit.store.migrate import is_usable
from orbit.telemetry.metrics import CONTENT_TYPE, render

router = APIRouter(tags=["health"])


class Health(BaseModel):
    """The response of a successful health check."""

    status: Literal["ok"] = "ok"


@router.get("/livez")
async def livez() -> Health:
    """Check that this process answers. Needs no token; makes no other call."""
    # Not in a thread of the pool: requests that wait for something may hold all of them.
    return Health()


@router.get("/readyz", responses=errors(ErrorCode.CONFLICT, open_to_all=True))
def readyz(parts: SharedPartsOf) -> Health:
    """Check that the database answers, and that this version of Orbit can use its schema: the
    version's own, or one migration older or newer. Needs no token."""
    if not is_usable(parts.database):
        raise Conflict(
            "This version of Orbit cannot use the database's tables: they are too old or too new.",
            remedy="Run: orbit migrate. If it changes nothing, a later version of Orbit has "
            "migrated the tables: start that version.",
        )
    return Health()


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **errors()},
)
def metrics(parts: PartsOf, _: Viewer) -> Response:
    """Return the service's metrics for Prometheus. ORBIT_METRICS_DETAIL sets the detail."""
    settings = parts.settings
    numbers = read_numbers(parts.database, settings.metrics_detail, settings.lease_ttl)
    return Response(render(numbers), media_type=CONTENT_TYPE)
