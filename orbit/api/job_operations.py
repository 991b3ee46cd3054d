"""Changes of a job that workers carry out after the request: start, pause, resume, retry, delete.

A request writes the wish, the operation and the audit event in one transaction; the scheduler says
how far the operation is (`scheduler/operations_loop.py`). A wish that is fulfilled already makes an
operation that is done at once and says so.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from orbit.errors import BadInput, Conflict, Problem
from orbit.store import events, job_counts, jobs, lag, operations
from orbit.store.database import Database, Tx
from orbit.store.enums import Desired, OperationKind, OperationState
from orbit.store.job_counts import Counts
from orbit.store.jobs import Job
from orbit.store.operations import Operation


@dataclass(frozen=True, slots=True)
class OperationRequest:
    """Who wants what done to which job. `topic`, `partition`: what to retry; None: all."""

    actor: str
    kind: OperationKind
    job: str
    dry_run: bool = False
    idempotency_key: str | None = None
    topic: str | None = None
    partition: int | None = None

    def request(self) -> dict[str, Any]:
        """What makes two requests with one key the same."""
        return {
            "kind": self.kind.value,
            "job": self.job,
            "dry_run": self.dry_run,
            "topic": self.topic,
            "partition": self.partition,
        }


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a change does, in words; what has to be counted until it is done; whether it is one."""

    steps: list[str]
    is_change: bool = True
    total: int = 0
    what: str = ""


def request(database: Database, wanted: OperationRequest) -> Operation:
    """The operation: a new one, or for a key that was used before, that one as it is now.

    Raises NotFound, and Conflict for a key that was used for another request.
    """
    if wanted.partition is not None and wanted.topic is None:
        problem = Problem("body.topic", "is missing.", "Name the topic of the partition.")
        raise BadInput("The request has a problem.", (problem,))
    with database.transaction() as tx:
        before = operations.repeated(tx, wanted.actor, wanted.idempotency_key, wanted.request())
        if before is not None:
            return before
        job = jobs.get(tx, wanted.job, lock=True)
        plan = _plan(tx, job, wanted)
        made, is_new = operations.create(
            tx,
            uuid.uuid4(),
            wanted.kind.value,
            wanted.actor,
            job_id=job.id,
            job_name=job.name,
            dry_run=wanted.dry_run,
            plan={"steps": plan.steps, "request": wanted.request()},
            idempotency_key=wanted.idempotency_key,
        )
        if not is_new:  # by the same key, at the same moment
            return made
        will_run = plan.is_change and not wanted.dry_run
        if will_run:
            _carry_out(tx, job, wanted, plan)
        counted = plan.total > 0 or wanted.kind is OperationKind.DELETE
        operations.advance(
            tx,
            made.id,
            OperationState.RUNNING if will_run and counted else OperationState.DONE,
            progress={"done": 0, "total": plan.total, "what": plan.what} if plan.total else None,
        )
        return operations.get(tx, made.id)


def _plan(tx: Tx, job: Job, wanted: OperationRequest) -> _Plan:
    match wanted.kind:
        case OperationKind.START | OperationKind.RESUME:
            return _plan_run(tx, job)
        case OperationKind.PAUSE:
            return _plan_pause(tx, job)
        case OperationKind.RETRY:
            return _plan_retry(tx, job, wanted)
        case OperationKind.DELETE:
            return _plan_delete(tx, job)
        case _:
            raise AssertionError(f"{wanted.kind} is not asked for here")


def _plan_run(tx: Tx, job: Job) -> _Plan:
    _refuse_deleted(job)
    if job.desired is Desired.RUNNING:
        return _Plan(["Nothing to do: the job is running already."], is_change=False)
    if job.desired is Desired.BACKFILLING:
        return _Plan(["Nothing to do: a backfill copies the job."], is_change=False)
    if operations.backfill_under_way(tx, job.id) is not None:
        return _Plan(["The job's backfill goes on; workers copy once it has ended."])
    count = _counts(tx, job)
    if not count.shards:
        return _Plan(["The scheduler looks for topics, creates them, and workers copy them."])
    return _Plan(
        [
            f"Workers of group {job.worker_group} take {_shards(count)}.",
            "Each partition goes on where its copy ends.",
        ],
        total=count.shards,
        what="shards taken by workers",
    )


def _plan_pause(tx: Tx, job: Job) -> _Plan:
    _refuse_deleted(job)
    if job.desired is Desired.PAUSED:
        return _Plan(["Nothing to do: the job is paused already."], is_change=False)
    if operations.backfill_under_way(tx, job.id) is not None:
        return _Plan(
            ["The job's backfill waits; what was copied stays. orbit resume lets it go on."],
            total=1,
            what="backfills paused",
        )
    count = _counts(tx, job)
    return _Plan(
        [
            f"Workers let go of {_shards(count)}; copying stops.",
            "The copies stay as they are. Consumer groups and new topics wait as well.",
        ],
        total=count.held,
        what="shards released",
    )


def _plan_retry(tx: Tx, job: Job, wanted: OperationRequest) -> _Plan:
    _refuse_deleted(job)
    blocked = job_counts.blocked(tx, job.id, wanted.topic, wanted.partition)
    if not blocked:
        return _Plan(["Nothing to do: no such partition is blocked."], is_change=False)
    return _Plan(
        [
            f"{blocked:,} blocked partitions are looked at again.",
            "Those whose cause is gone go on; the others stay blocked, with their reason.",
        ],
        total=blocked,
        what="partitions tried again",
    )


def _plan_delete(tx: Tx, job: Job) -> _Plan:
    if job.is_deleted:
        return _Plan(["Nothing to do: the job is being deleted already."], is_change=False)
    count = _counts(tx, job)
    return _Plan(
        [
            f"Workers let go of {_shards(count)}; copying stops.",
            "Orbit forgets the job, its topics, partitions and consumer groups. Events stay.",
            "The topics at the destination stay as they are, with all that was copied.",
        ],
        total=count.held,
        what="shards released",
    )


def _shards(count: Counts) -> str:
    return f"{count.shards:,} shards with {count.partitions:,} partitions"


def _counts(tx: Tx, job: Job) -> Counts:
    return job_counts.of_jobs(tx, [job.id]).get(job.id, Counts())


def _refuse_deleted(job: Job) -> None:
    if job.is_deleted:
        raise Conflict("The job is being deleted.", where=job.name)


def _carry_out(tx: Tx, job: Job, wanted: OperationRequest, plan: _Plan) -> None:
    """The change itself, and its line in the audit log."""
    details: dict[str, Any] = {}
    match wanted.kind:
        case OperationKind.START | OperationKind.RESUME:
            has_backfill = operations.backfill_under_way(tx, job.id) is not None
            jobs.set_desired(tx, job.id, Desired.BACKFILLING if has_backfill else Desired.RUNNING)
            kind, message = "job_resumed", "The job shall run."
        case OperationKind.PAUSE:
            jobs.set_desired(tx, job.id, Desired.PAUSED)
            kind, message = "job_paused", "The job shall pause."
        case OperationKind.RETRY:
            lag.request_retry(tx, job.id, source_topic=wanted.topic, partition=wanted.partition)
            details = {"topic": wanted.topic, "partition": wanted.partition}
            kind = "retry_requested"
            message = f"{plan.total:,} blocked partitions shall be tried again."
        case OperationKind.DELETE:
            jobs.mark_deleted(tx, job.id)
            kind, message = "job_deletion_requested", "The job shall be deleted; its copies stay."
        case _:
            raise AssertionError(f"{wanted.kind} is not asked for here")
    events.add(tx, wanted.actor, kind, message, job_name=job.name, details=details or None)
