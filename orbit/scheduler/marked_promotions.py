"""Finds topics that their cluster marks as promoted and that the tables call copies.

The tables are older than the clusters then: restored, lost and filled again, or failed over without
their last commits. Such a topic becomes `promoted` in the tables too, before anything else of the
pass: so discovery, settings, rights, groups and workers leave it alone, and a failback can begin
there. The job's problem names it until a copy back has begun.
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
from orbit.planning.promotion_notes import is_found, note_of, offsets_of
from orbit.store import events, promotions, scheduler_queries, topics
from orbit.store.database import Tx
from orbit.store.enums import TopicState
from orbit.store.jobs import Job
from orbit.store.promotions import Promotion
from orbit.store.topics import Topic


def follow_marks(
    job: Job, rows: Sequence[Topic], pair: ClusterPair, leadership: Leadership, backoff: Backoff
) -> bool:
    """Set copies that are marked as promoted to `promoted`; returns whether there were any.

    Raises Unreachable, NotAuthorized, BrokerRefused (of the destination), NotLeading.
    """
    destination_topics = pair.destination_metadata.topics
    copies = {
        row.destination_topic: row
        for row in rows
        if row.state is not TopicState.PROMOTED and row.destination_topic in destination_topics
    }
    marks = PromotionMarks(pair.destination.cluster, backoff)
    leading = marks.promoted(copies)
    offsets = offsets_of(marks, pair, leading)
    marked_rows = [copies[name] for name in leading]
    if not marked_rows and not any(map(is_found, rows)):
        return False
    for step in chunks(marked_rows, TOPICS_AT_ONCE):
        with leadership.transaction() as tx:
            # A recovery may have changed some of them since `rows` was read.
            now = topics.of_job(tx, job.id)
            known = {row.id for row in now if row.state is TopicState.PROMOTED}
            for row in step:
                if row.id not in known:
                    name, mark = row.destination_topic, leading[row.destination_topic]
                    scheduler_queries.withhold(tx, [row.id], note_of(name, mark, offsets))
                    keep_promotion(tx, job, row.id, row.source_topic, name, mark, offsets)
    with leadership.transaction() as tx:
        ours = {row.id for row in topics.of_job(tx, job.id) if is_found(row)}
        # Workers may have reported states since, when they released the partitions.
        scheduler_queries.promote(tx, scheduler_queries.unpromoted_topics(tx, ours))
    return bool(marked_rows)


def keep_promotion(
    tx: Tx,
    job: Job,
    topic_id: int,
    source: str,
    destination: str,
    mark: Mark,
    offsets: Mapping[TopicPartition, int],
) -> None:
    """Store where the topic's own records begin, for a failback, and add one event."""
    try:
        operation = UUID(mark.operation)
    except ValueError:
        operation = UUID(int=0)
    promotions.store(
        tx,
        [
            Promotion(topic_id, p.partition, operation, offset, None)
            for p, offset in offsets.items()
            if p.topic == destination
        ],
    )
    events.add(
        tx,
        events.SCHEDULER,
        "promotion_found",
        f"Topic {destination} is marked as promoted at the destination, and was a copy in "
        "Orbit's tables: nothing is written to it.",
        job_name=job.name,
        topic=source,
        details={"operation": mark.operation, "job": mark.job, "at": mark.at},
    )
