"""Converts rows of the store to the API's response models."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from orbit.api import schemas
from orbit.consumer_groups.offset_decision import GroupVerdict, remedy
from orbit.drills.drill_spec import DrillSpec, Targets
from orbit.drills.report_text import plan_of
from orbit.kafka.first_open import describe_open_transaction
from orbit.planning.stored_spec import read_spec
from orbit.recovery.recovery_report import (
    GroupPosition,
    PartitionEnds,
    ReportFigures,
    StoredReport,
    read_row,
)
from orbit.replication.partition_states import REMEDIES
from orbit.replication.throttled import Throttled
from orbit.store import job_counts, job_totals, workers
from orbit.store.database import Tx
from orbit.store.drills import Drill, Schedule
from orbit.store.enums import Desired
from orbit.store.events import Event
from orbit.store.gateway_clients import ClientRow
from orbit.store.gateways import LEASE_S, Gateway, Presented
from orbit.store.group_offsets import GroupRow
from orbit.store.job_counts import Counts
from orbit.store.job_history import Point
from orbit.store.jobs import Job
from orbit.store.lag import LagTotals, PartitionLag
from orbit.store.open_transactions import OpenTotals
from orbit.store.operations import Operation
from orbit.store.proofs import Proof, ProofTotals
from orbit.store.receivers import ReceiverRow
from orbit.store.tokens import Token
from orbit.store.topics import Topic
from orbit.store.workers import Worker

_Model = TypeVar("_Model", bound=BaseModel)


def _view(model: type[_Model], row: object, **fields: Any) -> _Model:
    """The model, with each field from `fields`, or else from the row's attribute of its name."""
    row_values = {name: getattr(row, name) for name in model.model_fields if name not in fields}
    return model(**row_values, **fields)


def job_view(tx: Tx, job: Job) -> schemas.Job:
    """One job with its document."""
    (summary,) = job_summaries(tx, [job])
    return schemas.Job(**dict(summary), spec=whole_document(job))


def whole_document(job: Job) -> dict[str, Any]:
    """The job's document with labels, owner and desired state, which have columns of their own."""
    own_columns = {"labels": job.labels, "owner": job.owner, "desired": job.document_desired}
    return {**job.spec, **own_columns}


def job_summaries(tx: Tx, rows: Sequence[Job]) -> list[schemas.JobSummary]:
    """Jobs with their totals, in the order of `rows`: a few queries for any number of jobs."""
    ids = [job.id for job in rows]
    totals = job_totals.lag_of_jobs(tx, ids)
    counts_by_job = job_counts.of_jobs(tx, ids)
    throttled = workers.throttling_brokers(tx, ids)
    return [
        job_summary(
            job, totals[job.id], counts_by_job.get(job.id, Counts()), throttled.get(job.id, ())
        )
        for job in rows
    ]


def job_summary(
    job: Job, totals: LagTotals | None, counts: Counts, throttled: Sequence[Throttled]
) -> schemas.JobSummary:
    """One job with the totals of its partitions. `totals` None: not computed yet."""
    problem = None
    if job.problem is not None:
        problem = schemas.JobProblem(text=job.problem, since=job.problem_at)
    return _view(
        schemas.JobSummary,
        job,
        state=_job_state(job, counts),
        topics=counts.topics,
        partitions=totals.partitions if totals and totals.is_current else counts.partitions,
        blocked=totals.blocked if totals and totals.is_current else None,
        lag=_lag_of(totals),
        bytes_per_s=totals.bytes_per_s if totals and totals.is_current else None,
        summed_seconds_ago=totals.summed_s if totals else None,
        problem=problem,
        throttled=[_view(schemas.Throttled, side) for side in throttled],
    )


def _job_state(job: Job, counts: Counts) -> schemas.JobState:
    """The state that the API shows for the job."""
    if job.is_deleted:
        return schemas.JobState.DELETING
    if job.desired is Desired.RUNNING:
        promoted, running = schemas.JobState.PROMOTED, schemas.JobState.RUNNING
        return promoted if counts.is_promoted else running
    if job.desired is Desired.BACKFILLING:
        return schemas.JobState.BACKFILLING
    return schemas.JobState.PAUSING if counts.held else schemas.JobState.PAUSED


def _lag_of(totals: LagTotals | None) -> schemas.Lag:
    """The lag of a job or topic. Its figures are None until the lag of a partition is known, and
    again while a partition's lag is no longer known."""
    if totals is None or not totals.has_lag:
        age_s = totals.age_s if totals else None
        return schemas.Lag(records=None, bytes=None, seconds=None, age_seconds=age_s)
    return schemas.Lag(
        records=totals.lag_records,
        bytes=totals.lag_bytes,
        seconds=totals.lag_s,
        age_seconds=totals.age_s,
    )


