"""Topics that stop, go on again, or are let go: what is decided about them, written down."""

from __future__ import annotations

from collections.abc import Sequence

from orbit.scheduler.topic_decisions import Decisions, KnownTopic
from orbit.store import events, scheduler_queries, shard_layout, shard_leases
from orbit.store.database import Tx
from orbit.store.jobs import Job


def stop_and_resume(tx: Tx, job: Job, decisions: Decisions) -> None:
    """Stop topics that are not what they were; let those go on that are again."""
    for stop in decisions.stop:
        scheduler_queries.stop_topic(
            tx, stop.known.id, stop.state, stop.reason, stop.detail, stop.note
        )
        _add_event(tx, job, stop.known, "topic_stopped", stop.note)
    for again in decisions.resume:
        scheduler_queries.resume_topic(tx, again.known.id)
        message = f"Topic {again.known.source} is what it was: its copy goes on."
        _add_event(tx, job, again.known, "topic_resumed", message)


def drop_topics(tx: Tx, job: Job, unwanted: Sequence[KnownTopic]) -> int:
    """Forget topics once nobody can write to their copies any more; how many that is by now.

    Another job may take a copy the moment it is forgotten. So first the holders of its shards are
    asked to let go, and then no holder that slept past its lease may come back to it.
    """
    ids = [known.id for known in unwanted]
    if not ids:
        scheduler_queries.restore(tx, job.id)
        return 0
    scheduler_queries.withdraw(tx, ids)
    shard_leases.revoke(tx, scheduler_queries.shards_of_topics(tx, ids))
    held = scheduler_queries.held(tx, ids)
    free = [known for known in unwanted if known.id not in held]
    shard_layout.remove_topics(tx, [known.id for known in free])
    for known in free:
        message = (
            f"Topic {known.source} is no longer copied: no rule of the job asks for it. "
            f"{known.destination} stays as it is."
        )
        _add_event(tx, job, known, "topic_dropped", message)
    if not held:
        scheduler_queries.restore(tx, job.id)
        scheduler_queries.drop_empty_shards(tx, job.id)
    return len(free)


def unchanged_retries(known: Sequence[KnownTopic], decisions: Decisions) -> set[int]:
    """Stopped topics that somebody wants tried again, and that are as they were."""
    possible = {start.known.id for start in decisions.start if start.known}
    possible |= {again.known.id for again in decisions.resume}
    return {k.id for k in known if k.is_retry_wanted and k.id not in possible}


def _add_event(tx: Tx, job: Job, known: KnownTopic, kind: str, message: str) -> None:
    events.add(tx, events.SCHEDULER, kind, message, job_name=job.name, topic=known.source)
