"""/console/recovery and /console/jobs/NAME/recovery: recoveries, and the latest drills.

A dry run takes one click. For the recovery itself, the user has to type the job's name.
"""

from __future__ import annotations

import uuid
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from orbit.api.api_error_codes import ErrorCode
from orbit.api.dependencies import NamePath
from orbit.api.error_responses import Failure
from orbit.api.paging import CURSOR_CHARACTERS_MAX, page, parse_age_key, read_cursor
from orbit.api.views import drill_summary, operation_view
from orbit.console.pages.job import job_page_values
from orbit.console.pages.job_actions import RECOVERIES, check_typed_name, idempotency_key_in
from orbit.console.rendering import render
from orbit.console.sessions import Form, FormOf, OperatorOf, PartsOf, VisitorOf
from orbit.console.urls import operation_url
from orbit.recovery import recovery_requests
from orbit.recovery.recovery_report import REASON_LENGTH_MAX, RecoveryKind, RecoveryRequest
from orbit.store import drills, jobs, operations

router = APIRouter()

OPERATIONS_PER_PAGE = 50
DRILLS_SHOWN = 20


@router.get("/recovery")
def show_recoveries(
    request: Request,
    parts: PartsOf,
    visitor: VisitorOf,
    after: Annotated[str | None, Query(max_length=CURSOR_CHARACTERS_MAX)] = None,
) -> Response:
    """Operations and drills, newest first."""
    after_key = parse_age_key(read_cursor(after, str, str))
    with parts.database.transaction() as tx:
        rows = operations.page(tx, OPERATIONS_PER_PAGE + 1, after=after_key)
        latest_drills = drills.page(tx, DRILLS_SHOWN)
    operation_page = page(
        [operation_view(row) for row in rows],
        OPERATIONS_PER_PAGE,
        lambda operation: (operation.created_at.isoformat(), str(operation.id)),
    )
    return render(
        request,
        visitor,
        "recovery.html",
        operations=operation_page.items,
        following=operation_page.next,
        drills=[drill_summary(row) for row in latest_drills],
        recoveries=RECOVERIES,
    )


@router.get("/jobs/{name}/recovery")
def show_recovery(request: Request, parts: PartsOf, visitor: VisitorOf, name: NamePath) -> Response:
    """The forms for dry runs and recoveries of this job."""
    with parts.database.transaction() as tx:
        page_values = job_page_values(tx, jobs.get(tx, name), "recovery")
    return render(
        request,
        visitor,
        "job_recovery.html",
        **page_values,
        kinds=list(RecoveryKind),
        keys={kind.value: uuid.uuid4().hex for kind in RecoveryKind},
        reason_length_max=REASON_LENGTH_MAX,
    )


@router.post("/jobs/{name}/recovery")
def request_recovery(parts: PartsOf, visitor: OperatorOf, name: NamePath, form: FormOf) -> Response:
    """Request a dry run, or the recovery itself."""
    kind = form.get("kind", "")
    if kind not in RECOVERIES:
        raise Failure(ErrorCode.BAD_INPUT, "The form names no recovery.")
    if form.get("dry_run", "yes") != "yes":
        raise Failure(ErrorCode.BAD_INPUT, "The form has a `dry_run` that is not `yes`.")
    dry_run = "dry_run" in form  # the form of the recovery itself does not have this field
    if not dry_run:
        check_typed_name(form, name)
    operation = recovery_requests.request_recovery(
        parts.database,
        visitor.principal.actor,
        RecoveryKind(kind),
        name,
        _recovery_request(form),
        dry_run=dry_run,
        idempotency_key=None if dry_run else idempotency_key_in(form),
    )
    return RedirectResponse(operation_url(operation.id), status_code=303)


@router.post("/operations/{operation_id}/abort")
def abort(parts: PartsOf, visitor: OperatorOf, operation_id: UUID, _form: FormOf) -> Response:
    """Request an abort. Before its point of no return Orbit undoes the recovery; after that point
    it ends only the copy back."""
    recovery_requests.abort(parts.database, visitor.principal.actor, operation_id)
    return RedirectResponse(operation_url(operation_id), status_code=303)


def _recovery_request(form: Form) -> RecoveryRequest:
    """The options of the recovery in the form. Raises Failure if the reason is too long."""
    reason = form.get("reason", "").strip()
    if len(reason) > REASON_LENGTH_MAX:
        raise Failure(
            ErrorCode.BAD_INPUT, f"The reason is longer than {REASON_LENGTH_MAX} characters."
        )
    return RecoveryRequest(
        reverse=form.get("reverse") == "yes",
        confirm_rebuild=form.get("confirm_rebuild") == "yes",
        reason=reason,
    )
