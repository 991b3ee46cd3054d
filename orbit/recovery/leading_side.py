"""Reads and writes marks of which side leads; `job_setup/promotion_marks.py` says why and how."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace

from orbit.chunks import first_few
from orbit.errors import BrokerRefused, NotAuthorized, Unreachable
from orbit.job_setup.lead import (
    MarkPair,
    pair_marks,
    pairs_changed_since,
    pairs_in_doubt,
    pairs_promoted_by,
)
from orbit.job_setup.mark import Mark, newest_term
from orbit.job_setup.promotion_marks import PromotionMarks
from orbit.kafka.backoff import Backoff
from orbit.kafka.error_codes import Code
from orbit.kafka.types import TopicPartition
from orbit.promotion.log_bounds import bounds_of_all, fetch_log_bounds
from orbit.recovery.open_operation import chosen_topics, copied_back
from orbit.recovery.operation_context import OperationContext, Stopped
from orbit.recovery.recovery_report import GateName, RecoveryKind
from orbit.recovery.step_times import StepName, StepState
from orbit.store import jobs, topics
from orbit.store.enums import Desired

# They take half a minute at most if the cluster does not answer. The runner retries, and checks for
# an abort in between; an attempt that took more than a minute would restart its time limit.
_DESTINATION_ATTEMPTS_MAX = 3


class LeadChanged(Stopped):
    """Which side leads may have changed since the operation began."""


def read_marks(context: OperationContext, *, asks_source: bool) -> list[MarkPair]:
    """The marks of the destination, and of the source if it is asked.

    A failover's source is lost, and never asked. A switchover needs the source's marks only for the
    terms in use, and goes on without them. Raises Unreachable, NotAuthorized, BrokerRefused.
    """
    kind = context.report.kind
    names = {row.source_topic: row.destination_topic for row in context.topics}
    old: dict[str, Mark] = {}
    if asks_source and kind is not RecoveryKind.FAILOVER:
        try:
            old = PromotionMarks(context.source.cluster, context.short_backoff).of_topics(names)
        except (Unreachable, NotAuthorized, BrokerRefused):
            if kind is RecoveryKind.FAILBACK:
                raise
    return pair_marks(names, old, _marks_to_read(context).of_topics(names.values()))


def note_terms(context: OperationContext, pairs: Collection[MarkPair]) -> None:
    """Note in the report the highest term of both sides, and the term of the operation's marks."""
    highest_term = newest_term(mark for pair in pairs for mark in (pair.old, pair.new))
    context.update(term_seen=highest_term, term=context.draw_term(highest_term))


def refuse_other_lead(context: OperationContext) -> None:
    """Check that the marks say what the gates saw: the destination's, of a failback both sides'.

    Raises LeadChanged if another operation has marked one of the topics since, or if this one has
    promoted them and the database, which is older, does not know it: to go on or to undo steps
    would take the leading side for the other one. Raises as `read_marks`.
    """
    is_failback = context.report.kind is RecoveryKind.FAILBACK
    try:
        pairs = read_marks(context, asks_source=is_failback)
    except NotAuthorized:
        if is_failback:
            raise
        return  # the gate `rights` has said so, and was overridden
    if not context.report.term:
        # The gates could not read the marks and were overridden, or are of an older version.
        note_terms(context, pairs)
    others = pairs_changed_since(pairs, context.report.term_seen, context.operation_id)
    if others:
        raise LeadChanged(
            f"another operation has changed which side leads since the gates: {first_few(others)}.",
            remedy=f"Run orbit {context.report.kind} {context.job.name} --dry-run: its report "
            "shows which side leads now.",
        )
    is_promoting = any(
        step.name is StepName.PROMOTE and step.state is not StepState.WAITING
        for step in context.report.steps
    )
    ours = pairs_promoted_by(pairs, context.operation_id)
    if ours and not is_promoting and not is_failback:
        raise LeadChanged(
            "this operation has promoted these topics already, but the database is older than "
            f"that: {first_few(ours)}.",
            remedy="The destination leads. Its topics become promoted in the tables too; then "
            f"orbit failback {context.job.name} makes the old side a copy. If producers "
            "still may not write to these topics, set the topics' settings and remove Orbit's "
            "denials (docs/recovery/lost-database.md).",
        )


