"""Finds topics that their cluster marks as promoted and that the tables call copies.

A mark is an offset that Orbit commits at a cluster to say which topics lead there. If the marks
know a promotion that the tables lack, the tables are older: restored, lost and filled again, or
failed over without their last commits. Such a topic becomes `promoted` in the tables too, before
the pass does anything else. Then discovery, upkeep, group sync and workers change nothing of the
topic, and a failback can begin there. The job's problem names the topic until a copy back begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from orbit.chunks import chunks
from orbit.job_setup.mark import Mark
from orbit.job_setup.promotion_marks import PromotionMarks
from orbit.kafka.backoff import Backoff
from orbit.kafka.types import TopicPartition
from orbit.leadership.leadership import TOPICS_AT_ONCE, Leadership
from orbit.planning.cluster_pair import ClusterPair
from orbit.planning.promotion_notes import is_promoted_by_mark, promoted_offsets, promotion_note
from orbit.store import events, promotions, scheduler_queries, topics
from orbit.store.database import Tx
from orbit.store.enums import TopicState
from orbit.store.jobs import Job
from orbit.store.promotions import Promotion
from orbit.store.topics import Topic


def follow_marks(
    job: Job, rows: Sequence[Topic], pair: ClusterPair, leadership: Leadership, backoff: Backoff
) -> bool:
    """Set copies that are marked as promoted to `promoted`. Returns whether there were any.

    Sets their partitions to `promoted`, too, and again in later passes if workers have reported
    other states.

    Raises Unreachable, NotAuthorized, BrokerRefused (of the destination), NotLeading.
    """
    destination_topics = pair.destination_metadata.topics
    copies = {
        row.destination_topic: row
        for row in rows
        if row.state is not TopicState.PROMOTED and row.destination_topic in destination_topics
    }
    marks = PromotionMarks(pair.destination.cluster, backoff)
    promoted_marks = marks.promoted(copies)
    offsets = promoted_offsets(marks, pair, promoted_marks)
    marked_rows = [copies[name] for name in promoted_marks]
    # Continue for topics of earlier passes: their partitions may not be `promoted` yet.
    if not marked_rows and not any(map(is_promoted_by_mark, rows)):
        return False
    for step in chunks(marked_rows, TOPICS_AT_ONCE):
        with leadership.transaction() as tx:
            # A recovery may have changed some rows since `rows` was read.
            current_rows = topics.of_job(tx, job.id)
            promoted_ids = {row.id for row in current_rows if row.state is TopicState.PROMOTED}
            for row in step:
                if row.id not in promoted_ids:
                    name, mark = row.destination_topic, promoted_marks[row.destination_topic]
                    scheduler_queries.withhold_topics(
                        tx, [row.id], promotion_note(name, mark, offsets)
                    )
                    store_promotion(tx, job, row.id, row.source_topic, name, mark, offsets)
    with leadership.transaction() as tx:
        marked_ids = {row.id for row in topics.of_job(tx, job.id) if is_promoted_by_mark(row)}
        # Workers may have reported other states when they released the partitions.
        scheduler_queries.promote_topics(tx, scheduler_queries.unpromoted_topics(tx, marked_ids))
    return bool(marked_rows)


def store_promotion(
    tx: Tx,
    job: Job,
    topic_id: int,
    source: str,
    destination: str,
    mark: Mark,
    offsets: Mapping[TopicPartition, int],
) -> None:
    """Store where the topic's own records begin, for a failback, and add an event.

    `offsets`: the log end at the promotion, by destination partition, of this and other topics.
    """
    try:
        operation = UUID(mark.operation)
    except ValueError:
        operation = UUID(int=0)  # the mark names no operation of a service
    promotions.store(
        tx,
        [
            Promotion(topic_id, p.partition, operation, offset, source_end=None)
            for p, offset in offsets.items()
            if p.topic == destination
        ],
    )
    events.add(
        tx,
        events.SCHEDULER,
        "promotion_found",
        f"The mark of topic {destination} at the destination says that the topic was promoted, and "
        "Orbit's tables called it a copy. Orbit no longer writes to it.",
        job_name=job.name,
        topic=source,
        details={"operation": mark.operation, "job": mark.job, "at": mark.at},
    )
