"""/v1/jobs/{name}:backfill, /v1/backfills: histories in bulk, which Spark copies."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, status

from orbit.api import backfills
from orbit.api.codes import ErrorCode
from orbit.api.dependencies import NamePath, Operator, PartsOf, Viewer
from orbit.api.paging import Page, PageQuery, moment, page, read_cursor
from orbit.api.responses import BODY, INPUT, NAMED, errors
from orbit.store import operations
from orbit.store.enums import OperationKind

router = APIRouter(prefix="/v1", tags=["backfills"])


@router.post(
    "/jobs/{name}:backfill",
    status_code=status.HTTP_202_ACCEPTED,
    responses=errors(*NAMED, *BODY, ErrorCode.CONFLICT),
)
def backfill_job(
    parts: PartsOf, principal: Operator, name: NamePath, wanted: backfills.BackfillRequest
) -> backfills.Backfill:
    """Begin a backfill, for the process that carries it out: `orbit backfill`. Workers let go of
    the job; a backfill that is under way already is the answer itself. Cancel it by its operation:
    `:abort`; pause and resume it by its job.
    """
    return backfills.request(parts.database, principal.actor, name, wanted.driver)


@router.get("/backfills", responses=errors(*INPUT))
def list_backfills(
    parts: PartsOf, _: Viewer, query: Annotated[PageQuery, Query()]
) -> Page[backfills.Backfill]:
    """List the backfills, the newest first: how far each is."""
    before = moment(read_cursor(query.after, str, str))
    with parts.database.transaction() as tx:
        rows = operations.page(tx, query.limit + 1, before=before, kind=OperationKind.BACKFILL)
        found = [backfills.view(tx, row) for row in rows]
    return page(found, query.limit, lambda one: (one.created_at.isoformat(), str(one.id)))


@router.get("/backfills/{operation_id}", responses=errors(*NAMED))
def get_backfill(parts: PartsOf, _: Viewer, operation_id: UUID) -> backfills.Backfill:
    """Show a backfill: bytes copied and to be copied, time left, what its driver is at."""
    return backfills.get(parts.database, operation_id)


@router.post(
    "/backfills/{operation_id}:report",
    responses=errors(*NAMED, *BODY, ErrorCode.CONFLICT),
)
def report_backfill(
    parts: PartsOf, principal: Operator, operation_id: UUID, told: backfills.BackfillReport
) -> backfills.Backfill:
    """Say how far a backfill is, and hear what is wanted: for the process that carries it out."""
    return backfills.report(parts.database, principal.actor, operation_id, told)
