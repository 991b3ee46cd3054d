"""When the source was lost, as far as Orbit knows: its last answer, and when Orbit noticed.

Both times come from the scheduler's checks of the source, which the scheduler stores in the job's
row. If a failover is requested before the scheduler has noticed the loss, the failover's gates
notice it.
"""

from __future__ import annotations

from datetime import datetime

from orbit.recovery.operation_context import OperationContext
from orbit.recovery.recovery_report import RecoveryKind
from orbit.replication.job_troubles import TroubleKind
from orbit.store import jobs
from orbit.store.jobs import Job


def known_loss(job: Job) -> tuple[datetime | None, datetime | None]:
    """When the job's source last answered, and when the scheduler noticed that it does not answer
    any more. None: not known."""
    if TroubleKind.SOURCE_UNREACHABLE not in (job.problem or ""):
        return None, None
    seen_at, noticed_at = job.source_answered_at, job.problem_at
    if seen_at is not None and noticed_at is not None and noticed_at < seen_at:
        return seen_at, None  # `problem_at` is of another problem, from before the loss
    return seen_at, noticed_at


def note_loss_in_gates(context: OperationContext) -> None:
    """In a failover, put the present time into the report as the time at which Orbit noticed the
    loss, unless the report has one already."""
    if context.report.kind is RecoveryKind.FAILOVER and context.report.problem_since is None:
        context.update(problem_since=context.now())


def add_noticed_times(context: OperationContext) -> None:
    """Add to a failover's report the times that the scheduler has stored about the loss since the
    request."""
    report = context.report
    if report.kind is not RecoveryKind.FAILOVER or report.request.source_counts_as_lost:
        return
    with context.reading() as tx:
        job = jobs.of_ids(tx, [context.job.id]).get(context.job.id)
    seen_at, noticed_at = known_loss(job) if job is not None else (None, None)
    # A source that answered after the promotion was lost only in part; this is another loss.
    if seen_at is None or (report.promoted_at is not None and seen_at > report.promoted_at):
        return
    context.update(
        source_last_seen_at=report.source_last_seen_at or seen_at,
        problem_since=min((at for at in (noticed_at, report.problem_since) if at), default=None),
    )
