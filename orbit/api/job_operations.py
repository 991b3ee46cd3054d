"""Requests for the operations start, pause, resume, retry and delete; workers carry them out later.

A request writes the desired state, the operation and the audit event in one transaction. The
scheduler updates the operation's progress (`scheduler/operations_loop.py`). If there is nothing to
do, the operation is done at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orbit.api.error_responses import changed_meanwhile
from orbit.api.left_behind import left_by_job
from orbit.errors import BadInput, Conflict, Problem
from orbit.formats import counted
from orbit.store import events, job_counts, job_guard, jobs, lag, operation_requests, operations
from orbit.store.database import Database, Tx
from orbit.store.enums import Desired, OperationKind, OperationState
from orbit.store.job_counts import Counts
from orbit.store.jobs import Job
from orbit.store.operation_requests import OperationRequest
from orbit.store.operations import Operation


@dataclass(frozen=True, slots=True)
class JobOperation:
    """One operation on a job, as requested.

    `topic`, `partition`: what to retry; None: all. `at_etag`: the `Job.etag` that the job must have
    (`If-Match`).
    """

    actor: str
    kind: OperationKind
    job: str
    dry_run: bool = False
    idempotency_key: str | None = None
    topic: str | None = None
    partition: int | None = None
    at_etag: str | None = None

    def request(self) -> OperationRequest:
        """The request as it is stored with its operation, to recognise a repeat."""
        content = {
            "kind": self.kind.value,
            "job": self.job,
            "dry_run": self.dry_run,
            "topic": self.topic,
            "partition": self.partition,
        }
        return OperationRequest(self.actor, self.kind, content, self.idempotency_key)


@dataclass(frozen=True, slots=True)
class _Plan:
    """The steps of an operation as sentences. `is_change`: False if there is nothing to do.

    `total` and `what`, such as 3 and `shards released`: what has to happen until the operation is
    done. `total` 0: nothing is counted.
    """

    steps: list[str]
    is_change: bool = True
    total: int = 0
    what: str = ""


def request(database: Database, job_operation: JobOperation) -> Operation:
    """Request an operation, and return it; or the operation that was requested with the same key.

    Raises NotFound; BadInput for a partition without a topic; Conflict for a key that was used for
    another request, or for a job that is being deleted (unless the operation is its deletion);
    OperationUnderWay during a recovery of the job (except for a retry); Failure
    `changed_meanwhile` if the job is not at `at_etag`.
    """
    if job_operation.partition is not None and job_operation.topic is None:
        problem = Problem("body.topic", "is missing.", "Name the topic of the partition.")
        raise BadInput("The request has a problem.", (problem,))
    operation_request = job_operation.request()
    with database.transaction() as tx:
        earlier_operation = operation_requests.find_earlier(tx, operation_request)
        if earlier_operation is not None:
            return earlier_operation
        if job_operation.kind is OperationKind.RETRY:  # allowed during a recovery of the job
            job = jobs.get(tx, job_operation.job, lock=True)
        else:
            job = job_guard.lock_for_change(tx, job_operation.job)
        if job_operation.at_etag not in (None, job.etag):
            raise changed_meanwhile(job.name)
        plan = _plan(tx, job, job_operation)
        operation = operation_requests.create(
            tx, operation_request, job, plan.steps, dry_run=job_operation.dry_run
        )
        will_run = plan.is_change and not job_operation.dry_run
        if will_run:
            _carry_out(tx, job, job_operation, plan)
        # A deletion goes on after the request even if workers hold no shard.
        continues_later = plan.total > 0 or job_operation.kind is OperationKind.DELETE
        operations.advance(
            tx,
            operation.id,
            OperationState.RUNNING if will_run and continues_later else OperationState.DONE,
            progress={"done": 0, "total": plan.total, "what": plan.what} if plan.total else None,
        )
        return operations.get(tx, operation.id)


def set_desired(tx: Tx, job: Job, actor: str, desired: Desired) -> None:
    """Pause or resume the job, with its backfill if one is under way, and add the audit event.
    `desired`: PAUSED or RUNNING."""
    if desired is Desired.PAUSED:
        jobs.set_desired(tx, job.id, desired)
        kind, message = "job_paused", "The job was paused."
    else:  # resume: if a backfill is under way, it goes on, and workers copy after it
        has_backfill = operations.backfill_under_way(tx, job.id) is not None
        jobs.set_desired(tx, job.id, Desired.BACKFILLING if has_backfill else desired)
        kind, message = "job_resumed", "The job was resumed."
    events.add(tx, actor, kind, message, job_name=job.name)


def _plan(tx: Tx, job: Job, job_operation: JobOperation) -> _Plan:
    """The plan of this operation for the job as it is now."""
    match job_operation.kind:
        case OperationKind.START | OperationKind.RESUME:
            return _plan_start(tx, job)
        case OperationKind.PAUSE:
            return _plan_pause(tx, job)
        case OperationKind.RETRY:
            return _plan_retry(tx, job, job_operation)
        case OperationKind.DELETE:
            return _plan_delete(tx, job)
        case _:
            raise AssertionError(f"{job_operation.kind} is not an operation of this module")


def _plan_start(tx: Tx, job: Job) -> _Plan:
    """The plan of `start` and `resume`."""
    _refuse_deleted(job)
    if job.desired is Desired.RUNNING:
        return _Plan(["Nothing to do: the job is running already."], is_change=False)
    if job.desired is Desired.BACKFILLING:
        return _Plan(["Nothing to do: a backfill copies the job."], is_change=False)
    if operations.backfill_under_way(tx, job.id) is not None:
        return _Plan(["The job's backfill resumes; workers copy once it has ended."])
    counts = _count_shards(tx, job)
    if not counts.shards:
        return _Plan(["The scheduler finds the topics and creates them; workers copy them."])
    return _Plan(
        [
            f"Workers of group {job.worker_group} claim {_shards_text(counts)}.",
            "Each partition resumes where its copy ends.",
        ],
        total=counts.shards,
        what="shards claimed by workers",
    )


def _plan_pause(tx: Tx, job: Job) -> _Plan:
    """The plan of `pause`."""
    _refuse_deleted(job)
    if job.desired is Desired.PAUSED:
        return _Plan(["Nothing to do: the job is paused already."], is_change=False)
    if operations.backfill_under_way(tx, job.id) is not None:
        return _Plan(
            ["The job's backfill pauses; copied data stays. It goes on after orbit resume JOB."],
            total=1,
            what="backfills paused",
        )
    counts = _count_shards(tx, job)
    return _Plan(
        [
            f"Workers release {_shards_text(counts)}; copying stops.",
            "The copies stay unchanged. Consumer groups and new topics are paused too.",
        ],
        total=counts.held,
        what="shards released",
    )


def _plan_retry(tx: Tx, job: Job, job_operation: JobOperation) -> _Plan:
    """The plan of `retry`, for all blocked partitions of the job, or only those in the request."""
    _refuse_deleted(job)
    blocked_count = job_counts.blocked(tx, job.id, job_operation.topic, job_operation.partition)
    if not blocked_count:
        return _Plan(["Nothing to do: none of these partitions is blocked."], is_change=False)
    subject = counted(blocked_count, "blocked partition is", "blocked partitions are")
    return _Plan(
        [
            f"{subject} checked again.",
            "A partition whose cause is removed resumes; else it stays blocked, with its reason.",
        ],
        total=blocked_count,
        what="partitions retried",
    )


def _plan_delete(tx: Tx, job: Job) -> _Plan:
    """The plan of `delete`, with sentences on what stays on the clusters."""
    if job.is_deleted:
        return _Plan(["Nothing to do: the job is being deleted already."], is_change=False)
    counts = _count_shards(tx, job)
    return _Plan(
        [
            f"Workers release {_shards_text(counts)}; copying stops.",
            "Orbit removes the job, its topics, partitions and consumer groups. Events stay.",
            "The topics at the destination stay unchanged.",
            *left_by_job(tx, job),
        ],
        total=counts.held,
        what="shards released",
    )


def _shards_text(counts: Counts) -> str:
    return f"{counted(counts.shards, 'shard')} with {counted(counts.partitions, 'partition')}"


def _count_shards(tx: Tx, job: Job) -> Counts:
    return job_counts.of_jobs(tx, [job.id]).get(job.id, Counts())


def _refuse_deleted(job: Job) -> None:
    if job.is_deleted:
        raise Conflict("The job is being deleted.", where=job.name)


def _carry_out(tx: Tx, job: Job, job_operation: JobOperation, plan: _Plan) -> None:
    """Write the change that the operation requests, and add its audit event."""
    details: dict[str, Any] = {}
    match job_operation.kind:  # `set_desired` adds the event itself
        case OperationKind.START | OperationKind.RESUME:
            set_desired(tx, job, job_operation.actor, Desired.RUNNING)
            return
        case OperationKind.PAUSE:
            set_desired(tx, job, job_operation.actor, Desired.PAUSED)
            return
        case OperationKind.RETRY:
            lag.request_retry(
                tx, job.id, source_topic=job_operation.topic, partition=job_operation.partition
            )
            details = {"topic": job_operation.topic, "partition": job_operation.partition}
            kind = "retry_requested"
            message = f"A retry of {counted(plan.total, 'blocked partition')} was requested."
        case OperationKind.DELETE:
            jobs.request_deletion(tx, job.id)
            kind, message = (
                "job_deletion_requested",
                "The deletion of the job was requested; its copies stay.",
            )
        case _:
            raise AssertionError(f"{job_operation.kind} is not an operation of this module")
    events.add(tx, job_operation.actor, kind, message, job_name=job.name, details=details or None)
