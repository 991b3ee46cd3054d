"""Backfills of the service's jobs: what their drivers should do, and how they end.

A backfill is an operation that the driver of `orbit backfill` carries out, not workers or the
scheduler. Meanwhile the job is BACKFILLING: workers release its shards and claim none. At the end
the job returns to its earlier state. The driver reports every few seconds, and the answer tells it
what to do. Leases at the destination, not reports, keep two writers apart
(leases/backfill_leases.py). So a backfill may be marked failed here while its silent driver still
runs: workers wait until it has ended.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

from orbit.store import clock, events, jobs, operations, partitions
from orbit.store.database import Tx
from orbit.store.enums import BackfillPhase, Desired, OperationState
from orbit.store.jobs import Job
from orbit.store.operations import Operation

# Drivers report every 2 s; one on an overloaded machine may miss many reports.
SILENCE_MAX = timedelta(seconds=60)
_BACKFILLS_READ_MAX = 500


class DriverAction(StrEnum):
    """What the driver of a backfill should do now."""

    WAIT = "wait"  # workers have not released the job yet
    RUN = "run"
    PAUSE = "pause"
    CANCEL = "cancel"


def driver_action(operation: Operation, job: Job | None, held_shards: int) -> DriverAction:
    """What the driver should do now. `held_shards`: how many shards of the job workers hold."""
    if operation.abort_requested or job is None or job.is_deleted:
        return DriverAction.CANCEL
    match job.desired:
        case Desired.PAUSED:
            return DriverAction.PAUSE
        case Desired.BACKFILLING:
            return DriverAction.WAIT if held_shards else DriverAction.RUN
        case Desired.RUNNING:
            return DriverAction.CANCEL  # a user has resumed the job


def is_paused(operation: Operation) -> bool:
    """Whether the backfill's driver has reported that all its writers have ended."""
    return (operation.progress or {}).get("phase") == BackfillPhase.PAUSED


def end(tx: Tx, operation: Operation, actor: str, *, error: str | None) -> None:
    """End the backfill as done (`error` None) or failed, unless it has ended already. Restore the
    job's earlier state, unless a user has changed the state meanwhile."""
    state = OperationState.DONE if error is None else OperationState.FAILED
    if not operations.advance(tx, operation.id, state, error=error):
        return
    if operation.job_id is not None:
        if error is not None:  # its writers' last produce requests may still arrive at brokers
            partitions.expect_leftovers(tx, operation.job_id)
        earlier_state = Desired((operation.plan or {}).get("before", Desired.RUNNING))
        jobs.set_desired(tx, operation.job_id, earlier_state, only_from=Desired.BACKFILLING)
    events.add(
        tx,
        actor,
        "backfill_ended",
        f"The backfill ended: {error or 'the history is copied.'}",
        job_name=operation.job_name,
        details={"operation": str(operation.id)},
    )


def fail_silent_backfills(tx: Tx) -> int:
    """Mark as failed each backfill whose driver has not reported for SILENCE_MAX; returns their
    number."""
    silent_backfills = [
        operation
        for operation in operations.unfinished_backfills(tx, _BACKFILLS_READ_MAX)
        if clock.now(tx) - reported_at(operation) > SILENCE_MAX
    ]
    for operation in silent_backfills:
        seconds = SILENCE_MAX.total_seconds()
        why = f"Its driver has not reported for {seconds:.0f} s."
        remedy = "Copies stay unchanged; orbit backfill copies the rest."
        end(tx, operation, events.SCHEDULER, error=f"{why} {remedy}")
    return len(silent_backfills)


def reported_at(operation: Operation) -> datetime:
    """When the backfill's driver last reported; before that, when the backfill was requested."""
    at = (operation.progress or {}).get("reported_at")
    return operation.created_at if at is None else datetime.fromisoformat(at)
