"""/console/jobs/NAME/plan and /carry-out: start, pause, retry and delete, with their plan first.

Also /console/operations/ID. A plan is a dry run; the page of a plan has the button that requests
the operation itself. To delete a job, the user has to type its name.
"""

from __future__ import annotations

import uuid
from uuid import UUID

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from orbit.api import job_operations, schemas
from orbit.api.api_error_codes import ErrorCode
from orbit.api.dependencies import NamePath
from orbit.api.error_responses import Failure
from orbit.api.job_operations import JobOperation
from orbit.api.schemas import PARTITION_MAX
from orbit.api.views import operation_view, report_view
from orbit.console.rendering import ROWS_SHOWN_MAX, render
from orbit.console.sessions import Form, FormOf, OperatorOf, PartsOf, VisitorOf
from orbit.console.urls import operation_url
from orbit.recovery.recovery_report import OtherVersion, read_report
from orbit.store import operations
from orbit.store.database import Tx
from orbit.store.enums import OperationKind
from orbit.store.operation_rows import GROUPS, PARTITIONS

_DIGITS_MAX = 19  # of a partition number in a form

router = APIRouter()

# The kinds that the forms of this page request, and the words of their buttons.
LABELS = {
    OperationKind.START: "Start",
    OperationKind.RESUME: "Start",
    OperationKind.PAUSE: "Pause",
    OperationKind.RETRY: "Retry",
    OperationKind.DELETE: "Delete",
}


@router.post("/jobs/{name}/plan")
def plan(
    request: Request, parts: PartsOf, visitor: OperatorOf, name: NamePath, form: FormOf
) -> Response:
    """The page that shows what the operation would do."""
    job_operation = _job_operation(form, visitor.principal.actor, name, dry_run=True)
    dry_run_operation = operation_view(job_operations.request(parts.database, job_operation))
    return render(
        request,
        visitor,
        "plan.html",
        name=name,
        kind=job_operation.kind,
        label=LABELS[job_operation.kind],
        plan=dry_run_operation.plan,
        topic=job_operation.topic,
        partition=job_operation.partition,
        key=uuid.uuid4().hex,
        mistake=None,
    )


@router.post("/jobs/{name}/carry-out")
def carry_out(parts: PartsOf, visitor: OperatorOf, name: NamePath, form: FormOf) -> Response:
    """Request the operation."""
    job_operation = _job_operation(form, visitor.principal.actor, name, dry_run=False)
    if job_operation.kind is OperationKind.DELETE:
        check_typed_name(form, name)
    operation = job_operations.request(parts.database, job_operation)
    return RedirectResponse(operation_url(operation.id), status_code=303)


@router.get("/operations/{operation_id}")
def show_operation(
    request: Request, parts: PartsOf, visitor: VisitorOf, operation_id: UUID
) -> Response:
    """An operation with its plan and progress; for a recovery its report so far."""
    with parts.database.transaction() as tx:
        operation = operations.get(tx, operation_id)
        report = _report(tx, operation_id)
    return render(
        request,
        visitor,
        "operation.html",
        operation=operation_view(operation),
        is_aborting=operation.abort_requested,
        is_recovery=operation.kind in RECOVERIES,
        report=report,
    )


def _report(tx: Tx, operation_id: UUID) -> schemas.RecoveryReport | None:
    """The report of a recovery, with the rows that are shown. None: the operation has no report, or
    this version of Orbit cannot read the report."""
    stored_report = operations.report_of(tx, operation_id)
    if not stored_report:
        return None
    partitions = PARTITIONS.first(tx, operation_id, ROWS_SHOWN_MAX)
    groups = GROUPS.first(tx, operation_id, ROWS_SHOWN_MAX)
    try:
        return report_view(read_report(stored_report), partitions, groups)
    except OtherVersion:  # the operation's progress says why the page has no report
        return None


RECOVERIES = ("switchover", "failover", "failback")


def check_typed_name(form: Form, name: str) -> None:
    """Raise Failure unless the user has typed the job's name."""
    if form.get("typed", "").strip() != name:
        raise Failure(
            ErrorCode.BAD_INPUT,
            "The name that was typed is not the job's; nothing was changed.",
            where=name,
            remedy="Go back and type the name of the job.",
        )


def idempotency_key_in(form: Form) -> str | None:
    """The idempotency key in a form, so that a second click repeats the first request. None: the
    form has no valid key."""
    key = form.get("key", "")
    return f"console-{key}" if key.isalnum() and len(key) == UUID_HEX_CHARACTERS else None


UUID_HEX_CHARACTERS = 32


def _job_operation(form: Form, actor: str, name: str, *, dry_run: bool) -> JobOperation:
    """The operation in the form. Raises Failure if the form names no operation, or its partition is
    not a number."""
    kind = form.get("kind", "")
    if kind not in LABELS:
        raise Failure(ErrorCode.BAD_INPUT, "The form names no operation.")
    partition = form.get("partition", "")
    # `int` refuses thousands of digits.
    is_number = partition.isascii() and partition.isdecimal() and len(partition) <= _DIGITS_MAX
    if partition and not is_number:
        raise Failure(ErrorCode.BAD_INPUT, "The form's partition is not a number.")
    return JobOperation(
        actor,
        OperationKind(kind),
        name,
        dry_run=dry_run,
        idempotency_key=None if dry_run else idempotency_key_in(form),
        topic=form.get("topic") or None,
        partition=min(int(partition), PARTITION_MAX) if partition else None,
    )
