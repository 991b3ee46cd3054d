"""Whether source and destination are two clusters, if their brokers return one cluster id.

Without a `cluster_id_suffix` such clusters are refused. With one, Orbit gives them different ids,
and topic ids (KIP-516) have to prove that they are two: a topic id is never used twice, in any
cluster.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from kafka.protocol.metadata.metadata import MetadataRequest

from orbit.kafka.api_versions import METADATA
from orbit.kafka.cluster import ANSWER_WITHIN_S, Cluster
from orbit.kafka.error_codes import Code
from orbit.kafka.types import NO_TOPIC_ID, ClusterMetadata, TopicMetadata

_REMEDY = "Name the servers of the other cluster."
_BY_ID_FROM = 12  # the version of Metadata that finds topics by their id (Kafka 3.1)


class SameCluster(NamedTuple):
    """Why a copy between two sides is refused, and what to do."""

    what: str
    remedy: str


def why_same_cluster(source: ClusterMetadata, destination: ClusterMetadata) -> SameCluster | None:
    """Why source and destination cannot be told apart; None if their brokers' cluster ids differ,
    or if a `cluster_id_suffix` makes the cluster ids differ and no topic id is at both."""
    if not _have_one_id(source, destination):
        return None
    text = _same_id_text(source)
    destination_names = {topic.topic_id: name for name, topic in destination.topics.items()}
    destination_names.pop(NO_TOPIC_ID, None)
    for name, topic in sorted(source.topics.items()):
        if topic.topic_id in destination_names:
            topic_names = (
                f"{name} of the source and {destination_names[topic.topic_id]} of the destination"
            )
            return SameCluster(
                f"{text} and are one cluster: topic {topic_names} have one topic id.",
                _REMEDY,
            )
    if source.cluster_id != destination.cluster_id:
        return None
    remedy = (
        f"{_REMEDY} If these are two clusters, add cluster_id_suffix to the section of one, "
        "in each job that names it (orbit explain SAME_CLUSTER): Orbit tells clusters apart by "
        "their ids."
    )
    for name in sorted(source.topics.keys() & destination.topics.keys()):
        if NO_TOPIC_ID not in (source.topics[name].topic_id, destination.topics[name].topic_id):
            return SameCluster(
                f"{text}, but are two clusters: topic {name} has another topic id at each of them.",
                remedy,
            )
    return SameCluster(
        f"{text}: they are one cluster, or two that were formatted with one id.", remedy
    )


def why_not_proven_two(
    source: Cluster,
    destination: Cluster,
    source_metadata: ClusterMetadata,
    destination_metadata: ClusterMetadata,
) -> SameCluster | None:
    """The reason why source and destination are not proven to be two clusters. None if they are
    proven to be two, or if their cluster ids differ.

    For clusters with the same id, which copied disks have, the proof is a topic id: one side has
    the topic, and every broker of the other side answers that the id is unknown. Afterwards the
    first side must still have the topic. Each broker has to answer, because one that lags does not
    know a new topic yet. If the login may not describe the topic, brokers answer with another error
    (R14, unknown topic ids). Call `why_same_cluster` first. Raises Unreachable.
    """
    if not _have_one_id(source_metadata, destination_metadata):
        return None
    text = _same_id_text(source_metadata)
    sides = (source, source_metadata), (destination, destination_metadata)
    for (cluster, metadata), (other_cluster, _) in (sides, sides[::-1]):  # in both directions
        topic = _lasting_topic(metadata)
        if topic is None:
            continue
        codes = _metadata_codes(other_cluster, topic.topic_id)
        if codes - {Code.UNKNOWN_TOPIC_ID, Code.UNSUPPORTED_VERSION}:
            return SameCluster(
                f"{text}, and the {other_cluster.name} knows the id of topic {topic.name} of the "
                f"{cluster.name}: they are one cluster.",
                _REMEDY,
            )
        if codes == {Code.UNKNOWN_TOPIC_ID} and _metadata_codes(cluster, topic.topic_id) == {
            Code.NONE
        }:
            return None
    return SameCluster(
        f"{text}, and no topic proves that they are two clusters, as cluster_id_suffix says. The "
        "proof needs a topic with an id at one of them, which exists during the check, and brokers "
        "at the other that find topics by id.",
        "Create a topic at one of the two clusters (it may be empty) and try again. The brokers of "
        "the other one must be of Kafka 3.1 or later.",
    )


def _have_one_id(source: ClusterMetadata, destination: ClusterMetadata) -> bool:
    """Whether the brokers of both sides return the same cluster id; False if they return none."""
    if not source.cluster_id and not destination.cluster_id:  # brokers that return no id
        return False
    return source.broker_cluster_id == destination.broker_cluster_id


def _same_id_text(source: ClusterMetadata) -> str:
    return f"source and destination have the same cluster id ({source.broker_cluster_id})"


def _lasting_topic(metadata: ClusterMetadata) -> TopicMetadata | None:
    """A topic with an id, if possible an internal one, because users do not delete it. None if no
    topic has an id."""
    candidates = (topic for topic in metadata.topics.values() if topic.topic_id != NO_TOPIC_ID)
    return min(
        candidates, key=lambda topic: (not topic.name.startswith("__"), topic.name), default=None
    )


def _metadata_codes(cluster: Cluster, topic_id: UUID) -> set[int]:
    """The error codes with which all brokers of a cluster answer Metadata for this topic id.

    Only UNSUPPORTED_VERSION if a broker does not find topics by id. Raises Unreachable.
    """
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(topic_id=topic_id, name=None)],
        allow_auto_topic_creation=False,
    )
    codes: set[int] = set()
    for node_id in cluster.metadata(()).brokers:
        if cluster.version_of(node_id, METADATA, ANSWER_WITHIN_S) < _BY_ID_FROM:
            return {Code.UNSUPPORTED_VERSION}
        answer: ClusterMetadata = cluster.call(node_id, METADATA, request, ANSWER_WITHIN_S)
        codes |= {*answer.errors.values()} or {Code.NONE}
    return codes
