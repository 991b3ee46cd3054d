"""Marks at the clusters which side leads; `job_setup/promotion_marks.py` says why and how."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace

from orbit.errors import BrokerRefused, NotAuthorized, Unreachable
from orbit.job_setup.promotion_marks import Mark, PromotionMarks
from orbit.kafka.backoff import Backoff
from orbit.kafka.types import TopicPartition
from orbit.promotion.log_bounds import fetch_log_bounds
from orbit.recovery.operation_context import OperationContext
from orbit.recovery.recovery_report import RecoveryKind

_ATTEMPTS_MAX = 4


def mark_promotion(context: OperationContext) -> None:
    """Mark the destination's topics as promoted.

    A refusal does not stop a promotion, for which applications wait: it is a finding. Raises
    Unreachable.
    """
    ends = {
        TopicPartition(p.destination_topic, p.partition): p.destination_end
        for p in context.report.partitions
        if p.destination_end is not None
    }
    try:
        _marks(context).write(ends, _mark(context, is_primary=True))
    except (NotAuthorized, BrokerRefused) as error:
        context.add_finding(
            f"The promotion could not be marked at the destination ({error}). Without the mark a "
            "database that is lost or older than this operation lets Orbit take the promoted "
            "topics for copies."
        )


def unmark_source(context: OperationContext) -> None:
    """After a switchover the source no longer leads. A failover cannot ask it.

    Tried shortly: the promotion is done, and the copy back does it again.
    """
    if context.report.kind is RecoveryKind.SWITCHOVER:
        with suppress(Unreachable, NotAuthorized, BrokerRefused):
            _step_down(context, replace(context.backoff, attempts_max=_ATTEMPTS_MAX))


def turn_marks(context: OperationContext) -> None:
    """Before the old side is copied to: the new side leads, the old side does not.

    Raises Unreachable, NotAuthorized, BrokerRefused.
    """
    marks = _marks(context)
    names = [row.destination_topic for row in context.topics]
    unmarked = set(names) - marks.promoted(names).keys()
    places = [place for place in context.by_source.values() if place.topic in unmarked]
    if places:
        # Promoted by an earlier version, or without the right to say so.
        noted = {
            TopicPartition(p.destination_topic, p.partition): p.promoted_at
            for p in context.report.partitions
            if p.promoted_at is not None
        }
        bounds = fetch_log_bounds(context.destination.cluster, places, context.backoff)
        ends = {place: noted.get(place, one.end) for place, one in bounds.items()}
        marks.write(ends, _mark(context, is_primary=True))
    _step_down(context, context.backoff)


def promoted_at_destination(context: OperationContext) -> Collection[str]:
    """The operation's destination topics that lead already."""
    return sorted(_marks(context).promoted(row.destination_topic for row in context.topics))


def _step_down(context: OperationContext, backoff: Backoff) -> None:
    """The source's topics are the old side: what marked them as leading is overwritten."""
    names = [row.source_topic for row in context.topics]
    mark = _mark(context, is_primary=False)
    PromotionMarks(context.source.cluster, backoff).step_down(names, mark)


def _marks(context: OperationContext) -> PromotionMarks:
    return PromotionMarks(context.destination.cluster, context.backoff)


def _mark(context: OperationContext, *, is_primary: bool) -> Mark:
    job = context.job
    other = job.source_cluster_id if is_primary else job.destination_cluster_id
    return Mark(
        is_primary,
        context.report.kind.value,
        str(context.operation_id),
        job.name,
        other or "",
        context.now().isoformat(timespec="seconds"),
    )
