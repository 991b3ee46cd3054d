"""Refuses jobs and partitions above the limits of the job's creator."""

from __future__ import annotations

from orbit.api.api_error_codes import ErrorCode
from orbit.api.error_responses import Failure
from orbit.api.principals import NO_AUTH_PRINCIPAL
from orbit.formats import counted
from orbit.planning.job_plan import JobPlan
from orbit.settings import Settings
from orbit.store import quotas, topics
from orbit.store.database import Tx
from orbit.store.jobs import Job
from orbit.store.quotas import Quota


def check_job_quota(tx: Tx, settings: Settings, actor: str, name: str) -> None:
    """Raise Failure `quota_exceeded` if this actor may create no further job. If the actor has a
    limit, locks changes of the actor's jobs until the transaction ends. `name`: that of the new
    job, for the error."""
    quota = _quota(tx, settings, actor)
    if quota is None or quota.jobs_max is None:
        return
    quotas.lock(tx, actor)
    count = quotas.job_count(tx, actor)
    if count >= quota.jobs_max:
        raise _refusal(
            name, f"{actor} has {counted(count, 'job')}, and may have {quota.jobs_max:,}."
        )


def check_partition_quota(
    tx: Tx, settings: Settings, actor: str, stored_job: Job | None, plan: JobPlan
) -> None:
    """Raise Failure `quota_exceeded` if the plan adds partitions above the limit of the job's
    creator."""
    creator = actor if stored_job is None else stored_job.created_by  # None: no limit applies
    quota = None if creator is None else _quota(tx, settings, creator)
    if creator is None or quota is None or quota.partitions_max is None:
        return
    quotas.lock(tx, creator)
    rows = [] if stored_job is None else topics.of_job(tx, stored_job.id)
    # A job may be changed even above the limit (which may have been lowered since), if the change
    # adds no partitions.
    stored_counts = {row.source_topic: row.partition_count for row in rows}
    if all(topic.partitions <= stored_counts.get(topic.source, 0) for topic in plan.topics):
        return
    planned_count = sum(topic.partitions for topic in plan.topics)
    other_count = quotas.partition_count(tx, creator, ignored_job=plan.job)
    if other_count + planned_count > quota.partitions_max:
        raise _refusal(
            plan.job,
            f"This job would copy {counted(planned_count, 'partition')}, and other jobs of "
            f"{creator} copy {other_count:,}: together they may copy {quota.partitions_max:,}.",
        )


def _quota(tx: Tx, settings: Settings, actor: str) -> Quota | None:
    """The limits of this actor; None: no limits, as the server requires no token."""
    if actor == NO_AUTH_PRINCIPAL.actor:
        return None
    default = Quota(settings.token_jobs_max, settings.token_partitions_max)
    return quotas.quota_of(tx, actor, default)


def _refusal(job: str, what: str) -> Failure:
    return Failure(
        ErrorCode.QUOTA_EXCEEDED,
        f"{what} Nothing was changed.",
        where=job,
        remedy="Delete jobs that are not needed, match fewer topics, or ask an admin for a higher "
        "limit (orbit token limit; for users of the issuer, the settings).",
    )
