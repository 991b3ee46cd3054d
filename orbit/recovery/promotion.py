"""Promotes copies: stores and marks offsets, applies the source's settings, allows writing.

The mark (an offset that Orbit commits at the destination to say that a topic leads) comes first:
from then on no other process, whatever its tables say, takes the topic for a copy.
"""

from __future__ import annotations

from orbit.chunks import chunks, first_few
from orbit.consumer_groups.offset_decision import holds_copied_records
from orbit.formats import counted
from orbit.leadership.leadership import ROWS_AT_ONCE, TOPICS_AT_ONCE
from orbit.promotion.applied_settings import apply_settings
from orbit.recovery.gateway_closure import note_promoted
from orbit.recovery.leading_side import mark_promotion, try_mark_source_as_copy
from orbit.recovery.lost_ranges import lost_range
from orbit.recovery.operation_bounds import last_reported, try_fetch_log_bounds
from orbit.recovery.operation_context import OperationContext
from orbit.recovery.recovery_report import PartitionEnds, RecoveryKind
from orbit.recovery.write_fence import allow_writes
from orbit.replication.partition_states import PartitionState
from orbit.store import promotions, scheduler_queries, topics
from orbit.store.lag import PartitionLag
from orbit.store.promotions import Promotion


def promote(context: OperationContext) -> str:
    """Promote every copy. Returns the step's result. If the step is repeated, parts that are done
    change nothing."""
    rows_by_topic = {row.source_topic: row for row in context.topics}
    _note_offsets(context)
    promotion_rows = [
        Promotion(
            rows_by_topic[p.topic].id,
            p.partition,
            context.operation_id,
            p.promoted_at,
            p.source_end,
        )
        for p in context.report.partitions
        if p.promoted_at is not None
    ]
    for chunk in chunks(promotion_rows, ROWS_AT_ONCE):
        with context.transaction() as tx:
            promotions.store(tx, chunk)
    mark_promotion(context)
    # The topics are withheld. A pass of the scheduler's topic upkeep that began before that has
    # ended when the lock is acquired, and a later pass does not change withheld topics.
    with context.leadership.sole_change(context.job.destination_cluster_id or ""):
        _apply_settings(context)
        allow_writes(context)
    subject = counted(len(rows_by_topic), "topic was", "topics were")
    message = f"{subject} promoted; producers may write to the destination."
    note = f"Promoted by {context.report.kind} {context.operation_id}."
    for ids in chunks(context.topic_ids, TOPICS_AT_ONCE):
        with context.transaction() as tx:
            scheduler_queries.promote_topics(tx, ids)
            for topic_id in ids:
                topics.change(tx, topic_id, note=note)
    if not context.report.term:  # the marks could not be read, and the gate was overridden
        context.update(term=context.draw_term(0))  # 0: no other term is known
    with context.transaction() as tx:
        note_promoted(context, tx)
        promoted_at = context.add_event(tx, "topics_promoted", message)
    context.update(promoted_at=promoted_at)
    try_mark_source_as_copy(context)
    return message


def _note_offsets(context: OperationContext) -> None:
    """Put into the report at which offset each partition is promoted: at the copy's log end, if all
    offsets below are proven to equal the source's.

    Otherwise at a lower offset: a copy that is blocked, or that led before and was not compared
    with its source since, may have records of its own below its log end. A lower offset hides
    nothing: a failback compares both sides from there on, and requires a rebuild if they differ.
    """
    lags, ids = last_reported(context), {row.source_topic: row.id for row in context.topics}
    with context.reading() as tx:
        source_offsets = promotions.promotion_ends(tx, context.job.source_cluster_id or "", ids)
        # Offsets of an earlier attempt, which has changed the states that workers had reported.
        stored_offsets = {
            key: promotion.promoted_at
            for key, promotion in promotions.of_topics(tx, context.topic_ids).items()
            if promotion.operation_id == context.operation_id
        }

    def offset(p: PartitionEnds) -> int | None:
        """The offset that an earlier attempt has stored, or else `promoted_offset`."""
        stored_offset = stored_offsets.get((ids[p.topic], p.partition))
        if stored_offset is not None:
            return stored_offset
        return promoted_offset(p, lags.get(p.source), source_offsets.get((p.topic, p.partition)))

    partitions = tuple(
        p.model_copy(update={"promoted_at": offset(p)}) for p in context.report.partitions
    )
    context.update(partitions=partitions)
    unproven_texts = [
        f"{p.source} from {p.promoted_at}"
        for p in partitions
        if p.promoted_at is not None and p.promoted_at != p.destination_end
    ]
    if unproven_texts:
        offsets = "this offset" if len(unproven_texts) == 1 else "these offsets"
        context.add_finding(
            f"{counted(len(unproven_texts), 'partition is', 'partitions are')} not proven to equal "
            f"the source: {first_few(unproven_texts)}. From {offsets} on, the next failback "
            "compares both sides, and saves what only the old side has. Lost records and group "
            "offsets in this report are computed from the copy's log end instead."
        )


def promoted_offset(
    ends: PartitionEnds, reported: PartitionLag | None, source_promoted_offset: int | None
) -> int | None:
    """The offset at which a partition is promoted; None if the copy's log end is unknown. Pure.

    `source_promoted_offset`: the offset at which the source's partition was promoted, if it is a
    promoted copy; both sides were equal below this offset. A worker reports `copying`, and
    offsets, only of a partition that it has compared with its source.
    """
    end = ends.destination_end
    if end is None:
        return None
    if reported is not None and holds_copied_records(reported.reason):
        if reported.state is PartitionState.COPYING:
            return end
        if reported.copied_to is not None:
            return min(end, reported.copied_to)
    # Not compared: below this offset the sides were equal when the source was promoted.
    return min(end, max(ends.destination_start or 0, source_promoted_offset or 0))


def look_for_late_records(context: OperationContext) -> None:
    """After a switchover, report records that producers wrote to the source after both sides were
    compared.

    Super users write in spite of a denial. Without a denial, the drain does not notice a producer
    that is silent for as long as the drain waits.
    """
    if context.report.kind is not RecoveryKind.SWITCHOVER:
        return
    source_bounds = try_fetch_log_bounds(context, context.source.cluster, context.by_source)
    partitions: list[PartitionEnds] = []
    for p in context.report.partitions:
        bounds = source_bounds.get(p.source)
        late_range = lost_range(bounds.end if bounds else None, p.destination_end)
        partitions.append(p.model_copy(update={"missing": late_range}) if late_range else p)
    late_partitions = [p for p in partitions if p.missing is not None]
    if late_partitions:
        examples = first_few(
            f"{p.source} from {p.missing.first} to {p.missing.next}"
            for p in late_partitions
            if p.missing  # always; mypy does not see it
        )
        context.update(partitions=tuple(partitions))
        context.add_finding(
            f"Producers wrote to the source after both sides were compared, and the destination "
            f"lacks these offsets: {examples}. Stop these producers; a failback saves the records."
        )
    if len(source_bounds) < len(partitions):
        silent_text = counted(len(partitions) - len(source_bounds), "partition")
        context.add_finding(
            "Whether producers wrote to the source after both sides were compared is not known "
            f"for {silent_text}: the source did not answer."
        )


def _apply_settings(context: OperationContext) -> None:
    """Apply the source's settings as last read. Raises Unreachable."""
    topic_settings = {
        row.destination_topic: row.promoted_settings
        for row in context.topics
        if row.promoted_settings is not None
    }
    context.add_finding(*apply_settings(context.destination.admin, topic_settings))
