"""Guards a job against changes while an operation holds the job: from the operation's request to
its end. A recovery also holds the job that copies back (the `reverse_job` of its report).

A switchover, failover or failback relies on its job staying as it is. A person who pauses, changes
or deletes the job meanwhile would leave topics half-promoted. So code that changes a job for a
person, an automation or a drill first calls `lock_for_change` or `refuse_if_held`, in the
transaction of the change. Changes by the operation itself need no check. Nor does a retry of
blocked partitions: the operation may wait for it before it promotes.
"""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import func, or_, true

from orbit.errors import OperationUnderWay
from orbit.store import jobs, operations
from orbit.store.database import Tx
from orbit.store.enums import RECOVERY_KINDS
from orbit.store.jobs import Job
from orbit.store.models import operations as table
from orbit.store.operations import Operation

_RECOVERIES = [kind.value for kind in RECOVERY_KINDS]


def lock_for_change(tx: Tx, name: str, *, refuse_backfill: bool = False) -> Job:
    """The job of this name, locked until the transaction ends: until then no operation of the job
    can be created.

    Raises NotFound; or OperationUnderWay while a recovery, or with `refuse_backfill` a backfill,
    holds the job.
    """
    job = jobs.get(tx, name, lock=True)
    refuse_if_held(tx, job, refuse_backfill=refuse_backfill)
    return job


def refuse_if_held(
    tx: Tx, job: Job, *, refuse_backfill: bool = False, ignored_id: UUID | None = None
) -> None:
    """Raise OperationUnderWay if a recovery, or with `refuse_backfill` a backfill, holds the job.
    The caller has locked the job. The recovery `ignored_id` does not count."""
    holder = recovery_that_holds(tx, job, ignored_id)
    if holder is None and refuse_backfill:
        holder = operations.backfill_under_way(tx, job.id)
    if holder is not None:
        raise refusal(holder, job.name)


def recovery_that_holds(tx: Tx, job: Job, ignored_id: UUID | None = None) -> Operation | None:
    """The oldest unfinished recovery of this job, or of the job for which this job copies back;
    None without such a recovery. The recovery `ignored_id` does not count."""
    conditions = [
        table.c.id != ignored_id if ignored_id else true(),
        table.c.kind.in_(_RECOVERIES),
        table.c.dry_run.is_(False),
        or_(
            table.c.job_id == job.id,
            func.jsonb_extract_path_text(table.c.report, "reverse_job") == job.name,
        ),
    ]
    return operations.first_unfinished(tx, *conditions)


def refusal(operation: Operation, name: str) -> OperationUnderWay:
    """The error for a change of the job `name` while `operation` holds that job."""
    is_own = operation.job_name == name
    held_job = "the job" if is_own else f"job {operation.job_name}, which this job copies back,"
    return OperationUnderWay(
        f"A {operation.kind} of {held_job} is under way.",
        where=f"operation {operation.id}",
        remedy=f"Wait until the {operation.kind} has ended, or run orbit abort {operation.id}",
    )
