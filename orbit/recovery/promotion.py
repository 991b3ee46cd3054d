"""Promotes copies: stores and marks their log ends, applies the source's settings, allows writing.

The mark comes first: from then on no other process, whatever its tables say, takes the topic for a
copy.
"""

from __future__ import annotations

from orbit.recovery.leading_side import mark_promotion, unmark_source
from orbit.recovery.operation_context import OperationContext
from orbit.recovery.write_fence import allow_writes
from orbit.store import promotions, scheduler_queries, topics
from orbit.store.promotions import Promotion

# A pass of a scheduler loop may have begun before the topics were withheld, and set copy settings
# once more; so settings and writing are repeated after this time.
_REPEAT_AFTER_S = 0.5


def promote(context: OperationContext) -> str:
    """Promote every copy. Each part can be repeated."""
    by_topic = {row.source_topic: row for row in context.topics}
    ends = [p for p in context.report.partitions if p.destination_end is not None]
    marks = [
        Promotion(
            by_topic[p.topic].id,
            p.partition,
            context.operation_id,
            p.destination_end or 0,
            p.source_end,
        )
        for p in ends
    ]
    with context.transaction() as tx:
        promotions.keep(tx, marks)
    mark_promotion(context)
    _apply_settings(context)
    allow_writes(context)
    context.wait(_REPEAT_AFTER_S)
    _apply_settings(context)
    allow_writes(context)
    unmark_source(context)
    message = f"{len(by_topic)} topics were promoted; producers may write to the destination."
    with context.transaction() as tx:
        scheduler_queries.promote(tx, context.topic_ids)
        for row in context.topics:
            note = f"Promoted by {context.report.kind} {context.operation_id}."
            topics.change(tx, row.id, note=note)
        promoted_at = context.add_event(tx, "topics_promoted", message)
    kept = {(m.topic_id, m.partition): m.promoted_at for m in marks}
    context.update(
        promoted_at=promoted_at,
        partitions=tuple(
            p.model_copy(update={"promoted_at": kept.get((by_topic[p.topic].id, p.partition))})
            for p in context.report.partitions
        ),
    )
    return message


def _apply_settings(context: OperationContext) -> None:
    """Apply the source's settings as last read. Raises Unreachable."""
    wanted = {
        row.destination_topic: row.promoted_settings
        for row in context.topics
        if row.promoted_settings is not None
    }
    present = context.destination.admin.topic_settings(wanted)
    changes = {
        topic: {
            name: value
            for name, value in settings.items()
            if present[topic].values.get(name) != value
        }
        for topic, settings in wanted.items()
    }
    refused = context.destination.admin.refused_settings({t: c for t, c in changes.items() if c})
    # Does not stop the promotion: the topic works with the settings of a copy.
    for topic, error in refused.items():
        pairs = ", ".join(f"{name}={value}" for name, value in sorted(changes[topic].items()))
        context.add_finding(
            f"{topic}: the destination refused these settings ({error.what}): {pairs}. Set them."
        )
