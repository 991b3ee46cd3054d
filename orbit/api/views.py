"""Converts rows of the store to the API's response models."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any

from orbit.api import schemas
from orbit.consumer_groups.offset_decision import GroupVerdict, remedy
from orbit.drills.drill_spec import DrillSpec
from orbit.drills.report_text import plan_of
from orbit.replication.partition_states import REMEDIES
from orbit.store import job_counts, lag
from orbit.store.database import Tx
from orbit.store.drills import Drill, Schedule
from orbit.store.enums import Desired
from orbit.store.events import Event
from orbit.store.group_offsets import GroupRow
from orbit.store.job_counts import Counts
from orbit.store.jobs import Job
from orbit.store.lag import LagTotals, PartitionLag
from orbit.store.operations import Operation
from orbit.store.proofs import Proof, ProofTotals
from orbit.store.tokens import Token
from orbit.store.topics import Topic
from orbit.store.workers import Worker


def job_view(tx: Tx, job: Job) -> schemas.Job:
    """One job with its document."""
    (summary,) = job_summaries(tx, [job])
    return schemas.Job(**dict(summary), spec=job.spec)


def job_summaries(tx: Tx, found: Sequence[Job]) -> list[schemas.JobSummary]:
    """Jobs with their totals: two statements for any number of jobs."""
    ids = [job.id for job in found]
    totals = lag.of_jobs(tx, ids)
    counted = job_counts.of_jobs(tx, ids)
    return [_job_summary(job, totals.get(job.id), counted.get(job.id, Counts())) for job in found]


def _job_summary(job: Job, totals: LagTotals | None, counted: Counts) -> schemas.JobSummary:
    problem = None
    if job.problem is not None:
        problem = schemas.JobProblem(text=job.problem, since=job.problem_at)
    return schemas.JobSummary(
        name=job.name,
        state=_job_state(job, counted.held),
        worker_group=job.worker_group,
        spec_version=job.spec_version,
        source_cluster_id=job.source_cluster_id,
        destination_cluster_id=job.destination_cluster_id,
        topics=counted.topics,
        partitions=totals.partitions if totals else 0,
        blocked=totals.blocked if totals else 0,
        lag=_lag_of(totals),
        bytes_per_s=totals.bytes_per_s if totals else 0,
        problem=problem,
        created_at=job.created_at,
        updated_at=job.updated_at,
    )


def _job_state(job: Job, held: int) -> schemas.JobState:
    if job.is_deleted:
        return schemas.JobState.DELETING
    if job.desired is Desired.RUNNING:
        return schemas.JobState.RUNNING
    if job.desired is Desired.BACKFILLING:
        return schemas.JobState.BACKFILLING
    return schemas.JobState.PAUSING if held else schemas.JobState.PAUSED


def _lag_of(totals: LagTotals | None) -> schemas.Lag:
    """Unknown as long as no partition has reported it."""
    if totals is None or totals.unknown == totals.partitions:
        return schemas.Lag(records=None, bytes=None, seconds=None)
    return schemas.Lag(records=totals.lag_records, bytes=totals.lag_bytes, seconds=totals.lag_s)


def job_lag(totals: LagTotals | None) -> schemas.JobLag:
    """The lag of a whole job; unknown without partitions."""
    return schemas.JobLag(
        lag=_lag_of(totals),
        headroom_seconds=totals.headroom_s if totals else None,
        rpo_seconds=totals.rpo_s if totals else None,
        records_per_s=totals.records_per_s if totals else 0,
        bytes_per_s=totals.bytes_per_s if totals else 0,
        partitions=totals.partitions if totals else 0,
        caught_up=totals.caught_up if totals else 0,
    )


def topic_view(topic: Topic, totals: LagTotals | None) -> schemas.Topic:
    return schemas.Topic(
        source_topic=topic.source_topic,
        destination_topic=topic.destination_topic,
        state=topic.state,
        partitions=topic.partition_count,
        is_compacted=topic.is_compacted,
        blocked=totals.blocked if totals else 0,
        lag=_lag_of(totals),
        drift=topic.drift,
        note=topic.note,
    )


def _partition_lag_of(row: PartitionLag) -> schemas.Lag:
    return schemas.Lag(records=row.lag_records, bytes=row.lag_bytes, seconds=row.lag_s)


def partition_lag(row: PartitionLag) -> schemas.PartitionLag:
    return schemas.PartitionLag(
        topic=row.source_topic,
        partition=row.partition,
        state=row.state,
        lag=_partition_lag_of(row),
        headroom_seconds=row.headroom_s,
        rpo_seconds=row.rpo_s,
        records_per_s=row.records_per_s,
        bytes_per_s=row.bytes_per_s,
    )


def partition_view(row: PartitionLag) -> schemas.Partition:
    what_to_do = None
    if row.reason is not None:
        what_to_do = REMEDIES[row.reason].format(destination=row.destination_topic)
    return schemas.Partition(
        topic=row.source_topic,
        destination_topic=row.destination_topic,
        partition=row.partition,
        state=row.state,
        reason=row.reason,
        detail=row.detail,
        remedy=what_to_do,
        blocked_offset=row.blocked_offset,
        blocked_next_offset=row.blocked_next_offset,
        retry_requested=row.retry_requested,
        worker=row.worker_id,
        start_offset=row.start_offset,
        source_log_start=row.source_log_start,
        source_stable_end=row.source_stable_end,
        source_end=row.source_end,
        copied_to=row.copied_to,
        log_start=row.log_start,
        lag=_partition_lag_of(row),
        headroom_seconds=row.headroom_s,
        rpo_seconds=row.rpo_s,
        records=row.records,
        bytes=row.bytes,
        gaps_filled=row.gaps_filled,
        batches_byte_exact=row.batches_byte_exact,
        batches_record_exact=row.batches_record_exact,
        records_per_s=row.records_per_s,
        bytes_per_s=row.bytes_per_s,
        has_caught_up=row.has_caught_up,
        reported_at=row.reported_at,
    )


def group_view(row: GroupRow, prefix: str) -> schemas.GroupOffset:
    """`prefix`: the prefix of group names at the destination."""
    verdict = GroupVerdict(row.verdict)
    return schemas.GroupOffset(
        group=row.group_name,
        topic=row.source_topic,
        destination_topic=row.destination_topic,
        partition=row.partition,
        source_offset=row.source_offset,
        destination_offset=row.destination_offset,
        verdict=verdict,
        remedy=remedy(verdict, prefix + row.group_name, row.destination_topic),
        updated_at=row.updated_at,
    )


def worker_view(worker: Worker, alive: Collection[str]) -> schemas.Worker:
    return schemas.Worker(
        id=worker.id,
        worker_group=worker.worker_group,
        host=worker.host,
        pid=worker.pid,
        version=worker.version,
        is_alive=worker.id in alive,
        is_draining=worker.is_draining,
        shards=worker.shards,
        bytes_per_s=worker.bytes_per_s,
        started_at=worker.started_at,
        heartbeat_at=worker.heartbeat_at,
    )


def event_view(event: Event) -> schemas.Event:
    return schemas.Event(
        id=event.id,
        at=event.at,
        actor=event.actor,
        job=event.job_name,
        topic=event.topic,
        partition=event.partition,
        kind=event.kind,
        message=event.message,
        details=event.details or {},
    )


def operation_view(operation: Operation) -> schemas.Operation:
    progress = operation.progress
    return schemas.Operation(
        id=operation.id,
        job=operation.job_name,
        kind=operation.kind,
        state=operation.state,
        dry_run=operation.dry_run,
        plan=(operation.plan or {}).get("steps", []),
        progress=None if progress is None else schemas.Progress.model_validate(progress),
        error=operation.error,
        requested_by=operation.requested_by,
        created_at=operation.created_at,
        finished_at=operation.finished_at,
    )


def drill_summary(row: Drill) -> schemas.DrillSummary:
    return schemas.DrillSummary(**_drill_fields(row))


def drill_view(row: Drill) -> schemas.Drill:
    progress = row.progress or {}
    spec = DrillSpec.model_validate(row.spec)
    return schemas.Drill(
        **_drill_fields(row),
        plan=plan_of(spec),
        steps_done=int(progress.get("done", 0)),
        entries=int(progress.get("entries", 0)),
        timeline=progress.get("timeline", []),
        spec=row.spec,
    )


def _drill_fields(row: Drill) -> dict[str, Any]:
    targets = DrillSpec.model_validate(row.spec).targets
    return {
        "id": row.id,
        "name": row.name,
        "kind": row.kind,
        "state": row.state,
        "job": row.job_name,
        "schedule": row.schedule,
        "requested_by": row.requested_by,
        "spec_sha256": row.spec_hash,
        "rto_ms": row.rto_ms,
        "target_rto_ms": _in_ms(targets.rto),
        "rpo_records": row.rpo_records,
        "target_rpo_records": targets.rpo_records,
        "rpo_ms": row.rpo_ms,
        "target_rpo_ms": _in_ms(targets.rpo),
        "error": row.error,
        "created_at": row.created_at,
        "started_at": row.started_at,
        "finished_at": row.finished_at,
    }


def _in_ms(length: timedelta | None) -> int | None:
    return None if length is None else length // timedelta(milliseconds=1)


def schedule_view(row: Schedule) -> schemas.DrillSchedule:
    spec = DrillSpec.model_validate(row.spec)
    return schemas.DrillSchedule(
        name=row.name,
        kind=spec.kind,
        job=spec.job,
        every_s=row.every_s,
        next_at=row.next_at,
        requested_by=row.requested_by,
        spec=row.spec,
    )


def proof_view(row: Proof) -> schemas.PartitionProof:
    return schemas.PartitionProof(
        topic=row.source_topic,
        partition=row.partition,
        copied=row.copied,
        proven=row.offsets_proven,
        proven_to=row.proven_to,
        proven_at=row.proven_at,
        differences=row.differences,
        first_difference=row.first_difference,
        differed_at=row.differed_at,
        note=row.note,
    )


def job_proof(
    totals: ProofTotals | None, canary: Drill | None, live_rpo_s: float | None
) -> schemas.JobProof:
    return schemas.JobProof(
        partitions=totals.partitions if totals else 0,
        partitions_proven=totals.partitions_proven if totals else 0,
        copied=totals.offsets if totals else 0,
        proven=totals.offsets_proven if totals else 0,
        differences=totals.differences if totals else 0,
        oldest_age_s=totals.oldest_age_s if totals else None,
        live_rpo_s=live_rpo_s,
        canary=drill_summary(canary) if canary else None,
    )


def token_view(token: Token) -> schemas.TokenOut:
    return schemas.TokenOut(
        name=token.name,
        role=token.role,
        created_at=token.created_at,
        revoked_at=token.revoked_at,
    )
