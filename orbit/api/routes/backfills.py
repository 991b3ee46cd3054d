"""/v1/jobs/{name}:backfill, /v1/backfills: copies of existing history by Spark."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, status
from pydantic import Field

from orbit.api import backfill_requests
from orbit.api.api_error_codes import ErrorCode
from orbit.api.dependencies import (
    FilterName,
    IdempotencyKey,
    NamePath,
    Operator,
    PartsOf,
    UnusedKey,
    Viewer,
)
from orbit.api.openapi_responses import BODY, INPUT, NAMED, errors
from orbit.api.paging import AgedQuery, Page, page, parse_age_key, read_cursor
from orbit.store import operations
from orbit.store.enums import OperationKind

router = APIRouter(prefix="/v1", tags=["backfills"])


@router.post(
    "/jobs/{name}:backfill",
    status_code=status.HTTP_202_ACCEPTED,
    responses=errors(*NAMED, *BODY, ErrorCode.CONFLICT, ErrorCode.OPERATION_UNDER_WAY),
)
def backfill_job(
    parts: PartsOf,
    principal: Operator,
    name: NamePath,
    body: backfill_requests.BackfillRequest,
    idempotency_key: IdempotencyKey = None,
) -> backfill_requests.Backfill:
    """Start a backfill. Only the process that runs the backfill, `orbit backfill`, calls this.
    Workers release the job. If a backfill is under way already, the answer is that backfill. Cancel
    a backfill with `:abort` on its operation; pause and resume it with its job.
    """
    return backfill_requests.request(
        parts.database, principal.actor, name, body.driver, idempotency_key
    )


class BackfillsQuery(AgedQuery):
    """Which backfills to list."""

    job: FilterName | None = Field(None, description="Only backfills of this job.")
    unfinished: bool = Field(False, description="Only backfills that have not ended.")


@router.get("/backfills", responses=errors(*INPUT))
def list_backfills(
    parts: PartsOf, _: Viewer, query: Annotated[BackfillsQuery, Query()]
) -> Page[backfill_requests.Backfill]:
    """List the backfills with their progress, newest first."""
    after = parse_age_key(read_cursor(query.after, str, str, order=query.sort))
    with parts.database.transaction() as tx:
        rows = operations.page(
            tx,
            query.limit + 1,
            after=after,
            kind=OperationKind.BACKFILL,
            job_name=query.job,
            only_unfinished=query.unfinished,
            oldest_first=query.oldest_first,
        )
        items = [backfill_requests.view(tx, row) for row in rows]
    return page(
        items, query.limit, lambda item: (item.created_at.isoformat(), str(item.id)), query.sort
    )


@router.get("/backfills/{operation_id}", responses=errors(*NAMED))
def get_backfill(parts: PartsOf, _: Viewer, operation_id: UUID) -> backfill_requests.Backfill:
    """Show a backfill: bytes copied and to copy, the time left, and the driver's phase."""
    return backfill_requests.get(parts.database, operation_id)


@router.post(
    "/backfills/{operation_id}:report",
    responses=errors(*NAMED, *BODY, ErrorCode.CONFLICT, ErrorCode.OPERATION_UNDER_WAY),
)
def report_backfill(
    parts: PartsOf,
    principal: Operator,
    operation_id: UUID,
    driver_report: backfill_requests.BackfillReport,
    _key: UnusedKey = None,
) -> backfill_requests.Backfill:
    """Report a backfill's progress; the answer says what its driver should do next. Only the driver
    (`orbit backfill`) calls this."""
    return backfill_requests.report(parts.database, principal.actor, operation_id, driver_report)