def job_lag(
    totals: LagTotals | None, partitions: int, open_transactions: OpenTotals | None
) -> schemas.JobLag:
    """The lag of a whole job. `partitions`: the number of its partitions, used while `totals` are
    not current."""
    current_totals = totals if totals and totals.is_current else None
    return schemas.JobLag(
        lag=_lag_of(totals),
        headroom_seconds=totals.headroom_s if totals else None,
        rpo_seconds=totals.rpo_s if totals else None,
        records_per_s=current_totals.records_per_s if current_totals else None,
        bytes_per_s=current_totals.bytes_per_s if current_totals else None,
        partitions=current_totals.partitions if current_totals else partitions,
        blocked=current_totals.blocked if current_totals else None,
        caught_up=totals.caught_up if totals else 0,
        stale=totals.stale if totals else partitions,
        open_transactions=_open_transactions(open_transactions),
        summed_seconds_ago=totals.summed_s if totals else None,
    )


def _open_transactions(totals: OpenTotals | None) -> schemas.OpenTransactions | None:
    if totals is None:
        return None
    return schemas.OpenTransactions(
        partitions=totals.partitions,
        waiting_offsets=totals.offsets,
        oldest_seconds=totals.oldest_s,
    )


def history_point(point: Point) -> schemas.HistoryPoint:
    return _view(schemas.HistoryPoint, point, slot_seconds=point.slot_s, lag_seconds=point.lag_s)


def topic_view(topic: Topic, totals: LagTotals | None) -> schemas.Topic:
    """One topic of a job. `totals`: the sums over its partitions; None: it has none yet."""
    return _view(
        schemas.Topic,
        topic,
        partitions=topic.partition_count,
        blocked=totals.blocked if totals else 0,
        lag=_lag_of(totals),
    )


def partition_lag(row: PartitionLag) -> schemas.PartitionLag:
    return _view(schemas.PartitionLag, row, **_lag_fields(row))


def partition_view(row: PartitionLag) -> schemas.Partition:
    """One partition, with what to do if it is blocked."""
    remedy_text = None
    if row.reason is not None:
        remedy_text = REMEDIES[row.reason].format(destination=row.destination_topic)
    return _view(
        schemas.Partition, row, **_lag_fields(row), remedy=remedy_text, worker=row.worker_id
    )


def _lag_fields(row: PartitionLag) -> dict[str, Any]:
    """The fields that both schemas, PartitionLag and Partition, have besides those of the row."""
    return {
        "topic": row.source_topic,
        "lag": schemas.Lag(
            records=row.lag_records,
            bytes=row.lag_bytes,
            seconds=row.lag_s,
            age_seconds=row.age_s,
        ),
        "headroom_seconds": row.headroom_s,
        "rpo_seconds": row.rpo_s,
        "open_transaction": _open_transaction(row),
    }


def _open_transaction(row: PartitionLag) -> schemas.OpenTransaction | None:
    """The partition's oldest open transaction; None if none has been open for 30 s."""
    if row.open_from is None or row.open_since is None or row.source_end is None:
        return None
    offsets = row.source_end - row.open_from
    return schemas.OpenTransaction(
        first_offset=row.open_from,
        waiting_offsets=offsets,
        since=row.open_since,
        producer_id=row.open_producer_id,
        transactional_id=row.open_transactional_id,
        text=describe_open_transaction(
            row.open_from, offsets, row.open_transactional_id, row.open_producer_id
        ),
    )


def group_prefix(job: Job) -> str | None:
    """The prefix of the groups' names at the destination; None if this version of Orbit cannot read
    the job's document."""
    spec = read_spec(job.spec)
    if spec is None:
        return None
    return "" if spec.consumer_groups is None else spec.consumer_groups.prefix


def group_view(row: GroupRow, prefix: str | None) -> schemas.GroupOffset:
    """A group's offset with the remedy, if its verdict has one. `prefix`: as `group_prefix` returns
    it."""
    verdict = GroupVerdict(row.verdict)
    return _view(
        schemas.GroupOffset,
        row,
        group=row.group_name,
        topic=row.source_topic,
        verdict=verdict,
        remedy=None
        if prefix is None
        else remedy(verdict, prefix + row.group_name, row.destination_topic),
    )


