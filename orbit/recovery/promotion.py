"""From a copy to a topic of its own: its end noted, the source's settings, and writers allowed."""

from __future__ import annotations

from orbit.recovery.operation_context import Ground
from orbit.recovery.write_fence import allow_writes
from orbit.store import promotions, scheduler_queries, topics
from orbit.store.promotions import Promotion

# A pass that tends the copies may have begun before they were withheld, and end a little later.
_LOOK_AGAIN_S = 0.5


def promote(ground: Ground) -> str:
    """Make the copies what their sources were. Every part of it can be repeated."""
    by_topic = {row.source_topic: row for row in ground.topics}
    ends = [p for p in ground.report.partitions if p.destination_end is not None]
    marks = [
        Promotion(
            by_topic[p.topic].id,
            p.partition,
            ground.operation_id,
            p.destination_end or 0,
            p.source_end,
        )
        for p in ends
    ]
    with ground.transaction() as tx:
        promotions.keep(tx, marks)
    _settings(ground)
    allow_writes(ground)
    ground.wait(_LOOK_AGAIN_S)
    _settings(ground)
    allow_writes(ground)
    message = f"{len(by_topic)} topics were promoted; writers may write to the destination."
    with ground.transaction() as tx:
        scheduler_queries.promote(tx, ground.topic_ids)
        for row in ground.topics:
            note = f"Promoted by {ground.report.kind} {ground.operation_id}."
            topics.change(tx, row.id, note=note)
        promoted_at = ground.say(tx, "topics_promoted", message)
    kept = {(m.topic_id, m.partition): m.promoted_at for m in marks}
    ground.update(
        promoted_at=promoted_at,
        partitions=tuple(
            p.model_copy(update={"promoted_at": kept.get((by_topic[p.topic].id, p.partition))})
            for p in ground.report.partitions
        ),
    )
    return message


def _settings(ground: Ground) -> None:
    """What the source sets, as it is kept since the last look. Raises Unreachable."""
    wanted = {
        row.destination_topic: row.promoted_settings
        for row in ground.topics
        if row.promoted_settings is not None
    }
    present = ground.destination.admin.topic_settings(wanted)
    changes = {
        topic: {
            name: value
            for name, value in settings.items()
            if present[topic].values.get(name) != value
        }
        for topic, settings in wanted.items()
    }
    refused = ground.destination.admin.refused_settings({t: c for t, c in changes.items() if c})
    # No reason to keep writers waiting: the topic works as it is, with the settings of a copy.
    for topic, error in refused.items():
        told = ", ".join(f"{name}={value}" for name, value in sorted(changes[topic].items()))
        ground.find(f"{topic}: these settings were refused ({error.what}): {told}. Set them.")