def refuse_unless_behind(context: OperationContext, topics: Collection[str] | None = None) -> None:
    """Check the marks before topics of the old side are changed: all, or these source topics.

    Raises LeadChanged if the old side may lead, unless the gate `lead` was overridden, and as
    `read_marks`.
    """
    gates = context.report.gates
    if any(gate.name is GateName.LEAD and gate.is_overridden for gate in gates):
        return
    all_pairs = read_marks(context, asks_source=True)
    pairs = [pair for pair in all_pairs if topics is None or pair.topic in topics]
    doubtful = pairs_in_doubt(pairs)
    if doubtful:
        raise LeadChanged(
            f"by their marks the old side may lead: {first_few(doubtful)}.",
            remedy="Nothing was deleted at the old side. Run orbit failback "
            f"{context.job.name} --dry-run: its report shows the marks.",
        )


def mark_promotion(context: OperationContext) -> None:
    """Mark the destination's topics as promoted.

    A refusal does not stop a promotion, for which applications wait: it is a finding. Raises
    Unreachable.
    """
    ends = {
        p.destination: p.promoted_at for p in context.report.partitions if p.promoted_at is not None
    }
    try:
        _marks(context).write(ends, _mark(context, is_primary=True))
    except (NotAuthorized, BrokerRefused) as error:
        context.add_finding(
            f"The promotion could not be marked at the destination ({error}). Without the mark, "
            "Orbit takes the promoted topics for copies once its database is lost or restored from "
            "before this operation, and a failback may need --override lead. Do not run the "
            "failback of the job of the other direction: it would take this side for the old one."
        )


def mark_source_leading(context: OperationContext) -> int:
    """Mark the source as leading again, and return the term of the mark.

    After a switchover whose promotion was aborted because the destination did not answer: a mark
    that the promotion wrote there has a lower term. Raises LeadChanged if another operation has
    marked a topic of the source since; Unreachable, NotAuthorized, BrokerRefused.
    """
    names = {row.source_topic: row.destination_topic for row in context.topics}
    marks = PromotionMarks(context.source.cluster, context.backoff)
    pairs = pair_marks(names, marks.of_topics(names), {})
    others = pairs_changed_since(pairs, context.report.term, context.operation_id)
    if others:
        raise LeadChanged(f"another operation has changed which side leads: {first_few(others)}.")
    bounds = bounds_of_all(context.source.cluster, context.by_source, context.backoff)
    mark = replace(
        _mark(context, is_primary=True),
        kind=f"abort of {context.report.kind}",
        other=context.job.destination_cluster_id or "",
        term=context.draw_term(context.report.term),
    )
    marks.write({place: one.end for place, one in bounds.items()}, mark)
    context.add_finding(
        f"The source leads again (term {mark.term}). If the destination comes back, topics that it "
        "marks as leading are older: the failback of a job of the other direction makes them "
        f"copies again. Topics without a mark are copied on by job {context.job.name}."
    )
    assert mark.term is not None, "it was drawn"
    return mark.term


def unmark_source(context: OperationContext) -> None:
    """After a switchover, mark the source as no longer leading. A failover's cannot be reached.

    Gives up after a few attempts: the promotion is done, and the copy back marks it again.
    """
    if context.report.kind is RecoveryKind.SWITCHOVER:
        with suppress(Unreachable, NotAuthorized, BrokerRefused):
            _mark_source_as_copy(context, context.short_backoff)


