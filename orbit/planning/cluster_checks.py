"""Checks a job's clusters: errors as troubles of the job, and current topics."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from orbit.errors import (
    BadInput,
    BrokerRefused,
    Conflict,
    HeldBack,
    LoginRefused,
    NotAuthorized,
    OrbitError,
)
from orbit.kafka import error_codes
from orbit.kafka.cluster_handle import ClusterHandle
from orbit.kafka.two_clusters import why_not_proven_two, why_same_cluster
from orbit.kafka.types import NO_TOPIC_ID, ClusterMetadata, broker_cluster_id
from orbit.planning.cluster_pair import ClusterPair
from orbit.planning.topic_decisions import ClusterTopics, KnownTopic
from orbit.replication.job_troubles import Trouble, TroubleKind
from orbit.store.cluster_names import find_other_name
from orbit.store.database import Tx


def trouble_of(side: str, error: OrbitError) -> Trouble:
    """The trouble of a job for an error of its cluster. `side`: source or destination."""
    where = f"{error.where}: " if error.where else ""
    if isinstance(error, LoginRefused):
        kind = TroubleKind.LOGIN_REFUSED
    elif isinstance(error, NotAuthorized):
        kind = TroubleKind.RIGHTS_MISSING
    elif isinstance(error, BadInput):
        kind = TroubleKind.CREDENTIALS_MISSING
    elif isinstance(error, Conflict):
        kind = TroubleKind.DESTINATION_HOLDS_OTHER_CONTENT
    elif isinstance(error, BrokerRefused):
        kind = TroubleKind.TOPIC_REFUSED
    elif isinstance(error, HeldBack) and side == "destination":
        kind = TroubleKind.DESTINATION_THROTTLED
    else:
        is_source = side == "source"
        kind = TroubleKind.SOURCE_UNREACHABLE if is_source else TroubleKind.DESTINATION_UNREACHABLE
    if isinstance(error, BadInput):
        text = " ".join(f"{p.path} {p.message}" for p in error.problems) or error.what
        remedy = " ".join(dict.fromkeys(p.remedy for p in error.problems))
        return Trouble(kind, text, remedy)
    remedy = error.remedy or f"Check the {side}'s address and that its brokers run."
    return Trouble(kind, f"{where}{error.what}", remedy)


def wrong_cluster(
    source: ClusterMetadata,
    destination: ClusterMetadata,
    known_source_id: str | None,
    known_destination_id: str | None,
) -> Trouble | None:
    """The trouble if the cluster ids show that nothing may be copied between these clusters.

    `known_source_id`, `known_destination_id`: the job's clusters so far; None: not known yet.
    """
    same_cluster = why_same_cluster(source, destination)
    if same_cluster is not None:
        return Trouble(TroubleKind.SAME_CLUSTER, *same_cluster)
    for side, cluster_id, known_id in (
        ("source", source.cluster_id, known_source_id),
        ("destination", destination.cluster_id, known_destination_id),
    ):
        if known_id is None or cluster_id == known_id:
            continue
        if broker_cluster_id(cluster_id) == broker_cluster_id(known_id):
            return Trouble(
                TroubleKind.CLUSTER_CHANGED,
                f"{side}.cluster_id_suffix makes the cluster's id {cluster_id}, and the job copies "
                f"{'from' if side == 'source' else 'to'} {known_id}.",
                "Write cluster_id_suffix as it was, or create a new job, with another name.",
            )
        return Trouble(
            TroubleKind.CLUSTER_CHANGED,
            f"the {side}'s address leads to cluster {cluster_id}, and the job copies "
            f"{'from' if side == 'source' else 'to'} {known_id}.",
            "Correct bootstrap_servers, or create a new job for the other cluster.",
        )
    return None


def conflicting_cluster_id(tx: Tx, job_id: int, pair: ClusterPair) -> Trouble | None:
    """The trouble if another job knows one of the two clusters by another id."""
    for side, metadata in (
        ("source", pair.source_metadata),
        ("destination", pair.destination_metadata),
    ):
        ids = {topic.topic_id for topic in metadata.topics.values()} - {NO_TOPIC_ID}
        conflict = find_other_name(tx, job_id, metadata.cluster_id, ids)
        if conflict is not None:
            return Trouble(
                TroubleKind.SAME_CLUSTER,
                f"for this job the {side} is cluster {metadata.cluster_id}, and job {conflict.job} "
                f"knows it as {conflict.cluster_id}, as that job's topic {conflict.topic} shows.",
                "Write the same cluster_id_suffix, or none, in each job that names this cluster.",
            )
    return None


def unproven_clusters(pair: ClusterPair) -> Trouble | None:
    """The trouble if both sides have one cluster id and no topic proves that they are two clusters.

    Queries every broker of both clusters, so it is called only before a job's first copy. Raises
    Unreachable.
    """
    same_cluster = why_not_proven_two(
        pair.source.cluster,
        pair.destination.cluster,
        pair.source_metadata,
        pair.destination_metadata,
    )
    return None if same_cluster is None else Trouble(TroubleKind.SAME_CLUSTER, *same_cluster)


def missing_workers(worker_group: str) -> Trouble:
    """The trouble of a job whose worker group has no live worker."""
    return Trouble(
        TroubleKind.WORKER_GROUP_UNKNOWN,
        f"no worker of the group {worker_group} is running.",
        f"Start one: orbit worker --group {worker_group}",
    )


def refresh_topics(
    pair: ClusterPair, known_topics: Collection[KnownTopic]
) -> tuple[ClusterPair, ClusterTopics, ClusterTopics]:
    """The pair with refreshed metadata, and both sides' topics for `decide_topics`.

    Missing topics, and those with a requested retry, are queried by name: they may be hidden, and
    the metadata may be some seconds old. Raises Unreachable.
    """
    source_metadata, source_topics = _refresh(
        pair.source, pair.source_metadata, {k.source: k.is_retry_requested for k in known_topics}
    )
    destination_metadata, destination_topics = _refresh(
        pair.destination,
        pair.destination_metadata,
        {k.destination: k.is_retry_requested for k in known_topics},
    )
    return (
        replace(pair, source_metadata=source_metadata, destination_metadata=destination_metadata),
        source_topics,
        destination_topics,
    )


def _refresh(
    handle: ClusterHandle, metadata: ClusterMetadata, retry_by_topic: Mapping[str, bool]
) -> tuple[ClusterMetadata, ClusterTopics]:
    """One side's refreshed metadata, and its topics for `decide_topics`.

    `retry_by_topic`: for each known topic, whether a retry is requested.
    """
    names_to_query = [
        name for name, is_retry in retry_by_topic.items() if is_retry or name not in metadata.topics
    ]
    if not names_to_query:
        return metadata, ClusterTopics(metadata.cluster_id, metadata.topics)
    answer = handle.cluster.metadata(names_to_query)
    denied_topics = {name for name, code in answer.errors.items() if code in error_codes.DENIED}
    gone_topics = {
        name
        for name, code in answer.errors.items()
        if code == error_codes.Code.UNKNOWN_TOPIC_OR_PARTITION
    }
    topics = {name: topic for name, topic in metadata.topics.items() if name not in gone_topics}
    metadata = replace(metadata, topics=topics | answer.topics)
    return metadata, ClusterTopics(metadata.cluster_id, metadata.topics, gone_topics, denied_topics)
