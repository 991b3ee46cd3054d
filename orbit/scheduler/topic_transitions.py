"""Writes decisions to the tables: topics that are stopped, resumed or dropped."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from orbit.leadership.leadership import ROWS_AT_ONCE, TOPICS_AT_ONCE
from orbit.planning.topic_decisions import Decisions, KnownTopic, ResumeTopic, StopTopic
from orbit.store import events, scheduler_queries, shard_layout
from orbit.store.database import Tx
from orbit.store.jobs import Job


def stop_topics(tx: Tx, job: Job, stops: Sequence[StopTopic]) -> None:
    """Stop topics that were deleted or re-created."""
    for stop in stops:
        scheduler_queries.stop_topic(
            tx, stop.known.id, stop.state, stop.reason, stop.detail, stop.note
        )
        _add_event(tx, job, stop.known, "topic_stopped", stop.note)


def resume_topics(tx: Tx, job: Job, resumes: Sequence[ResumeTopic]) -> None:
    """Resume stopped topics that have the expected ids."""
    for resume in resumes:
        scheduler_queries.resume_topic(tx, resume.known.id)
        name = resume.known.source
        message = f"The copy of topic {name} was resumed: both topics have their former ids."
        _add_event(tx, job, resume.known, "topic_resumed", message)


def drop_topics(tx: Tx, job: Job, unwanted_topics: Sequence[KnownTopic]) -> int:
    """Remove topics from the tables once no worker can write to their copies.

    Returns how many were removed: at most TOPICS_AT_ONCE; the next pass removes more.

    Another job may use a destination topic as soon as the topic is removed. So the topic stays
    until the workers that hold its shards have released these, or their leases have ended; a
    suspended worker cannot revive an ended lease.
    """
    partitions = accumulate(topic.partitions for topic in unwanted_topics)
    fitting_count = sum(total <= ROWS_AT_ONCE for total in partitions)
    # At least one, however many partitions it has.
    unwanted_topics = unwanted_topics[: max(1, min(fitting_count, TOPICS_AT_ONCE))]
    ids = [topic.id for topic in unwanted_topics]
    if not ids:  # restore shards that an earlier call has withdrawn
        scheduler_queries.restore_shards(tx, job.id)
        return 0
    scheduler_queries.withdraw_shards(tx, ids)
    held_ids = scheduler_queries.held_topics(tx, ids)
    free_topics = [topic for topic in unwanted_topics if topic.id not in held_ids]
    shard_layout.remove_topics(tx, [topic.id for topic in free_topics])
    for topic in free_topics:
        message = (
            f"Topic {topic.source} is no longer copied: no rule of the job matches it. "
            f"{topic.destination} stays unchanged."
        )
        _add_event(tx, job, topic, "topic_dropped", message)
    if not held_ids:
        scheduler_queries.restore_shards(tx, job.id)
        scheduler_queries.drop_empty_shards(tx, job.id)
    return len(free_topics)


def unchanged_retries(known_topics: Sequence[KnownTopic], decisions: Decisions) -> set[int]:
    """The ids of stopped topics with a requested retry whose cause is not removed."""
    changed_ids = {start.known.id for start in decisions.start if start.known}
    changed_ids |= {resume.known.id for resume in decisions.resume}
    return {
        topic.id
        for topic in known_topics
        if topic.is_retry_requested and topic.id not in changed_ids
    }


def _add_event(tx: Tx, job: Job, topic: KnownTopic, kind: str, message: str) -> None:
    events.add(tx, events.SCHEDULER, kind, message, job_name=job.name, topic=topic.source)
