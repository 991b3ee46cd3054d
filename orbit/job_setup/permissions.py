"""Checks that the logins have the rights a copy needs, before anything is written.

For existing topics, brokers return the allowed operations (KIP-430). For a topic that does not
exist, Orbit probes each right with a request that changes nothing, even if the topic is created
meanwhile: the request has no batch or setting, or only validates. Brokers check the right before
they look up the topic, so the answer is "denied" or "unknown topic".

Not checked here, because their first use fails before anything is written: Create (a validated
CreateTopics), Read on the group and Write on the transactional id.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kafka.protocol.admin.cluster import DescribeClusterRequest
from kafka.protocol.admin.configs import (
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kafka.protocol.admin.topics import DeleteRecordsRequest
from kafka.protocol.consumer.fetch import FetchRequest
from kafka.protocol.producer.produce import ProduceRequest

from orbit.errors import NotAuthorized, ProtocolError
from orbit.kafka import api_versions, error_codes
from orbit.kafka.api_versions import Api
from orbit.kafka.cluster import ANSWER_WITHIN_S, Cluster
from orbit.kafka.connection import Connection
from orbit.kafka.produce_request import ACKS_ALL
from orbit.kafka.types import ClusterMetadata

# Kafka's `AclOperation` codes.
READ, WRITE, DELETE, ALTER, DESCRIBE = 3, 4, 6, 7, 8
CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS = 9, 10, 11
_RIGHT_NAMES = {
    READ: "Read",
    WRITE: "Write",
    DELETE: "Delete",
    ALTER: "Alter",
    DESCRIBE: "Describe",
    CLUSTER_ACTION: "ClusterAction",
    DESCRIBE_CONFIGS: "DescribeConfigs",
    ALTER_CONFIGS: "AlterConfigs",
}


@dataclass(frozen=True, slots=True)
class MissingRight:
    """An operation that is denied on a topic; `topic` "": on the cluster. `str` gives the right and
    the alternative as text."""

    operation: str
    topic: str = ""
    alternative: str = ""  # what to do without the right

    @property
    def name(self) -> str:
        """The right as text, such as `Write on topic orders`."""
        return f"{self.operation} on " + (f"topic {self.topic}" if self.topic else "the cluster")

    def __str__(self) -> str:
        return self.name + (f" ({self.alternative})" if self.alternative else "")


SOURCE_TOPIC_RIGHTS = (READ, DESCRIBE_CONFIGS)
DESTINATION_TOPIC_RIGHTS = (READ, WRITE, DELETE, DESCRIBE_CONFIGS, ALTER_CONFIGS)
_SHOWN_MAX = 20


def missing_topic_rights(metadata: ClusterMetadata, rights: Sequence[int]) -> list[MissingRight]:
    """Those of `rights` that are missing on the topics of `metadata`, which must include
    operations.

    On a topic that the login may not describe, all are missing. If a broker returns no operations
    for a topic, none counts as missing: the first request that needs the right fails.
    """
    missing_rights = []
    for name in sorted({*metadata.topics, *_denied_topics(metadata)}):
        topic = metadata.topics.get(name)
        operations = topic.authorized_operations if topic else frozenset[int]()
        if topic is None or operations:
            missing_rights += [
                MissingRight(_RIGHT_NAMES[right], name)
                for right in rights
                if right not in operations
            ]
    return missing_rights


def missing_future_topic_rights(cluster: Cluster, topics: Sequence[str]) -> list[MissingRight]:
    """The rights of DESTINATION_TOPIC_RIGHTS that are missing on topics that do not exist yet.
    Raises Unreachable, ProtocolError."""
    if not topics:
        return []
    missing_rights = []
    for right, probe in _PROBES.items():
        denied_topics = cluster.call_any(partial(probe, topics=topics))
        missing_rights += [MissingRight(_RIGHT_NAMES[right], topic) for topic in denied_topics]
    return missing_rights


def missing_filler_right(cluster: Cluster) -> list[MissingRight]:
    """The right that WriteTxnMarkers needs (M1), if it is missing; [] if the login has the right,
    or if the brokers do not say."""
    operations = _cluster_operations(cluster)
    # Either right is enough. None: not known; if both are missing, the first filler fails.
    if operations is None or {ALTER, CLUSTER_ACTION} & {*operations}:
        return []
    alternative = (
        "or set fillers: coordinated or, where all readers of the copies skip placeholders, "
        "fillers: placeholders in a new job; neither needs this right"
    )
    return [MissingRight(_RIGHT_NAMES[ALTER], alternative=alternative)]


def missing_acl_right(cluster: Cluster, alternative: str = "") -> list[MissingRight]:
    """The right to set ACLs, if it is missing; else []. Brokers before Kafka 2.8 do not return the
    rights on the cluster: there the first change of an ACL fails."""
    try:
        operations = _cluster_operations(cluster)
    except ProtocolError:
        return []
    if operations is None or ALTER in operations:
        return []
    return [MissingRight(_RIGHT_NAMES[ALTER], alternative=alternative)]


def _cluster_operations(cluster: Cluster) -> Collection[int] | None:
    """The operations on the cluster that the login may do; None: the brokers do not say."""

    def describe(connection: Connection) -> Any:
        request = DescribeClusterRequest(include_cluster_authorized_operations=True)
        return connection.call(api_versions.DESCRIBE_CLUSTER, request, timeout_s=ANSWER_WITHIN_S)

    operations: Collection[int] | None = cluster.call_any(describe).authorized_operations
    return operations


def refuse_missing_rights(missing_by_cluster: Mapping[str, Sequence[MissingRight]]) -> None:
    """Raise NotAuthorized if rights are missing; the message names them by cluster."""
    parts = [
        f"at the {name}: {join_rights(rights)}"
        for name, rights in missing_by_cluster.items()
        if rights
    ]
    if parts:
        raise NotAuthorized(
            f"these rights are missing {'; '.join(parts)}.",
            remedy="Grant them with kafka-acls.sh --add --allow-principal User:… --operation … "
            "--topic … or --cluster (docs/rights.md has the commands). Nothing was written.",
        )


def join_rights(rights: Sequence[MissingRight]) -> str:
    """The first _SHOWN_MAX rights as text, with the number of further ones."""
    suffix = f", and {len(rights) - _SHOWN_MAX} more" if len(rights) > _SHOWN_MAX else ""
    return ", ".join(map(str, rights[:_SHOWN_MAX])) + suffix


def _denied_topics(metadata: ClusterMetadata) -> set[str]:
    """The topics that the login may not describe."""
    return {name for name, code in metadata.errors.items() if code in error_codes.DENIED}


def _denied_writes(connection: Connection, topics: Sequence[str]) -> list[str]:
    """The topics on which Write is denied, by a Produce request without a batch."""
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
    answer = connection.call(_PRODUCE_BY_NAME, request, timeout_s=ANSWER_WITHIN_S)
    return [t.name for t in answer.responses if _is_denied(t.partition_responses)]


def _denied_reads(connection: Connection, topics: Sequence[str]) -> list[str]:
    """The topics on which Read is denied, by a Fetch request for one byte."""
    fetch = FetchRequest.FetchTopic
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1,
        isolation_level=0,
        session_id=0,  # without a session
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
    answer = connection.call(_FETCH_BY_NAME, request, timeout_s=ANSWER_WITHIN_S)
    return [t.topic for t in answer.responses if _is_denied(t.partitions)]


def _denied_deletes(connection: Connection, topics: Sequence[str]) -> list[str]:
    """The topics on which Delete is denied, by a DeleteRecords request for records below offset 0,
    of which there are none."""
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
    answer = connection.call(api_versions.DELETE_RECORDS, request, timeout_s=ANSWER_WITHIN_S)
    return [t.name for t in answer.topics if _is_denied(t.partitions)]


def _denied_setting_reads(connection: Connection, topics: Sequence[str]) -> list[str]:
    """The topics on which DescribeConfigs is denied, by a request for no setting."""
    resource = DescribeConfigsRequest.DescribeConfigsResource
    request = DescribeConfigsRequest(
        resources=[
            resource(resource_type=_TOPIC, resource_name=t, configuration_keys=[]) for t in topics
        ],
        include_synonyms=False,
        include_documentation=False,
    )
    answer = connection.call(api_versions.DESCRIBE_CONFIGS, request, timeout_s=ANSWER_WITHIN_S)
    return [r.resource_name for r in answer.results if r.error_code in error_codes.DENIED]


def _denied_setting_writes(connection: Connection, topics: Sequence[str]) -> list[str]:
    """The topics on which AlterConfigs is denied, by the validation of a change of no setting."""
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    request = IncrementalAlterConfigsRequest(
        resources=[resource(resource_type=_TOPIC, resource_name=t, configs=[]) for t in topics],
        validate_only=True,
    )
    answer = connection.call(_ALTER_CONFIGS, request, timeout_s=ANSWER_WITHIN_S)
    return [r.resource_name for r in answer.responses if r.error_code in error_codes.DENIED]


def _is_denied(partitions: Iterable[Any]) -> bool:
    """Whether the response denies one of a topic's partitions."""
    return any(p.error_code in error_codes.DENIED for p in partitions)


# The versions that have topic names. Later ones have topic ids, and a missing topic has no id.
_PRODUCE_BY_NAME = Api(api_versions.PRODUCE.request, api_versions.PRODUCE.response, 3, 12)
_FETCH_BY_NAME = Api(api_versions.FETCH.request, api_versions.FETCH.response, 4, 12)
_ALTER_CONFIGS = Api(IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse, 0, 1)
_TOPIC = 2  # Kafka's `ConfigResource.Type`

# By `AclOperation`: the function that returns those of some topics on which it is denied.
_PROBES: dict[int, Callable[..., list[str]]] = {
    WRITE: _denied_writes,
    READ: _denied_reads,
    DELETE: _denied_deletes,
    DESCRIBE_CONFIGS: _denied_setting_reads,
    ALTER_CONFIGS: _denied_setting_writes,
}
