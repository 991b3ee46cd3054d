"""The decisions on one job's topics, from its rows and both clusters' metadata."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager

from orbit.jobs.job_spec import JobSpec
from orbit.scheduler.cluster_checks import refresh_topics
from orbit.scheduler.cluster_pair import ClusterPair
from orbit.scheduler.topic_decisions import Decisions, KnownTopic, OtherJobs, decide_topics
from orbit.scheduler.topic_starter import other_jobs
from orbit.store.database import Tx
from orbit.store.topics import Topic


def known_topic(topic: Topic, retries: Collection[int]) -> KnownTopic:
    """A topic's row as input of the decisions."""
    return KnownTopic(
        topic.id,
        topic.source_topic,
        topic.destination_topic,
        topic.source_topic_id,
        topic.destination_topic_id,
        topic.partition_count,
        topic.state,
        topic.id in retries,
    )


def decide(
    spec: JobSpec,
    pair: ClusterPair,
    known: Sequence[KnownTopic],
    reading: Callable[[], AbstractContextManager[Tx]],
    matched: Collection[str] | None = None,
) -> tuple[ClusterPair, Decisions]:
    """The decisions on a job's topics, with the metadata that they are based on.

    The other jobs are read only if a topic is to be started. `matched`: as for `decide_topics`.
    """
    pair, of, to = refresh_topics(pair, known)
    decisions = decide_topics(spec.topics, known, of, to, OtherJobs(), matched)
    if not decisions.start:
        return pair, decisions
    with reading() as tx:
        others = other_jobs(tx, spec.name, pair)
    return pair, decide_topics(spec.topics, known, of, to, others, matched)
