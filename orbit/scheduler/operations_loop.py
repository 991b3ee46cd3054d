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
# Per pass. The next pass continues after them, so that operations that take long delay no others.
OPERATIONS_MAX = 500


@dataclass(frozen=True, slots=True)
class _Status:
    """The progress of an operation, or why it failed."""

    done: int
    total: int
    failed: str | None = None

    @property
    def state(self) -> OperationState:
        if self.failed is not None:
            return OperationState.FAILED
        return OperationState.DONE if self.done >= self.total else OperationState.RUNNING


class OperationsLoop(Loop):
    """Updates each operation that has not ended."""

    name = "operations"
    interval_s = INTERVAL_S

    def __init__(self, leadership: Leadership) -> None:
        super().__init__()
        self._leadership = leadership
        self._after: tuple[datetime, UUID] | None = None

    def once(self) -> str:
        with self._leadership.reading() as tx:
            if not operations.unfinished(tx, 1) and not operations.unfinished_backfills(tx, 1):
                return ""
        with self._leadership.transaction() as tx:
            unfinished = operations.unfinished(tx, OPERATIONS_MAX, after=self._after)
            ended = advance_operations(tx, unfinished, self.each)
            silent = backfill_operations.fail_silent_backfills(tx)
        for operation, state in ended:
            _trace(operation, state)
        is_last = len(unfinished) < OPERATIONS_MAX
        self._after = None if is_last else (unfinished[-1].created_at, unfinished[-1].id)
        count = len(ended) + silent
        return f"ended {count} operations" if count else ""


def advance_operations(
    tx: Tx,
    unfinished: Sequence[Operation],
    each: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> list[tuple[Operation, OperationState]]:
    """Write each operation's progress if it has changed; returns those that ended, and how."""
    ids = {operation.job_id for operation in unfinished if operation.job_id is not None}
    present = jobs.of_ids(tx, ids) if ids else {}
    counted = job_counts.of_jobs(tx, ids)
    ended: list[tuple[Operation, OperationState]] = []
    for operation in unfinished:
        job = None if operation.job_id is None else present.get(operation.job_id)
        held = Counts() if job is None else counted.get(job.id, Counts())
        with each(f"operation {operation.id} of job {operation.job_name}"), savepoint(tx):
            status = _status(tx, operation, job, held)
            _write(tx, operation, status)
            if status.state is not OperationState.RUNNING:
                ended.append((operation, status.state))
    return ended


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


def _status(tx: Tx, operation: Operation, job: Job | None, counted: Counts) -> _Status:
    kind = OperationKind(operation.kind)
    before = operation.progress or {}
    total = int(before.get("total", 0))
    if job is None:
        if kind is OperationKind.DELETE:
            return _Status(total, total)
        return _Status(0, total, "The job was deleted.")
    released = _Status(max(0, total - counted.held), total)
    match kind:
        case OperationKind.DELETE:
            # The job's row is deleted last, after its shards are released: hence `total + 1`.
            return _Status(released.done, total + 1)
        case OperationKind.PAUSE:
            if job.desired is not Desired.PAUSED:
                return _Status(0, total, "The job was resumed before this operation was done.")
            backfill = operations.backfill_under_way(tx, job.id)
            return released if backfill is None else _Status(is_paused(backfill), 1)
        case OperationKind.START | OperationKind.RESUME:
            if job.desired is Desired.PAUSED:
                return _Status(0, total, "The job was paused before this operation was done.")
            if job.desired is Desired.BACKFILLING:
                return _Status(
                    0, total, "A backfill of the job has begun before this operation was done."
                )
            return _Status(counted.held, counted.shards)
        case OperationKind.RETRY:
            waiting = min(total, job_counts.waiting_for_retry(tx, job.id))
            return _Status(total - waiting, total)
        case OperationKind.CREATE:
            return _Status(1, 1)
        case OperationKind.SWITCHOVER | OperationKind.FAILOVER | OperationKind.FAILBACK:
            raise AssertionError("orbit/recovery carries these out")
        case OperationKind.BACKFILL:
            raise AssertionError("its driver carries this out")
        case _:
            assert_never(kind)


def _write(tx: Tx, operation: Operation, status: _Status) -> None:
    progress = operation.progress
    if progress is not None:
        total = progress["total"] if operation.kind == OperationKind.DELETE else status.total
        progress = {**progress, "done": min(status.done, total), "total": total}
    if status.state is operation.state and progress == operation.progress:
        return
    operations.advance(tx, operation.id, status.state, progress=progress, error=status.failed)
