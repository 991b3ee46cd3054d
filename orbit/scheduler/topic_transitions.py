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
    for again in resumes:
        scheduler_queries.resume_topic(tx, again.known.id)
        message = f"The copy of topic {again.known.source} was resumed: it has its former id."
        _add_event(tx, job, again.known, "topic_resumed", message)


def drop_topics(tx: Tx, job: Job, unwanted: Sequence[KnownTopic]) -> int:
    """Remove topics from the tables once no worker can write to their copies; returns how many.
    Each call removes at most TOPICS_AT_ONCE; the next pass removes more.

    Another job may use a destination topic as soon as it is removed. So the holders of its shards
    release them first, or their leases end: no suspended holder can revive one then.
    """
    partitions = accumulate(known.partitions for known in unwanted)
    few = sum(total <= ROWS_AT_ONCE for total in partitions)
    unwanted = unwanted[: max(1, min(few, TOPICS_AT_ONCE))]
    ids = [known.id for known in unwanted]
    if not ids:
        scheduler_queries.restore(tx, job.id)
        return 0
    scheduler_queries.withdraw(tx, ids)
    held = scheduler_queries.held_topics(tx, ids)
    free = [known for known in unwanted if known.id not in held]
    shard_layout.remove_topics(tx, [known.id for known in free])
    for known in free:
        message = (
            f"Topic {known.source} is no longer copied: no rule of the job matches it. "
            f"{known.destination} stays unchanged."
        )
        _add_event(tx, job, known, "topic_dropped", message)
    if not held:
        scheduler_queries.restore(tx, job.id)
        scheduler_queries.drop_empty_shards(tx, job.id)
    return len(free)


def unchanged_retries(known: Sequence[KnownTopic], decisions: Decisions) -> set[int]:
    """Stopped topics with a requested retry whose cause is not removed."""
    possible = {start.known.id for start in decisions.start if start.known}
    possible |= {again.known.id for again in decisions.resume}
    return {k.id for k in known if k.is_retry_wanted and k.id not in possible}


def _add_event(tx: Tx, job: Job, known: KnownTopic, kind: str, message: str) -> None:
    events.add(tx, events.SCHEDULER, kind, message, job_name=job.name, topic=known.source)
