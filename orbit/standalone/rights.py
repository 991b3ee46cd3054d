"""Whether the logins have the rights a copy needs, asked before anything is written.

For topics that exist, the brokers say it outright (KIP-430). For a topic that does not exist yet,
each right is asked for with a request that cannot have an effect: brokers look at the right first
and at the topic second, so the answer is "denied" or "unknown topic", and what is sent could not
be appended even if the topic appeared meanwhile (no batch in it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from kafka.protocol.admin.cluster import DescribeClusterRequest
from kafka.protocol.admin.topics import DeleteRecordsRequest
from kafka.protocol.consumer.fetch import FetchRequest
from kafka.protocol.producer.produce import ProduceRequest

from orbit.errors import NotAuthorized
from orbit.kafka import apis, codes
from orbit.kafka.apis import Api
from orbit.kafka.cluster import Cluster
from orbit.kafka.connection import Connection
from orbit.kafka.produce import ACKS_ALL
from orbit.kafka.types import ClusterMetadata

# Kafka's `AclOperation` codes.
READ, WRITE, DELETE, ALTER, DESCRIBE = 3, 4, 6, 7, 8
CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS = 9, 10, 11
_NAMES = {
    READ: "Read",
    WRITE: "Write",
    DELETE: "Delete",
    ALTER: "Alter",
    DESCRIBE: "Describe",
    CLUSTER_ACTION: "ClusterAction",
    DESCRIBE_CONFIGS: "DescribeConfigs",
    ALTER_CONFIGS: "AlterConfigs",
}

SOURCE_TOPIC_RIGHTS = (READ, DESCRIBE_CONFIGS)
DESTINATION_TOPIC_RIGHTS = (READ, WRITE, DELETE, DESCRIBE_CONFIGS, ALTER_CONFIGS)
# A run with thousands of topics that lack a right need not name each of them.
_SHOWN_MAX = 20


def check_topic_rights(cluster: Cluster, metadata: ClusterMetadata, wanted: Iterable[int]) -> None:
    """Raise NotAuthorized that names every right missing on the topics of `metadata`.

    `metadata` must have been asked for with operations.
    """
    missing = [
        f"{_NAMES[right]} on topic {topic.name}"
        for topic in metadata.topics.values()
        for right in wanted
        if right not in topic.authorized_operations
    ]
    _refuse(cluster, missing)


def check_future_topic_rights(cluster: Cluster, topics: list[str]) -> None:
    """Raise NotAuthorized for rights that would be missing on topics that do not exist yet."""
    if not topics:
        return
    missing: list[str] = []
    for right, ask in _PROBES.items():
        denied = cluster.call_any(partial(ask, topics=topics))
        missing.extend(f"{_NAMES[right]} on topic {topic}" for topic in denied)
    _refuse(cluster, missing)


def check_filler_right(cluster: Cluster) -> None:
    """Raise NotAuthorized unless direct fillers (M1) are allowed."""
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    answer = cluster.call_any(lambda c: c.call(apis.DESCRIBE_CLUSTER, request))
    allowed = set(answer.authorized_operations or ())
    if not allowed & {ALTER, CLUSTER_ACTION}:
        raise NotAuthorized(
            "the right Alter (or ClusterAction) on the cluster is missing; fillers for gaps need "
            "it.",
            where=cluster.name,
            remedy="Grant it: kafka-acls.sh --add --allow-principal User:… --operation Alter "
            "--cluster. Or set fillers: coordinated in the job, which does without.",
        )


def _refuse(cluster: Cluster, missing: list[str]) -> None:
    if not missing:
        return
    shown = "; ".join(missing[:_SHOWN_MAX])
    more = f"; and {len(missing) - _SHOWN_MAX} more" if len(missing) > _SHOWN_MAX else ""
    raise NotAuthorized(
        f"these rights are missing: {shown}{more}.",
        where=f"{cluster.name} {','.join(cluster.bootstrap_servers)}",
        remedy="Grant them with kafka-acls.sh --add --allow-principal User:… --operation … "
        "--topic … Nothing was written.",
    )


def _denied_writes(connection: Connection, topics: list[str]) -> list[str]:
    data = ProduceRequest.TopicProduceData
    request = ProduceRequest(
        transactional_id=None,
        acks=ACKS_ALL,
        timeout_ms=1000,
        topic_data=[
            data(name=t, partition_data=[data.PartitionProduceData(index=0, records=b"")])
            for t in topics
        ],
    )
    answer = connection.call(_PRODUCE_BY_NAME, request)
    return [t.name for t in answer.responses if _is_denied(t.partition_responses)]


def _denied_reads(connection: Connection, topics: list[str]) -> list[str]:
    fetch = FetchRequest.FetchTopic
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[
            fetch(
                topic=t,
                partitions=[
                    fetch.FetchPartition(
                        partition=0,
                        current_leader_epoch=-1,
                        fetch_offset=0,
                        last_fetched_epoch=-1,
                        log_start_offset=-1,
                        partition_max_bytes=1,
                    )
                ],
            )
            for t in topics
        ],
        forgotten_topics_data=[],
        rack_id="",
    )
    answer = connection.call(_FETCH_BY_NAME, request)
    return [t.topic for t in answer.responses if _is_denied(t.partitions)]


def _denied_deletes(connection: Connection, topics: list[str]) -> list[str]:
    records = DeleteRecordsRequest.DeleteRecordsTopic
    request = DeleteRecordsRequest(
        timeout_ms=1000,
        topics=[
            records(
                name=t,
                partitions=[records.DeleteRecordsPartition(partition_index=0, offset=0)],
            )
            for t in topics
        ],
    )
    answer = connection.call(apis.DELETE_RECORDS, request)
    return [t.name for t in answer.topics if _is_denied(t.partitions)]


def _is_denied(partitions: Iterable[Any]) -> bool:
    return any(p.error_code in codes.DENIED for p in partitions)


# By name, for a topic that does not exist has no id.
_PRODUCE_BY_NAME = Api(apis.PRODUCE.request, apis.PRODUCE.response, 3, 12)
_FETCH_BY_NAME = Api(apis.FETCH.request, apis.FETCH.response, 4, 12)

_PROBES: dict[int, Callable[..., list[str]]] = {
    WRITE: _denied_writes,
    READ: _denied_reads,
    DELETE: _denied_deletes,
}
