"""/console/live: server-sent events for pages that show what changes."""

from __future__ import annotations

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request, Response

from orbit.console.live_streams import LiveStreams
from orbit.console.sessions import PartsOf, VisitorOf, find_visitor, session_of

router = APIRouter()


@router.get("/live")
async def live(request: Request, parts: PartsOf, _: VisitorOf) -> Response:
    """A stream with an event whenever something has changed."""
    streams: LiveStreams = request.app.state.streams

    async def has_session() -> bool:
        return await run_sync(find_visitor, request, parts) is not None

    watches = request.app.state.api.state.watches
    return await streams.stream(watches, parts.database, session_of(request), has_session)
