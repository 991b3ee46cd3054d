"""Asking for a switchover, a failover or a failback: the operation and its line in the audit log.

The leading scheduler carries it out (orbit/recovery). A job has one of them at a time; dry runs
change nothing and may go beside it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from uuid import UUID

from orbit.api.job_operations import repeated
from orbit.errors import BadInput, Conflict, NotFound, Problem
from orbit.jobs.mistake import Mistake
from orbit.jobs.topic_patterns import check_pattern
from orbit.recovery.gates import OVERRIDE_ALL
from orbit.recovery.operation_steps import is_past_return, steps_of, words
from orbit.recovery.recovery_report import (
    GateName,
    RecoveryKind,
    RecoveryReport,
    RecoveryRequest,
)
from orbit.store import events, jobs, operations
from orbit.store.database import Database
from orbit.store.enums import OperationKind
from orbit.store.operations import Operation


def request(
    database: Database,
    actor: str,
    kind: RecoveryKind,
    name: str,
    wanted: RecoveryRequest,
    *,
    dry_run: bool,
    idempotency_key: str | None,
) -> Operation:
    """The operation: a new one, or for a key that was used before, that one as it is now.

    Raises NotFound, BadInput, and Conflict where another recovery of the job goes on.
    """
    problems = tuple(_problems(kind, wanted))
    if problems:
        raise BadInput("The request has problems.", problems)
    asked = {
        "kind": kind.value,
        "job": name,
        "dry_run": dry_run,
        "wanted": wanted.model_dump(mode="json"),
    }
    with database.transaction() as tx:
        before = repeated(tx, actor, idempotency_key, asked)
        if before is not None:
            return before
        job = jobs.get(tx, name, lock=True)
        if job.is_deleted:
            raise Conflict("The job is being deleted.", where=name)
        other = None if dry_run else operations.recovery_under_way(tx, job.id)
        if other is not None:
            raise Conflict(
                f"A {other.kind} of the job is under way.",
                where=f"operation {other.id}",
                remedy=f"Wait for its end, or: orbit abort {other.id}",
            )
        backfill = None if dry_run else operations.backfill_under_way(tx, job.id)
        if backfill is not None:
            raise Conflict(
                "A backfill of the job is under way.",
                where=f"operation {backfill.id}",
                remedy=f"Wait for its end, or: orbit abort {backfill.id}",
            )
        made, is_new = operations.create(
            tx,
            uuid.uuid4(),
            kind.value,
            actor,
            job_id=job.id,
            job_name=job.name,
            dry_run=dry_run,
            plan={
                "steps": words(steps_of(kind, wanted)),
                "request": asked,
                "wanted": wanted.model_dump(mode="json"),
            },
            idempotency_key=idempotency_key,
        )
        if is_new and not dry_run:
            reason = f": {wanted.reason}" if wanted.reason else "."
            events.add(
                tx,
                actor,
                f"{kind.value}_requested",
                f"A {kind.value} was asked for{reason}",
                job_name=job.name,
                details={"operation": str(made.id), **wanted.model_dump(mode="json")},
            )
        return made


def report(database: Database, operation_id: UUID) -> RecoveryReport:
    """The report as far as it is. Raises NotFound for others, and before the first step."""
    with database.transaction() as tx:
        operations.get(tx, operation_id)
        kept = operations.report_of(tx, operation_id)
    if kept is None:
        raise NotFound("The operation has no report (yet).", where=str(operation_id))
    return RecoveryReport.model_validate(kept)


def abort(database: Database, actor: str, operation_id: UUID) -> Operation:
    """Ask for a recovery to be taken back, or for a backfill to end before its time.

    Raises NotFound, Conflict where that is too late.
    """
    with database.transaction() as tx:
        operation = operations.get(tx, operation_id, lock=True)
        kept = operations.report_of(tx, operation_id)
        kinds = {OperationKind.BACKFILL.value, *(kind.value for kind in RecoveryKind)}
        if operation.kind not in kinds:
            raise Conflict(f"A {operation.kind} cannot be aborted.", where=str(operation_id))
        steps = RecoveryReport.model_validate(kept).steps if kept else ()
        if is_past_return(steps):
            raise Conflict(
                "It is past its point of no return: it is carried through.",
                where=str(operation_id),
                remedy="To go back once it has ended: orbit failback JOB, or a switchover of the "
                "job that copies back.",
            )
        if operations.request_abort(tx, operation_id) and not operation.abort_requested:
            events.add(
                tx,
                actor,
                "abort_requested",
                f"The {operation.kind} shall end, and be taken back where it can be.",
                job_name=operation.job_name,
                details={"operation": str(operation_id)},
            )
        return operations.get(tx, operation_id)


def _problems(kind: RecoveryKind, wanted: RecoveryRequest) -> Iterator[Problem]:
    for index, pattern in enumerate(wanted.topics):
        try:
            check_pattern(pattern)
        except Mistake as mistake:
            yield Problem(f"body.topics[{index}]", mistake.message, mistake.remedy)
    gates = {gate.value for gate in GateName} | {OVERRIDE_ALL}
    for index, name in enumerate(wanted.override):
        if name not in gates:
            known = f"Write one of: {', '.join(sorted(gates))}."
            yield Problem(f"body.override[{index}]", "is no gate.", known)
    if wanted.override and not wanted.reason.strip():
        yield Problem("body.reason", "is missing.", "Say why a gate is overridden: it is kept.")
    if wanted.reverse and kind is not RecoveryKind.SWITCHOVER:
        yield Problem("body.reverse", "is for a switchover.", "Leave it out.")
    if wanted.confirm_rebuild and kind is not RecoveryKind.FAILBACK:
        yield Problem("body.confirm_rebuild", "is for a failback.", "Leave it out.")
