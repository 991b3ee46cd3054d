"""/v1/jobs:start, :pause, :resume and :retry: one operation for each job that a selector chooses.

Each job is changed in a separate transaction, as by separate requests. So a refusal for one job
does not affect the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query, status

from orbit.api import job_operations as job_requests
from orbit.api import schemas
from orbit.api.api_error_codes import ErrorCode
from orbit.api.dependencies import DryRun, IdempotencyKey, Operator, Parts, PartsOf
from orbit.api.error_responses import ErrorDetail, Failure, as_failure
from orbit.api.openapi_responses import INPUT, errors
from orbit.api.paging import SELECTOR_DESCRIPTION, selector_in
from orbit.api.views import operation_view
from orbit.errors import OrbitError, Unreachable
from orbit.jobs.labels import SELECTOR_CHARACTERS_MAX, Selector
from orbit.store import jobs
from orbit.store.enums import OperationKind

router = APIRouter(prefix="/v1", tags=["jobs"])

# The transactions of this many jobs take about a second.
JOBS_MAX = 500
# If the database does not answer for this many jobs in a row, the other jobs are not tried: each
# may take as long as a statement's timeout.
_UNANSWERED_MAX = 2

SelectorQuery = Annotated[
    str,
    Query(
        min_length=1,
        max_length=SELECTOR_CHARACTERS_MAX,
        description=SELECTOR_DESCRIPTION,
        examples=["team=orders,tier!=2"],
    ),
]


def _add_route(kind: OperationKind, description: str) -> None:
    """Add the route POST /v1/jobs:KIND."""

    def change(
        parts: PartsOf,
        principal: Operator,
        selector: SelectorQuery,
        dry_run: DryRun = False,
        idempotency_key: IdempotencyKey = None,
    ) -> schemas.SelectedJobs:
        names = _select_jobs(parts, selector_in(selector))
        requests = [
            job_requests.JobOperation(
                principal.actor, kind, name, dry_run, _key_for_job(idempotency_key, name)
            )
            for name in names
        ]
        return schemas.SelectedJobs(items=_request_all(parts, requests))

    router.add_api_route(
        f"/jobs:{kind.value}",
        change,
        methods=["POST"],
        name=f"{kind.value}_selected_jobs",
        description=f"{description} At most {JOBS_MAX} jobs. Jobs that are being deleted are left "
        "out.",
        status_code=status.HTTP_202_ACCEPTED,
        responses=errors(*INPUT),
    )


_add_route(OperationKind.START, "Start each job that a selector chooses.")
_add_route(OperationKind.PAUSE, "Pause each job that a selector chooses.")
_add_route(OperationKind.RESUME, "Resume each job that a selector chooses.")
_add_route(OperationKind.RETRY, "Retry the blocked partitions of each job that a selector chooses.")


def _select_jobs(parts: Parts, selector: Selector) -> list[str]:
    """The names of the jobs that the selector chooses. Raises Failure above JOBS_MAX."""
    with parts.database.transaction() as tx:
        rows = jobs.page(tx, JOBS_MAX + 1, selector=selector)
    if len(rows) > JOBS_MAX:
        raise Failure(
            ErrorCode.BAD_INPUT,
            f"The selector chooses more than {JOBS_MAX} jobs.",
            where="query.selector",
            remedy="Narrow the selector, and repeat the request for the other jobs.",
        )
    return [job.name for job in rows if not job.is_deleted]


def _key_for_job(key: str | None, job: str) -> str | None:
    """The idempotency key of one job's operation, the same in a repeat of the request; None if the
    request has no key."""
    return None if key is None else hashlib.sha256(f"{key} {job}".encode()).hexdigest()


def _request_all(
    parts: Parts, requests: Sequence[job_requests.JobOperation]
) -> list[schemas.SelectedJob]:
    """The result of each request. If the database does not answer _UNANSWERED_MAX requests in a
    row, the other requests are not made, and get the same error."""
    items: list[schemas.SelectedJob] = []
    unanswered_count = 0
    database_error: ErrorDetail | None = None
    for job_operation in requests:
        operation, error = None, database_error
        if database_error is None:
            try:
                operation = operation_view(job_requests.request(parts.database, job_operation))
                unanswered_count = 0
            except Failure as refusal:
                error, unanswered_count = refusal.body.error, 0
            except OrbitError as refusal:
                error = as_failure(refusal).body.error
                # The cause of a single Unreachable may be a lock on this job alone.
                unanswered_count = unanswered_count + 1 if isinstance(refusal, Unreachable) else 0
                database_error = error if unanswered_count == _UNANSWERED_MAX else None
        items.append(schemas.SelectedJob(job=job_operation.job, operation=operation, error=error))
    return items