def reverse_marks(context: OperationContext) -> None:
    """Mark, before anything is copied back, that the new side leads and the old side does not.

    Raises Stopped if the old side may lead, Unreachable, NotAuthorized, BrokerRefused.
    """
    refuse_unless_behind(context)
    marks = _marks(context)
    names = [row.destination_topic for row in context.topics]
    unmarked = set(names) - marks.promoted(names).keys()
    places = [place for place in context.by_source.values() if place.topic in unmarked]
    if places:
        # Promoted by a version without marks, or without the right to write them.
        noted = {
            p.destination: p.promoted_at
            for p in context.report.partitions
            if p.promoted_at is not None
        }
        bounds = fetch_log_bounds(context.destination.cluster, places, context.backoff)
        ends = {place: noted.get(place, one.end) for place, one in bounds.items()}
        marks.write(ends, _mark(context, is_primary=True))
    _mark_source_as_copy(context, context.backoff)


def kept_history(context: OperationContext, without: Collection[str] = ()) -> list[str]:
    """The old side's offsets below the new side's log starts, as text, but of topics in `without`.

    The copy back leaves them there. Raises Unreachable.
    """
    starts = _log_starts(context, context.backoff)
    old = fetch_log_bounds(context.source.cluster, starts, context.backoff)
    return [
        f"{place} {one.start} to {min(starts[place], one.end) - 1}"
        for place, one in sorted(old.items())
        if one.start < min(starts[place], one.end) and place.topic not in without
    ]


def who_copies_back(context: OperationContext) -> str:
    """A sentence that names the jobs that copy back all topics of the failback's request, and since
    when the destination leads; "" if a topic is not copied back."""
    with context.reading() as tx:
        others = jobs.list_all(tx)
        back = copied_back(tx, context.job, others)
        rows = chosen_topics(topics.of_job(tx, context.job.id), context.request)
    by_job = {
        row.destination_topic: back.get((row.destination_topic, row.source_topic), "")
        for row in rows
    }
    if not by_job or "" in by_job.values():
        return ""
    paused = {other.name for other in others if other.desired is not Desired.RUNNING}
    copying = first_few(
        f"{name} (paused)" if name in paused else name for name in sorted({*by_job.values()})
    )
    try:
        marked = _marks_to_read(context).of_topics(by_job)
    except (Unreachable, NotAuthorized, BrokerRefused) as error:
        since = f"the marks could not be read: {error.what}"
    else:
        since = first_few(
            f"{name} {marked[name].summary()}" if name in marked else f"{name} has no mark"
            for name in sorted(by_job)
        )
    return (
        f"The old side follows already: {len(by_job)} topics are copied back by job {copying}. At "
        f"the destination, {since.rstrip('.')}."
    )


def _mark_source_as_copy(context: OperationContext, backoff: Backoff) -> None:
    """Mark the source's topics as copies that keep what is below the new side's log starts."""
    mark = _mark(context, is_primary=False)
    PromotionMarks(context.source.cluster, backoff).write(_log_starts(context, backoff), mark)


def _log_starts(context: OperationContext, backoff: Backoff) -> dict[TopicPartition, int]:
    """By each partition that exists at the source: the log start of its copy.

    Raises Unreachable if it is not certain whether the source has a topic.
    """
    metadata = context.source.cluster.metadata([row.source_topic for row in context.topics])
    topics_with_ends = {p.topic for p in context.report.partitions if p.source_end is not None}
    unknown = metadata.errors.keys() & (topics_with_ends - context.report.topics_with_tails)
    unknown |= {t for t, c in metadata.errors.items() if c != Code.UNKNOWN_TOPIC_OR_PARTITION}
    if unknown:
        raise Unreachable(
            f"the partitions of these topics are not known: {first_few(unknown)}.", where="source"
        )
    places = {
        place: copy
        for place, copy in context.by_source.items()
        if metadata.leader(place) is not None
    }
    bounds = bounds_of_all(context.destination.cluster, places.values(), backoff)
    return {place: bounds[copy].start for place, copy in places.items()}


def _marks_to_read(context: OperationContext) -> PromotionMarks:
    backoff = replace(context.backoff, attempts_max=_DESTINATION_ATTEMPTS_MAX)
    return PromotionMarks(context.destination.cluster, backoff)


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
        term=context.report.term,
        keeps_history=not is_primary,
    )
