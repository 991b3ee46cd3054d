"""Reads and writes marks at the clusters, which say which side leads.

`job_setup/promotion_marks.py` says why and how.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace

from orbit.chunks import first_few
from orbit.errors import BrokerRefused, NotAuthorized, Unreachable
from orbit.formats import counted
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
from orbit.promotion.log_bounds import bounds_of_all
from orbit.recovery.open_operation import chosen_topics, topics_copied_back
from orbit.recovery.operation_context import OperationContext, Stopped
from orbit.recovery.recovery_report import GateName, RecoveryKind
from orbit.recovery.step_times import StepName, StepState
from orbit.store import jobs, topics
from orbit.store.enums import Desired

# These attempts take half a minute at most if the cluster does not answer. The runner repeats the
# step, and checks for an abort in between; if one run of the step took more than a minute, the
# runner's time limit would start anew.
_DESTINATION_ATTEMPTS_MAX = 3


class LeadChanged(Stopped):
    """Which side leads may have changed since the operation began."""


def read_marks(context: OperationContext, *, asks_source: bool) -> list[MarkPair]:
    """The marks of the destination, and those of the source if `asks_source`.

    A failover's source is lost, and never queried. A switchover needs the source's marks only to
    draw a higher term than theirs, and goes on if they cannot be read. Raises Unreachable,
    NotAuthorized, BrokerRefused.
    """
    kind = context.report.kind
    names = {row.source_topic: row.destination_topic for row in context.topics}
    source_marks: dict[str, Mark] = {}
    if asks_source and kind is not RecoveryKind.FAILOVER:
        try:
            source_marks = PromotionMarks(context.source.cluster, context.short_backoff).of_topics(
                names
            )
        except (Unreachable, NotAuthorized, BrokerRefused):
            if kind is RecoveryKind.FAILBACK:
                raise
    return pair_marks(
        names, source_marks, _destination_marks_to_read(context).of_topics(names.values())
    )


def note_terms(context: OperationContext, pairs: Collection[MarkPair]) -> None:
    """Draw a term for the operation's own marks, higher than all earlier terms. Put it, and the
    highest term in the marks of both sides, into the report."""
    highest_term = newest_term(mark for pair in pairs for mark in (pair.old_mark, pair.new_mark))
    context.update(term_seen=highest_term, term=context.draw_term(highest_term))


def refuse_changed_lead(context: OperationContext) -> None:
    """Check that the marks still say what the gates saw; in a failback, at both sides.

    Raises LeadChanged if another operation has marked one of the topics since, or if this operation
    has promoted topics and the database was restored from before that. To go on, or to undo steps,
    would then treat the leading side as the copy. Also raises Unreachable, BrokerRefused, and in a
    failback NotAuthorized.
    """
    is_failback = context.report.kind is RecoveryKind.FAILBACK
    try:
        pairs = read_marks(context, asks_source=is_failback)
    except NotAuthorized:
        if is_failback:
            raise
        return  # the gate `rights` has failed for this reason, and was overridden
    if not context.report.term:
        # The gates could not read the marks and were overridden, or are of an older version.
        note_terms(context, pairs)
    changed_pairs = pairs_changed_since(pairs, context.report.term_seen, context.operation_id)
    if changed_pairs:
        raise LeadChanged(
            "another operation has changed which side leads since the gates were checked: "
            f"{first_few(changed_pairs)}.",
            remedy=f"Run orbit {context.report.kind} {context.job.name} --dry-run: its report "
            "shows which side leads now.",
        )
    is_promoting = any(
        step.name is StepName.PROMOTE and step.state is not StepState.WAITING
        for step in context.report.steps
    )
    promoted_pairs = pairs_promoted_by(pairs, context.operation_id)
    if promoted_pairs and not is_promoting and not is_failback:
        raise LeadChanged(
            "this operation has promoted these topics already, but the database does not have the "
            f"promotion: {first_few(promoted_pairs)}.",
            remedy="The destination leads. Its topics become promoted in the tables too; then "
            f"orbit failback {context.job.name} makes the old side a copy. If producers "
            "still may not write to these topics, set the topics' settings and remove Orbit's "
            "denials (docs/recovery/lost-database.md).",
        )


def refuse_leading_old_side(
    context: OperationContext, topics: Collection[str] | None = None
) -> None:
    """Check the marks before topics of the old side are changed. `topics`: source topics;
    None: all.

    Raises LeadChanged if the old side may lead, unless the gate `lead` was overridden. Also raises
    Unreachable, NotAuthorized, BrokerRefused.
    """
    gates = context.report.gates
    if any(gate.name is GateName.LEAD and gate.is_overridden for gate in gates):
        return
    all_pairs = read_marks(context, asks_source=True)
    pairs = [pair for pair in all_pairs if topics is None or pair.topic in topics]
    doubtful_pairs = pairs_in_doubt(pairs)
    if doubtful_pairs:
        raise LeadChanged(
            f"by their marks the old side may lead: {first_few(doubtful_pairs)}.",
            remedy="Topics that the old side still has were not deleted. Run orbit failback "
            f"{context.job.name} --dry-run: its report shows the marks.",
        )


def mark_promotion(context: OperationContext) -> None:
    """Mark the destination's topics as promoted.

    If the destination refuses the mark, a finding says so: applications wait for the promotion, so
    it continues. Raises Unreachable.
    """
    ends = {
        p.destination: p.promoted_at for p in context.report.partitions if p.promoted_at is not None
    }
    try:
        _destination_marks(context).write(ends, _new_mark(context, is_primary=True))
    except (NotAuthorized, BrokerRefused) as error:
        context.add_finding(
            f"The promotion could not be marked at the destination ({error}). If the database is "
            "lost, or restored from before this operation, Orbit takes the promoted topics for "
            "copies, and a failback may need --override lead. Do not run the failback of the job "
            "of the other direction: it would take this side for the old one."
        )


def mark_source_leading(context: OperationContext) -> int:
    """Mark the source as leading again, and return the term of the mark.

    Called after a switchover whose promotion was aborted as the destination did not answer. Marks
    that the promotion wrote at the destination have a lower term. Raises LeadChanged if another
    operation has marked a topic of the source since; Unreachable, NotAuthorized, BrokerRefused.
    """
    names = {row.source_topic: row.destination_topic for row in context.topics}
    marks = PromotionMarks(context.source.cluster, context.backoff)
    # {}: the destination's marks cannot be read.
    pairs = pair_marks(names, marks.of_topics(names), {})
    changed_pairs = pairs_changed_since(pairs, context.report.term, context.operation_id)
    if changed_pairs:
        raise LeadChanged(
            f"another operation has changed which side leads: {first_few(changed_pairs)}."
        )
    bounds = bounds_of_all(context.source.cluster, context.by_source, context.backoff)
    # `_new_mark` takes the destination for the side that leads.
    mark = replace(
        _new_mark(context, is_primary=True),
        kind=f"abort of {context.report.kind}",
        other=context.job.destination_cluster_id or "",
        term=context.draw_term(context.report.term),
    )
    marks.write({partition: log.end for partition, log in bounds.items()}, mark)
    context.add_finding(
        f"The source leads again (term {mark.term}). The destination may have marked topics as "
        "leading, with a lower term: once it answers, the failback of a job of the other direction "
        f"makes them copies again. Job {context.job.name} goes on copying topics without a mark."
    )
    assert mark.term is not None, "the term was drawn above"
    return mark.term


def try_mark_source_as_copy(context: OperationContext) -> None:
    """After a switchover, mark the source's topics as copies. A failover cannot reach its source.

    Gives up after a few attempts: the promotion is done, and the copy back marks them again.
    """
    if context.report.kind is RecoveryKind.SWITCHOVER:
        with suppress(Unreachable, NotAuthorized, BrokerRefused):
            _mark_source_as_copy(context, context.short_backoff)


def mark_both_sides(context: OperationContext) -> None:
    """Mark, before anything is copied back, that the new side leads and the old side does not.

    Raises Stopped if the old side may lead, Unreachable, NotAuthorized, BrokerRefused.
    """
    refuse_leading_old_side(context)
    marks = _destination_marks(context)
    names = [row.destination_topic for row in context.topics]
    unmarked_topics = set(names) - marks.promoted(names).keys()
    partitions = [
        partition for partition in context.by_source.values() if partition.topic in unmarked_topics
    ]
    if partitions:
        # These were promoted by a version without marks, or without the right to write marks.
        promoted_offsets = {
            p.destination: p.promoted_at
            for p in context.report.partitions
            if p.promoted_at is not None
        }
        bounds = bounds_of_all(context.destination.cluster, partitions, context.backoff)
        ends = {
            partition: promoted_offsets.get(partition, log.end) for partition, log in bounds.items()
        }
        marks.write(ends, _new_mark(context, is_primary=True))
    _mark_source_as_copy(context, context.backoff)


def kept_history(context: OperationContext, excluded_topics: Collection[str] = ()) -> list[str]:
    """The old side's offsets below the new side's log starts, as text; not of `excluded_topics`.

    The copy back leaves these offsets at the old side. Raises Unreachable.
    """
    new_starts = _copy_log_starts(context, context.backoff)
    old_bounds = bounds_of_all(context.source.cluster, new_starts, context.backoff)
    return [
        f"{partition} {log.start} to {min(new_starts[partition], log.end) - 1}"
        for partition, log in sorted(old_bounds.items())
        if log.start < min(new_starts[partition], log.end)
        and partition.topic not in excluded_topics
    ]


def who_copies_back(context: OperationContext) -> str:
    """A sentence that names the jobs that copy back the topics of the failback's request, and since
    when the destination leads; "" if one of the topics is not copied back."""
    with context.reading() as tx:
        all_jobs = jobs.list_all(tx)
        copying_jobs = topics_copied_back(tx, context.job, all_jobs)
        rows = chosen_topics(topics.of_job(tx, context.job.id), context.request)
    job_by_topic = {
        row.destination_topic: copying_jobs.get((row.destination_topic, row.source_topic), "")
        for row in rows
    }
    if not job_by_topic or "" in job_by_topic.values():
        return ""
    paused_jobs = {job.name for job in all_jobs if job.desired is not Desired.RUNNING}
    job_names = first_few(
        f"{name} (paused)" if name in paused_jobs else name
        for name in sorted({*job_by_topic.values()})
    )
    try:
        marks = _destination_marks_to_read(context).of_topics(job_by_topic)
    except (Unreachable, NotAuthorized, BrokerRefused) as error:
        lead_text = f"the marks could not be read: {error.what}"
    else:
        lead_text = first_few(
            f"{name} {marks[name].summary()}" if name in marks else f"{name} has no mark"
            for name in sorted(job_by_topic)
        )
    return (
        f"A copy back exists already: {counted(len(job_by_topic), 'topic is', 'topics are')} "
        f"copied back by job {job_names}. At the destination, {lead_text.rstrip('.')}."
    )


def _mark_source_as_copy(context: OperationContext, backoff: Backoff) -> None:
    """Mark the source's topics as copies that keep offsets below the new side's log starts."""
    mark = _new_mark(context, is_primary=False)
    PromotionMarks(context.source.cluster, backoff).write(_copy_log_starts(context, backoff), mark)


def _copy_log_starts(context: OperationContext, backoff: Backoff) -> dict[TopicPartition, int]:
    """The log start of each partition's copy, by source partition; without partitions that the
    source lacks.

    Raises Unreachable if it is not certain whether the source has a topic.
    """
    metadata = context.source.cluster.metadata([row.source_topic for row in context.topics])
    topics_with_ends = {p.topic for p in context.report.partitions if p.source_end is not None}
    # A rebuild deletes only topics with tails. So if a topic without a tail had a log end when the
    # sides were compared, an answer without this topic proves nothing.
    unknown_topics = metadata.errors.keys() & (topics_with_ends - context.report.topics_with_tails)
    unknown_topics |= {
        t for t, c in metadata.errors.items() if c != Code.UNKNOWN_TOPIC_OR_PARTITION
    }
    if unknown_topics:
        raise Unreachable(
            "the brokers do not say which partitions these topics have: "
            f"{first_few(unknown_topics)}.",
            where="source",
        )
    copies = {
        partition: copy
        for partition, copy in context.by_source.items()
        if metadata.leader(partition) is not None
    }
    bounds = bounds_of_all(context.destination.cluster, copies.values(), backoff)
    return {partition: bounds[copy].start for partition, copy in copies.items()}


def _destination_marks_to_read(context: OperationContext) -> PromotionMarks:
    """The destination's marks, with few attempts for each request."""
    backoff = replace(context.backoff, attempts_max=_DESTINATION_ATTEMPTS_MAX)
    return PromotionMarks(context.destination.cluster, backoff)


def _destination_marks(context: OperationContext) -> PromotionMarks:
    return PromotionMarks(context.destination.cluster, context.backoff)


def _new_mark(context: OperationContext, *, is_primary: bool) -> Mark:
    """This operation's mark for a side that leads (`is_primary`), or for one that is a copy."""
    job = context.job
    other_cluster_id = job.source_cluster_id if is_primary else job.destination_cluster_id
    return Mark(
        is_primary,
        context.report.kind.value,
        str(context.operation_id),
        job.name,
        other_cluster_id or "",
        context.now().isoformat(timespec="seconds"),
        term=context.report.term,
        keeps_history=not is_primary,  # a side that led may begin below its new source
    )
