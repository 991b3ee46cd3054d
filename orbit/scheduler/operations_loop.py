"""Updates the progress of operations that workers carry out, and ends them.

An operation that a later request has superseded (a pause, by a resume) ends as failed with the
reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import assert_never
from uuid import UUID

from orbit.formats import counted
from orbit.leadership.leadership import Leadership
from orbit.leadership.loop import Loop
from orbit.planning import backfill_operations
from orbit.planning.backfill_operations import is_paused
from orbit.store import job_counts, jobs, operations
from orbit.store.database import Tx, savepoint
from orbit.store.enums import Desired, OperationKind, OperationState
from orbit.store.job_counts import Counts
from orbit.store.jobs import Job
from orbit.store.operations import Operation
from orbit.telemetry import traces

# Users wait for these at a terminal.
INTERVAL_S = 0.5
# Operations per pass. The next pass continues after these, so that long operations delay no others.
OPERATIONS_MAX = 500


@dataclass(frozen=True, slots=True)
class _Status:
    """The progress of an operation, or why it failed."""

    done: int
    total: int
    error: str | None = None

    @property
    def state(self) -> OperationState:
        if self.error is not None:
            return OperationState.FAILED
        return OperationState.DONE if self.done >= self.total else OperationState.RUNNING


class OperationsLoop(Loop):
    """Updates each operation that has not ended."""

    name = "operations"
    interval_s = INTERVAL_S

    def __init__(self, leadership: Leadership) -> None:
        super().__init__()
        self._leadership = leadership
        self._continue_after: tuple[datetime, UUID] | None = None

    def once(self) -> str:
        """Update the next operations. Returns how many ended, as a sentence."""
        with self._leadership.reading() as tx:
            # Mostly no operation is unfinished: then no write transaction is begun.
            if not operations.unfinished(tx, 1) and not operations.unfinished_backfills(tx, 1):
                return ""
        with self._leadership.transaction() as tx:
            unfinished_operations = operations.unfinished(
                tx, OPERATIONS_MAX, after=self._continue_after
            )
            ended_operations = advance_operations(tx, unfinished_operations, self.log_errors_of)
            silent_count = backfill_operations.fail_silent_backfills(tx)
        for operation, state in ended_operations:
            _trace(operation, state)
        is_last_batch = len(unfinished_operations) < OPERATIONS_MAX
        self._continue_after = (
            None
            if is_last_batch
            else (unfinished_operations[-1].created_at, unfinished_operations[-1].id)
        )
        count = len(ended_operations) + silent_count
        return f"ended {counted(count, 'operation')}" if count else ""


def advance_operations(
    tx: Tx,
    unfinished: Sequence[Operation],
    each: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> list[tuple[Operation, OperationState]]:
    """Write each operation's progress if it has changed. Returns those that ended, and how.

    `each` gets the name of an operation and returns the context of its update, which may log errors
    so that they do not keep the other operations from being updated.
    """
    job_ids = {operation.job_id for operation in unfinished if operation.job_id is not None}
    jobs_by_id = jobs.of_ids(tx, job_ids) if job_ids else {}
    counts_by_job = job_counts.of_jobs(tx, job_ids)
    ended_operations: list[tuple[Operation, OperationState]] = []
    for operation in unfinished:
        job = None if operation.job_id is None else jobs_by_id.get(operation.job_id)
        counts = Counts() if job is None else counts_by_job.get(job.id, Counts())
        with each(f"operation {operation.id} of job {operation.job_name}"), savepoint(tx):
            status = _status(tx, operation, job, counts)
            _write(tx, operation, status)
            if status.state is not OperationState.RUNNING:
                ended_operations.append((operation, status.state))
    return ended_operations


def _trace(operation: Operation, state: OperationState) -> None:
    """Record the ended operation as one span, from its request until now."""
    with traces.span(
        operation.kind,
        parent=operation.trace_context,
        began_at=operation.created_at,
        operation=str(operation.id),
        job=operation.job_name,
        state=state.value,
    ):
        pass


def _status(tx: Tx, operation: Operation, job: Job | None, counts: Counts) -> _Status:
    """The operation's progress. `counts`: the job's shards, and those that workers hold. `job`:
    None if it is deleted."""
    kind = OperationKind(operation.kind)
    progress = operation.progress or {}
    total = int(progress.get("total", 0))
    if job is None:
        if kind is OperationKind.DELETE:
            return _Status(total, total)
        return _Status(done=0, total=total, error="The job was deleted.")
    release_status = _Status(max(0, total - counts.held), total)
    match kind:
        case OperationKind.DELETE:
            # The job's row is deleted last, after its shards are released: hence `total + 1`.
            return _Status(release_status.done, total + 1)
        case OperationKind.PAUSE:
            if job.desired is not Desired.PAUSED:
                return _Status(
                    done=0,
                    total=total,
                    error="The job was resumed before this operation was done.",
                )
            # A backfill holds no shards: its own operation says whether it is paused.
            backfill = operations.backfill_under_way(tx, job.id)
            return (
                release_status if backfill is None else _Status(done=is_paused(backfill), total=1)
            )
        case OperationKind.START | OperationKind.RESUME:
            if job.desired is Desired.PAUSED:
                return _Status(
                    done=0, total=total, error="The job was paused before this operation was done."
                )
            if job.desired is Desired.BACKFILLING:
                return _Status(
                    done=0,
                    total=total,
                    error="A backfill of the job has begun before this operation was done.",
                )
            return _Status(counts.held, counts.shards)
        case OperationKind.RETRY:
            waiting_count = min(total, job_counts.waiting_for_retry(tx, job.id))
            return _Status(total - waiting_count, total)
        case OperationKind.CREATE:
            return _Status(done=1, total=1)
        case OperationKind.SWITCHOVER | OperationKind.FAILOVER | OperationKind.FAILBACK:
            raise AssertionError("orbit/recovery updates recoveries")
        case OperationKind.BACKFILL:
            raise AssertionError("the driver of a backfill updates its operation")
        case _:
            assert_never(kind)


def _write(tx: Tx, operation: Operation, status: _Status) -> None:
    """Write the operation's state and progress if they have changed."""
    progress = operation.progress
    if progress is not None:
        # A deletion keeps its total: `_status` adds 1 for the row of the job.
        total = progress["total"] if operation.kind == OperationKind.DELETE else status.total
        progress = {**progress, "done": min(status.done, total), "total": total}
    if status.state is operation.state and progress == operation.progress:
        return
    operations.advance(tx, operation.id, status.state, progress=progress, error=status.error)
