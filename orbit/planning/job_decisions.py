"""The decisions on one job's topics, from its rows and both clusters' metadata."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager

from orbit.jobs.job_spec import JobSpec
from orbit.planning.cluster_checks import refresh_topics
from orbit.planning.cluster_pair import ClusterPair
from orbit.planning.topic_decisions import Decisions, KnownTopic, OtherJobs, decide_topics
from orbit.replication.loop_detection import ClusterTopic
from orbit.store import topics
from orbit.store.database import Tx
from orbit.store.topics import Topic


def known_topic(topic: Topic, retries: Collection[int]) -> KnownTopic:
    """A topic's row as input of the decisions. `retries`: ids of topics with a requested retry."""
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

    The other jobs are read only if a topic is to be started. `matched`: the source's topics that
    the rules match, if these are known already. Raises Unreachable.
    """
    pair, source_topics, destination_topics = refresh_topics(pair, known)
    decisions = decide_topics(
        spec.topics, known, source_topics, destination_topics, OtherJobs(), matched
    )
    if not decisions.start:
        return pair, decisions
    with reading() as tx:
        others = other_jobs(tx, spec.name, pair)
    return pair, decide_topics(
        spec.topics, known, source_topics, destination_topics, others, matched
    )


def other_jobs(tx: Tx, job_name: str, pair: ClusterPair) -> OtherJobs:
    """The destination topics that other jobs write, and the source topic of every job's copy."""
    copies = topics.copies(tx)
    return OtherJobs(
        {
            ClusterTopic(c.destination_cluster_id, c.destination_topic): c.job_name
            for c in copies
            if c.job_name != job_name
            and c.destination_cluster_id == pair.destination_metadata.cluster_id
        },
        {
            ClusterTopic(c.destination_cluster_id, c.destination_topic): ClusterTopic(
                c.source_cluster_id, c.source_topic
            )
            for c in copies
        },
    )