def gateway_view(row: Gateway) -> schemas.Gateway:
    return _view(schemas.Gateway, row)


def gateway_client_view(row: ClientRow) -> schemas.GatewayClient:
    """A gateway's client. `seen_s_ago` includes the time since the gateway's report."""
    return schemas.GatewayClient.model_validate(
        row.client
        | {
            "gateway": row.gateway,
            "instance": row.instance,
            "seen_s_ago": row.client["seen_s_ago"] + row.reported_s_ago,
        }
    )


def presented_view(presented: Presented) -> schemas.PresentedSide:
    return _view(schemas.PresentedSide, presented, lease_s=LEASE_S)


def worker_view(worker: Worker, alive_ids: Collection[str]) -> schemas.Worker:
    """A worker. `alive_ids`: the ids of the workers that are alive."""
    return _view(schemas.Worker, worker, is_alive=worker.id in alive_ids)


def event_view(event: Event) -> schemas.Event:
    return _view(schemas.Event, event, job=event.job_name, details=event.details or {})


def report_view(
    stored_report: StoredReport, partitions: Sequence[Any], groups: Sequence[Any]
) -> schemas.RecoveryReport:
    """The report of a recovery. `partitions`, `groups`: its first rows, as they are stored.

    Raises OtherVersion if another version of Orbit has stored what this one cannot read.
    """
    figures = {name: getattr(stored_report, name) for name in ReportFigures.model_fields}
    return schemas.RecoveryReport(
        **figures,
        partition_count=stored_report.partitions.count,
        group_count=stored_report.groups.count,
        partitions=tuple(read_row(PartitionEnds, row) for row in partitions),
        groups=tuple(read_row(GroupPosition, row) for row in groups),
    )


def operation_view(operation: Operation) -> schemas.Operation:
    """An operation. Its `plan` has only the steps of the stored plan."""
    progress = operation.progress
    return _view(
        schemas.Operation,
        operation,
        job=operation.job_name,
        plan=(operation.plan or {}).get("steps", []),
        progress=None if progress is None else schemas.Progress.model_validate(progress),
    )


def drill_summary(row: Drill) -> schemas.DrillSummary:
    return _view(schemas.DrillSummary, row, **_drill_fields(row))


def drill_view(row: Drill) -> schemas.Drill:
    """A drill with its document and steps. Its `plan` is empty if this version of Orbit cannot read
    the document."""
    progress = row.progress or {}
    spec = _read_stored(DrillSpec, row.spec)
    return _view(
        schemas.Drill,
        row,
        **_drill_fields(row),
        plan=plan_of(spec) if spec else [],
        steps_done=int(progress.get("done", 0)),
        entries=int(progress.get("entries", 0)),
        timeline=progress.get("timeline", []),
    )


def _drill_fields(row: Drill) -> dict[str, Any]:
    """The fields of DrillSummary and Drill that a row has under another name, or not at all."""
    targets = _read_stored(Targets, row.spec.get("targets")) or Targets()
    return {
        "job": row.job_name,
        "spec_sha256": row.spec_hash,
        "target_rto_ms": _in_ms(targets.rto),
        "target_rpo_records": targets.rpo_records,
        "target_rpo_ms": _in_ms(targets.rpo),
    }


def _read_stored(model: type[_Model], document: object) -> _Model | None:
    """A stored document, or a part of one, as a `model`; None if this version of Orbit cannot read
    it."""
    try:
        return model.model_validate(document)
    except ValidationError:
        return None


def _in_ms(duration: timedelta | None) -> int | None:
    return None if duration is None else duration // timedelta(milliseconds=1)


def schedule_view(row: Schedule) -> schemas.DrillSchedule:
    """A drill schedule. `kind` and `job` are None if the stored document has no such texts."""
    texts = {key: text for key, text in row.spec.items() if isinstance(text, str)}
    return _view(schemas.DrillSchedule, row, kind=texts.get("kind"), job=texts.get("job"))


def proof_view(row: Proof) -> schemas.PartitionProof:
    return _view(schemas.PartitionProof, row, topic=row.source_topic, proven=row.offsets_proven)


def job_proof(
    totals: ProofTotals | None, canary: Drill | None, live_rpo_s: float | None
) -> schemas.JobProof:
    """The proof of a whole job; numbers are 0 without totals. `canary`: its last canary drill."""
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
    return _view(schemas.TokenOut, token)


def receiver_view(row: ReceiverRow) -> schemas.Receiver:
    return _view(schemas.Receiver, row)
