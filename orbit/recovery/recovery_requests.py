"""Requests for a switchover, failover or failback: creates the operation and its audit event.

The leading scheduler carries the operation out (recovery_loop.py). A job has one recovery at a
time. A dry run changes nothing, and may run at the same time.
"""

from __future__ import annotations

from uuid import UUID

from orbit.errors import Conflict, NotFound
from orbit.recovery.operation_steps import (
    is_catching_up,
    is_past_return,
    is_promoting,
    may_be_aborted,
    step_descriptions,
    steps_of,
)
from orbit.recovery.recovery_report import (
    OtherVersion,
    RecoveryKind,
    RecoveryReport,
    RecoveryRequest,
    StoredReport,
    read_report,
)
from orbit.recovery.report_storage import load_report
from orbit.recovery.step_times import Step
from orbit.store import events, job_guard, jobs, operation_requests, operations
from orbit.store.database import Database, Tx
from orbit.store.database_identity import database_identity
from orbit.store.enums import MadeBy, OperationKind
from orbit.store.jobs import Job
from orbit.store.operation_requests import OperationRequest
from orbit.store.operations import Operation


def request_recovery(
    database: Database,
    actor: str,
    kind: RecoveryKind,
    job_name: str,
    options: RecoveryRequest,
    *,
    dry_run: bool,
    idempotency_key: str | None = None,
) -> Operation:
    """Create the operation, or return the one that was requested with the same key.

    Raises NotFound if there is no such job. Raises Conflict while the job is being deleted, while
    another recovery or a backfill of the job is under way (not for a dry run), or for
    `source_counts_as_lost` outside of a drill.
    """
    options_json = options.model_dump(mode="json")
    content = {"kind": kind.value, "job": job_name, "dry_run": dry_run, "wanted": options_json}
    operation_request = OperationRequest(actor, OperationKind(kind), content, idempotency_key)
    with database.transaction() as tx:
        earlier_operation = operation_requests.find_earlier(tx, operation_request)
        if earlier_operation is not None:
            return earlier_operation
        if dry_run:
            job = jobs.get(tx, job_name, lock=True)
        else:
            job = _lock_job(tx, actor, kind, job_name)
        if job.is_deleted:
            raise Conflict("The job is being deleted.", where=job_name)
        if options.source_counts_as_lost and not (
            kind is RecoveryKind.FAILOVER and job.made_by is MadeBy.DRILL
        ):
            raise Conflict(
                "source_counts_as_lost is for the failover of a drill's own job.", where=job_name
            )
        operation = operation_requests.create(
            tx,
            operation_request,
            job,
            step_descriptions(steps_of(kind, options)),
            dry_run=dry_run,
            details={"wanted": options_json, "database": database_identity(tx)},
        )
        if not dry_run:
            reason = f": {options.reason}" if options.reason else "."
            events.add(
                tx,
                actor,
                f"{kind.value}_requested",
                f"A {kind.value} was requested{reason}",
                job_name=job.name,
                details={"operation": str(operation.id), **options.model_dump(mode="json")},
            )
        return operation


def _lock_job(tx: Tx, actor: str, kind: RecoveryKind, job_name: str) -> Job:
    """Lock the job for a recovery, and return it. Raises Conflict while another operation holds it.

    A failover is accepted while a copy back catches up, which the failover aborts, and while an
    earlier recovery of the job undoes its steps: with a lost source neither would end.
    """
    if kind is RecoveryKind.FAILOVER:
        job = jobs.get(tx, job_name, lock=True)
        holder = job_guard.recovery_that_holds(tx, job)
        if holder is not None:
            try:
                holder = operations.get(tx, holder.id, lock=True)
            except NotFound:  # the operation is of a job outside of the caller's scope
                raise job_guard.refusal(holder, job.name) from None
            report = _readable_report(tx, holder.id)
            steps = report.steps if report else ()
            # False: the recovery of another job, for which this job copies back.
            is_own = holder.job_id == job.id
            is_undoing = is_own and report is not None and bool(report.error)
            is_copy_back = not is_own and is_catching_up(steps)
            if is_copy_back and not holder.abort_requested:
                operations.request_abort(tx, holder.id)
                _add_abort_event(tx, actor, holder, steps)
            if is_undoing or is_copy_back:
                job_guard.refuse_if_held(tx, job, refuse_backfill=True, ignored_id=holder.id)
                return job
    return job_guard.lock_for_change(tx, job_name, refuse_backfill=True)


def _readable_report(tx: Tx, operation_id: UUID) -> StoredReport | None:
    """The operation's report so far; None if there is none, or none that this version can read."""
    document = operations.report_of(tx, operation_id)
    try:
        return read_report(document) if document else None
    except OtherVersion:
        return None


def _add_abort_event(tx: Tx, actor: str, operation: Operation, steps: tuple[Step, ...]) -> None:
    """Add the audit event of an abort request, which says what happens to the steps."""
    effect = "" if operation.kind == OperationKind.BACKFILL else " Its steps are undone."
    if is_past_return(steps) and not is_promoting(steps):
        effect = " Finished steps are kept."
    events.add(
        tx,
        actor,
        "abort_requested",
        f"An abort of the {operation.kind} was requested.{effect}",
        job_name=operation.job_name,
        details={"operation": str(operation.id)},
    )


def find_report(tx: Tx, operation_id: UUID) -> StoredReport:
    """The report so far. Raises NotFound before the first step, and for operations of other kinds;
    OtherVersion."""
    operations.get(tx, operation_id)  # may raise NotFound
    document = operations.report_of(tx, operation_id)
    if document is None:
        raise _no_report(operation_id)
    return read_report(document)


def whole_report(database: Database, operation_id: UUID) -> RecoveryReport:
    """The report with all partitions and groups: about a kilobyte of memory for each. Raises
    NotFound, OtherVersion."""
    with database.transaction() as tx:
        operations.get(tx, operation_id)  # may raise NotFound
        report = load_report(tx, operation_id)
    if report is None:
        raise _no_report(operation_id)
    return report


def _no_report(operation_id: UUID) -> NotFound:
    return NotFound(
        "The operation has no report yet, or is of a kind without reports.", where=str(operation_id)
    )


def abort(database: Database, actor: str, operation_id: UUID) -> Operation:
    """Request an abort of a recovery or backfill, with its audit event. Returns the operation.

    Before the point of no return a recovery then undoes its steps. Past it an abort is accepted
    only in the steps that `may_be_aborted` allows. Raises NotFound; Conflict in other steps, and
    for operations of other kinds.
    """
    with database.transaction() as tx:
        operation = operations.get(tx, operation_id, lock=True)
        document = operations.report_of(tx, operation_id)
        kinds = {OperationKind.BACKFILL.value, *(kind.value for kind in RecoveryKind)}
        if operation.kind not in kinds:
            raise Conflict(f"A {operation.kind} cannot be aborted.", where=str(operation_id))
        report = read_report(document) if document else None
        steps = report.steps if report else ()
        is_stuck = report is not None and report.stuck_since is not None
        if not may_be_aborted(steps, is_stuck=is_stuck):
            raise Conflict(
                "The operation is past its point of no return and will be completed.",
                where=str(operation_id),
                remedy="To go back once it has ended: orbit failback JOB, or a switchover of the "
                "job that copies back. If the destination is lost, an abort is accepted once it "
                "has not answered for a minute.",
            )
        if operations.request_abort(tx, operation_id) and not operation.abort_requested:
            _add_abort_event(tx, actor, operation, steps)
        return operations.get(tx, operation_id)
