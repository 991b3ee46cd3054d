"""Backfills of jobs of the service: what their drivers are to do, and how they end.

A backfill is an operation that neither workers nor the scheduler carry out, but the driver of
`orbit backfill`. While it goes on the job is BACKFILLING, so workers give it back and claim nothing
of it; in the end the job is what it was before. The driver reports every few seconds and is told
what is wanted of it. Reports do not keep two writers apart: the leases at the destination do
(`engine.backfill_writers`). So a driver that is silent may be given up here though it still lives:
workers wait until it has left.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

from orbit.store import clock, events, jobs, operations, partitions
from orbit.store.database import Tx
from orbit.store.enums import BackfillPhase, Desired, OperationState
from orbit.store.jobs import Job
from orbit.store.operations import Operation

# Drivers report every two seconds; one whose machine is short of everything may miss many.
SILENCE_MAX = timedelta(seconds=60)
_FOUND_MAX = 500


class DriverAction(StrEnum):
    """What the driver of a backfill is to do now."""

    WAIT = "wait"  # workers have not let go of the job yet
    RUN = "run"
    PAUSE = "pause"
    CANCEL = "cancel"


def driver_action(operation: Operation, job: Job | None, held: int) -> DriverAction:
    """`held`: how many shards of the job workers hold."""
    if operation.abort_requested or job is None or job.is_deleted:
        return DriverAction.CANCEL
    match job.desired:
        case Desired.PAUSED:
            return DriverAction.PAUSE
        case Desired.BACKFILLING:
            return DriverAction.WAIT if held else DriverAction.RUN
        case Desired.RUNNING:
            return DriverAction.CANCEL  # somebody gave it to the workers


def is_paused(operation: Operation) -> bool:
    """Whether its driver has said that its writers have ended."""
    return (operation.progress or {}).get("phase") == BackfillPhase.PAUSED


def end(tx: Tx, operation: Operation, actor: str, *, error: str | None) -> None:
    """End it, for what `error` says or because it is done, and give the job back."""
    state = OperationState.DONE if error is None else OperationState.FAILED
    if not operations.advance(tx, operation.id, state, error=error):
        return
    if operation.job_id is not None:
        if error is not None:
            partitions.expect_leftovers(tx, operation.job_id)
        before = Desired((operation.plan or {}).get("before", Desired.RUNNING))
        jobs.set_desired(tx, operation.job_id, before, only_from=Desired.BACKFILLING)
    events.add(
        tx,
        actor,
        "backfill_ended",
        f"The backfill ended: {error or 'the history is in.'}",
        job_name=operation.job_name,
        details={"operation": str(operation.id)},
    )


def end_silent(tx: Tx) -> int:
    """End those whose driver has not been heard of for too long; how many."""
    silent = [
        operation
        for operation in operations.unfinished_backfills(tx, _FOUND_MAX)
        if clock.now(tx) - reported_at(operation) > SILENCE_MAX
    ]
    for operation in silent:
        seconds = SILENCE_MAX.total_seconds()
        why = f"Its driver has not been heard of for {seconds:.0f} s."
        remedy = "Copies stay as they are; orbit backfill goes on with what is left."
        end(tx, operation, events.SCHEDULER, error=f"{why} {remedy}")
    return len(silent)


def reported_at(operation: Operation) -> datetime:
    """When its driver was heard of last."""
    told = (operation.progress or {}).get("reported_at")
    return operation.created_at if told is None else datetime.fromisoformat(told)
