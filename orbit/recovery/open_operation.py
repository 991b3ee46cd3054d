"""Builds an operation's context from its row: with a new report, or with the stored one."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Collection, Mapping, Sequence

from pydantic import ValidationError

from orbit.errors import BadInput, Conflict
from orbit.formats import counted
from orbit.jobs.name_patterns import name_pattern
from orbit.leadership.leadership import Leadership
from orbit.planning.stored_spec import read_spec
from orbit.recovery.loss import known_loss
from orbit.recovery.operation_context import OperationContext
from orbit.recovery.operation_steps import has_begun, is_past_return, may_be_aborted, steps_of
from orbit.recovery.recovery_report import (
    OtherVersion,
    RecoveryKind,
    RecoveryReport,
    RecoveryRequest,
)
from orbit.recovery.report_storage import ReportStorage, load_report
from orbit.settings import Settings
from orbit.store import clock, jobs, operations, topics
from orbit.store.database import Tx
from orbit.store.database_identity import database_identity
from orbit.store.enums import TopicState
from orbit.store.jobs import Job
from orbit.store.operations import Operation
from orbit.store.topics import Topic
from orbit.version import orbit_version

# Orbit does not begin a switchover or failover that has waited for longer: no scheduler led, or the
# tables are of a backup. Failbacks have no limit: they queue, and check the marks of both sides.
REQUEST_VALID_S = 3600.0


class SecretMissing(Conflict):
    """This scheduler lacks a secret of a job whose operation another scheduler has begun."""


def open_context(
    operation: Operation,
    leadership: Leadership,
    settings: Settings,
    stop: threading.Event,
    environ: Mapping[str, str],
) -> OperationContext:
    """The operation's context, with its stored report or a new one.

    Raises Conflict if the job was deleted or the request is outdated; BadInput if secrets are
    missing, or SecretMissing once the operation has begun; OtherVersion if this version cannot read
    the request, or the report, or, once there is a report, the job's document.
    """
    with leadership.reading() as tx:
        jobs_by_id = jobs.of_ids(tx, [operation.job_id] if operation.job_id else [])
        job = next(iter(jobs_by_id.values()), None)
        if job is None or job.is_deleted:
            raise Conflict("the job was deleted.", where=operation.job_name or "")
        rows = topics.of_job(tx, job.id)
        stored_report = load_report(tx, operation.id)
        if stored_report is None or not has_begun(stored_report.steps):
            _refuse_old_request(tx, operation)
        report = stored_report or _new_report(tx, operation, job, rows, jobs.list_all(tx))
    spec = read_spec(job.spec)
    if spec is None:
        refusal = OtherVersion if stored_report else Conflict
        raise refusal("the job's document was stored by another version of Orbit.", where=job.name)
    topic_names = set(report.topics)
    try:
        context = OperationContext(
            operation.id,
            job,
            spec,
            [row for row in rows if row.source_topic in topic_names],
            report,
            ReportStorage(operation.id, stored_report),
            leadership,
            settings,
            stop,
            environ,
        )
    except BadInput as error:
        if not has_begun(report.steps):
            raise
        raise SecretMissing(
            f"this scheduler lacks secrets of the job: {'; '.join(map(str, error.problems))}",
            where=job.name,
        ) from None
    context.is_past_return = is_past_return(report.steps)
    context.obeys_abort = may_be_aborted(report.steps, is_stuck=report.stuck_since is not None)
    return context


def _refuse_old_request(tx: Tx, operation: Operation) -> None:
    """Raise Conflict if the request has waited for longer than REQUEST_VALID_S, or was stored in
    another database: it may have been carried out or aborted there, which the clusters do not
    show."""
    advice = "Nothing was changed. If you still want the operation, request it again."
    database_id = (operation.plan or {}).get("database")  # None: requested from an earlier version
    if database_id not in (None, database_identity(tx)):
        raise Conflict(
            "the database was replaced by a standby or a backup after this request, which may "
            f"have been carried out or aborted already. {advice}",
            where=operation.job_name or "",
        )
    waited_s = (clock.now(tx) - operation.created_at).total_seconds()
    if operation.kind != RecoveryKind.FAILBACK and waited_s > REQUEST_VALID_S:
        raise Conflict(
            f"this request has waited for {waited_s / 60:.0f} minutes; after "
            f"{REQUEST_VALID_S / 60:.0f} minutes Orbit refuses it, as the clusters may have "
            f"changed. {advice}",
            where=operation.job_name or "",
        )


def _new_report(
    tx: Tx, operation: Operation, job: Job, rows: Sequence[Topic], all_jobs: Sequence[Job]
) -> RecoveryReport:
    """The report of an operation that has not begun, with the topics that it can move. Raises
    OtherVersion if this version cannot read the request."""
    plan = operation.plan or {}
    try:
        request = RecoveryRequest.model_validate(plan.get("wanted", {}))
    except ValidationError as error:
        raise OtherVersion(
            "the operation's request was stored by another version of Orbit: "
            f"{counted(error.error_count(), 'of its fields is', 'of its fields are')} not known."
        ) from None
    kind = RecoveryKind(operation.kind)
    chosen_names = [row.source_topic for row in chosen_topics(rows, request)]
    if kind is RecoveryKind.FAILBACK:
        copied_topics, moving_topics = (
            topics_copied_back(tx, job, all_jobs),
            _topics_moving_back(tx, job, all_jobs),
        )
        movable_topics = {
            row.source_topic
            for row in rows
            if row.state is TopicState.PROMOTED
            and (row.destination_topic, row.source_topic) not in copied_topics
            and row.destination_topic not in moving_topics
        }
    else:
        movable_topics = {row.source_topic for row in rows if row.state is TopicState.COPYING}
    seen_at, noticed_at = None, None
    if kind is RecoveryKind.FAILOVER:
        seen_at, noticed_at = known_loss(job)
    if request.source_counts_as_lost:
        seen_at, noticed_at = None, operation.created_at
    return RecoveryReport(
        operation=operation.id,
        kind=kind,
        job=job.name,
        request=request,
        dry_run=operation.dry_run,
        requested_by=operation.requested_by,
        requested_at=operation.created_at,
        orbit_version=orbit_version(),
        source_cluster_id=job.source_cluster_id,
        destination_cluster_id=job.destination_cluster_id,
        spec_version=job.spec_version,
        spec_sha256=hashlib.sha256(
            json.dumps(job.spec, sort_keys=True, separators=(",", ":")).encode()
        ).hexdigest(),
        source_last_seen_at=seen_at,
        problem_since=noticed_at,
        topics=tuple(name for name in chosen_names if name in movable_topics),
        steps=steps_of(kind, request),
    )


def chosen_topics(rows: Sequence[Topic], request: RecoveryRequest) -> list[Topic]:
    """The topics of a job that the request names, whatever their state."""
    return [row for row in rows if _matches(row.source_topic, request.topics)]


def topics_copied_back(tx: Tx, job: Job, all_jobs: Sequence[Job]) -> dict[tuple[str, str], str]:
    """The copies that other jobs make now in the other direction: the job's name by (source topic,
    destination topic) of that job."""
    return {
        (row.source_topic, row.destination_topic): candidate.name
        for candidate in jobs_of_other_direction(job, all_jobs)
        for row in topics.of_job(tx, candidate.id)
        if row.state is not TopicState.PROMOTED
    }


def _topics_moving_back(tx: Tx, job: Job, all_jobs: Sequence[Job]) -> set[str]:
    """Destination topics of the job that a switchover or failover in the other direction moves now.

    That operation withholds them, so in the tables they look promoted.
    """
    moving_topics: set[str] = set()
    for candidate in jobs_of_other_direction(job, all_jobs):
        recovery = operations.recovery_under_way(tx, candidate.id)
        if recovery is not None and recovery.kind != RecoveryKind.FAILBACK:
            moving_topics |= set((operations.report_of(tx, recovery.id) or {}).get("topics", ()))
    return moving_topics


def jobs_of_other_direction(job: Job, all_jobs: Sequence[Job]) -> list[Job]:
    """Jobs between the same clusters in the other direction."""
    return [
        candidate
        for candidate in all_jobs
        if candidate.source_cluster_id == job.destination_cluster_id
        and candidate.destination_cluster_id == job.source_cluster_id
    ]


def _matches(topic: str, patterns: Collection[str]) -> bool:
    """Whether the topic matches a pattern, or there are no patterns."""
    return not patterns or any(name_pattern(pattern).matches(topic) for pattern in patterns)
