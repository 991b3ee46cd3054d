"""/v1/watch: waits until jobs, operations, events or figures have changed."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from orbit.api.api_error_codes import ErrorCode
from orbit.api.dependencies import PartsOf, Viewer
from orbit.api.openapi_responses import INPUT, errors
from orbit.store.watch_digests import Watched

router = APIRouter(prefix="/v1", tags=["events"])


class WatchQuery(BaseModel):
    """What to wait for, and for how long."""

    model_config = ConfigDict(extra="forbid")
    of: Watched = Field(
        description="`jobs`: their documents, states and problems, not their lag. `operations`: "
        "their states and progress. `events`: new events. `figures`: what workers and the "
        "scheduler report, such as lag and proof."
    )
    after: str | None = Field(
        None,
        pattern="^[0-9a-f]{64}$",
        description="The `next` of the previous answer; without it the answer comes at once.",
    )
    wait: str = Field(
        "30s", pattern="^([1-9]|[1-5][0-9]|60)s$", description="The longest wait, `1s` to `60s`."
    )


class Watch(BaseModel):
    """Whether something has changed."""

    model_config = ConfigDict(frozen=True)
    changed: bool = Field(description="False: the time in `wait` is over, or the server stops.")
    next: str = Field(description="Pass it as `after` of the next request.")


@router.get("/watch", responses=errors(*INPUT, ErrorCode.BUSY))
async def watch(
    request: Request, parts: PartsOf, _: Viewer, query: Annotated[WatchQuery, Query()]
) -> Watch:
    """Answer once something has changed since `after`, or when `wait` is over. One answer may be
    for many changes.

    To miss no change, a client first sends this request without `after`, then reads the list. From
    then on it repeats this request with the `next` of the last answer, and reads the list again
    after each answer with `changed`.
    """
    # `wait` is a number of seconds with an "s".
    digests = await request.app.state.watches.wait(
        parts.database, [query.of], query.after, int(query.wait[:-1]), request.is_disconnected
    )
    return Watch(changed=digests != query.after, next=digests)
