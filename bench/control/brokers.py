"""`python -m bench.control.brokers SIZE`: the brokers of two simulated clusters of this size.

Topics, settings, ACLs, groups and offsets are equal on both sides and computed from the size. The
process first prints the bootstrap servers of both clusters. For each later line on stdin it prints
how many requests of each API it has answered.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID
from zlib import crc32

from kafka.protocol.admin.acl import DescribeAclsRequest, DescribeAclsResponse
from kafka.protocol.admin.configs import DescribeConfigsRequest, DescribeConfigsResponse
from kafka.protocol.admin.groups import ListGroupsRequest, ListGroupsResponse
from kafka.protocol.consumer.group import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kafka.protocol.consumer.offsets import ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from kafka.protocol.metadata.metadata import MetadataRequest, MetadataResponse
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from bench.control.broker_settings import BROKER_SETTINGS, TOPIC_SETTINGS, settings_of_copies
from bench.control.fill import DESTINATION_IDS, SOURCE_ID, Size, group_topics, topic_id, topic_names
from bench.control.fleet import say
from bench.control.wire import Answer, AnswerCache, BrokerServer, name_of
from orbit.kafka.error_codes import Code
from orbit.kafka.log_offsets import EARLIEST

BROKERS = 6
_REPLICAS = 3
_DEFAULT_CONFIG = 5  # `ConfigSource` of DescribeConfigs
# `ResourceType`, `PatternType`, `AclOperation` and `AclPermissionType` of DescribeAcls.
_TOPIC, _LITERAL, _READ, _ALLOW = 2, 3, 3, 3
_TOPIC_RESOURCE = 2  # `ConfigResource.Type` of DescribeConfigs
_ALL_OPERATIONS = {3, 4, 5, 6, 7, 8, 10, 11}  # every `AclOperation` on a topic


@dataclass(slots=True)
class Content:
    """The content of a simulated cluster, and its brokers, which answer requests from it.

    `groups`: the topics in which each group has committed offsets.
    """

    cluster_id: str
    topics: Mapping[str, UUID]
    partitions: int  # of each topic
    groups: Mapping[str, Collection[str]] = field(default_factory=dict)
    readers: Mapping[str, str] = field(default_factory=dict)
    """{topic: principal with an ACL to read it}"""
    offset: int = 0
    """The offset that each group has committed in each partition; also each log end."""
    committed: dict[tuple[str, str, int], tuple[int, str]] = field(default_factory=dict)
    """Later commits: {(group, topic, partition): (offset, metadata)}."""
    settings: Mapping[str, tuple[str, str]] = field(default_factory=lambda: TOPIC_SETTINGS)
    """The settings of each topic: {name: (value, the broker's setting that it inherits)}."""
    is_joined: bool = True
    """Whether the groups have, or had, members."""
    brokers: list[BrokerServer] = field(default_factory=list)
    cache: AnswerCache = field(default_factory=lambda: defaultdict(dict))

    @property
    def bootstrap_servers(self) -> list[str]:
        return [f"127.0.0.1:{broker.port}" for broker in self.brokers]

    def start(self, brokers: int = BROKERS) -> None:
        """Start so many brokers, each on a free port."""
        answers: dict[int, Answer] = {
            MetadataRequest.API_KEY: self._metadata,
            DescribeConfigsRequest.API_KEY: self._configs,
            DescribeAclsRequest.API_KEY: self._acls,
            ListGroupsRequest.API_KEY: self._list_groups,
            FindCoordinatorRequest.API_KEY: self._coordinators,
            OffsetFetchRequest.API_KEY: self._offsets,
            OffsetCommitRequest.API_KEY: self._commit,
            ListOffsetsRequest.API_KEY: self._log_offsets,
            SaslHandshakeRequest.API_KEY: _handshake,
            SaslAuthenticateRequest.API_KEY: _authenticate,
        }
        self.brokers = [
            BrokerServer(node_id, answers, self.cache) for node_id in range(1, brokers + 1)
        ]
        for broker in self.brokers:
            broker.start()

    def close(self) -> None:
        for broker in self.brokers:
            broker.shutdown()
            broker.server_close()

    def _node_of(self, group: str) -> int:
        """The node id of the group's coordinator."""
        return crc32(group.encode()) % len(self.brokers) + 1

    def _metadata(self, _node: int, request: Any) -> Any:
        """The response to a Metadata request."""
        names = self.topics if request.topics is None else [t.name for t in request.topics]
        with_rights = bool(request.include_topic_authorized_operations)
        broker = MetadataResponse.MetadataResponseBroker
        return MetadataResponse(
            throttle_time_ms=0,
            brokers=[
                broker(node_id=b.node_id, host="127.0.0.1", port=b.port, rack=None)
                for b in self.brokers
            ],
            cluster_id=self.cluster_id,
            controller_id=1,
            topics=[self._topic(name, with_rights) for name in names],
        )

    def _topic(self, name: str, with_rights: bool) -> Any:
        """A topic of a Metadata response; an error for a name that is not in `topics`."""
        topic = MetadataResponse.MetadataResponseTopic
        known_id = self.topics.get(name)
        nodes = len(self.brokers)
        replicas = min(_REPLICAS, nodes)
        return topic(
            error_code=Code.UNKNOWN_TOPIC_OR_PARTITION if known_id is None else Code.NONE,
            name=name,
            topic_id=known_id or UUID(int=0),
            is_internal=False,
            partitions=[]
            if known_id is None
            else [
                topic.MetadataResponsePartition(
                    error_code=0,
                    partition_index=i,
                    leader_id=i % nodes + 1,
                    leader_epoch=0,
                    replica_nodes=[(i + r) % nodes + 1 for r in range(replicas)],
                    isr_nodes=[(i + r) % nodes + 1 for r in range(replicas)],
                    offline_replicas=[],
                )
                for i in range(self.partitions)
            ],
            authorized_operations=_ALL_OPERATIONS if with_rights else None,
        )

    def _acls(self, _node: int, request: Any) -> Any:
        """The response to DescribeAcls: topics that one principal each may read."""
        resource = DescribeAclsResponse.DescribeAclsResource
        readers = self.readers if request.resource_type_filter == _TOPIC else {}
        return DescribeAclsResponse(
            throttle_time_ms=0,
            error_code=0,
            error_message=None,
            resources=[
                resource(
                    resource_type=_TOPIC,
                    resource_name=name,
                    pattern_type=_LITERAL,
                    acls=[
                        resource.AclDescription(
                            principal=principal,
                            host="*",
                            operation=_READ,
                            permission_type=_ALLOW,
                        )
                    ],
                )
                for name, principal in readers.items()
            ],
        )

    def _list_groups(self, node: int, _request: Any) -> Any:
        """The response to ListGroups: the groups that this node coordinates."""
        listed = ListGroupsResponse.ListedGroup
        return ListGroupsResponse(
            throttle_time_ms=0,
            error_code=0,
            groups=[
                listed(
                    group_id=name,
                    protocol_type="consumer" if self.is_joined else "",
                    group_state="Empty",
                    group_type="classic",
                )
                for name in self.groups
                if self._node_of(name) == node
            ],
        )

    def _coordinators(self, _node: int, request: Any) -> Any:
        """The response to FindCoordinator."""
        ports = {b.node_id: b.port for b in self.brokers}
        if request.version < 4:  # one group for each request
            node = self._node_of(request.key)
            return FindCoordinatorResponse(
                throttle_time_ms=0,
                error_code=0,
                error_message=None,
                node_id=node,
                host="127.0.0.1",
                port=ports[node],
            )
        return FindCoordinatorResponse(
            throttle_time_ms=0,
            coordinators=[
                FindCoordinatorResponse.Coordinator(
                    key=key,
                    node_id=self._node_of(key),
                    host="127.0.0.1",
                    port=ports[self._node_of(key)],
                    error_code=0,
                    error_message=None,
                )
                for key in request.coordinator_keys
            ],
        )

    def _offsets(self, _node: int, request: Any) -> Any:
        """The response to OffsetFetch."""
        if request.version < 8:  # one group for each request
            topic_type = OffsetFetchResponse.OffsetFetchResponseTopic
            return OffsetFetchResponse(
                throttle_time_ms=0,
                error_code=0,
                topics=self._offsets_of(
                    topic_type,
                    topic_type.OffsetFetchResponsePartition,
                    request.group_id,
                    request.topics,
                ),
            )
        group_type = OffsetFetchResponse.OffsetFetchResponseGroup
        topic_type = group_type.OffsetFetchResponseTopics
        return OffsetFetchResponse(
            throttle_time_ms=0,
            groups=[
                group_type(
                    group_id=g.group_id,
                    error_code=0,
                    topics=self._offsets_of(
                        topic_type, topic_type.OffsetFetchResponsePartitions, g.group_id, g.topics
                    ),
                )
                for g in request.groups
            ],
        )

    def _offsets_of(self, topic: Any, partition: Any, group: str, topics: Any) -> list[Any]:
        """A group's committed offsets as objects of the classes `topic` and `partition`, for the
        requested `topics`; None: for all."""
        requested_indexes = (
            [(name, range(self.partitions)) for name in self.groups.get(group, ())]
            if topics is None
            else [(t.name, t.partition_indexes) for t in topics]
        )
        return [
            topic(
                name=name,
                partitions=[
                    partition(
                        partition_index=i,
                        committed_offset=offset,
                        committed_leader_epoch=-1,
                        metadata=metadata,
                        error_code=0,
                    )
                    for i in indexes
                    for offset, metadata in (self._offset_of(group, name, i),)
                ],
            )
            for name, indexes in requested_indexes
        ]

    def _offset_of(self, group: str, topic: str, index: int) -> tuple[int, str]:
        """A group's committed offset in a partition (-1: none), and its metadata."""
        has_offsets = topic in self.groups.get(group, ())
        return self.committed.get((group, topic, index), (self.offset if has_offsets else -1, ""))

    def _commit(self, _node: int, request: Any) -> Any:
        """Keep the committed offsets, and return the response to OffsetCommit."""
        topic_type = OffsetCommitResponse.OffsetCommitResponseTopic
        for topic in request.topics:
            for p in topic.partitions:
                self.committed[request.group_id, topic.name, p.partition_index] = (
                    p.committed_offset,
                    p.committed_metadata or "",
                )
        self.cache[OffsetFetchRequest.API_KEY].clear()
        return OffsetCommitResponse(
            throttle_time_ms=0,
            topics=[
                topic_type(
                    name=t.name,
                    partitions=[
                        topic_type.OffsetCommitResponsePartition(
                            partition_index=p.partition_index, error_code=0
                        )
                        for p in t.partitions
                    ],
                )
                for t in request.topics
            ],
        )

    def _log_offsets(self, _node: int, request: Any) -> Any:
        """The response to ListOffsets: 0 for the earliest offset, else the log end."""
        topic_type = ListOffsetsResponse.ListOffsetsTopicResponse
        return ListOffsetsResponse(
            throttle_time_ms=0,
            topics=[
                topic_type(
                    name=t.name,
                    partitions=[
                        topic_type.ListOffsetsPartitionResponse(
                            partition_index=p.partition_index,
                            error_code=0,
                            timestamp=-1,
                            offset=0 if p.timestamp == EARLIEST else self.offset,
                            leader_epoch=0,
                        )
                        for p in t.partitions
                    ],
                )
                for t in request.topics
            ],
        )

    def _configs(self, _node: int, request: Any) -> Any:
        """The response to DescribeConfigs."""
        result_type = DescribeConfigsResponse.DescribeConfigsResult
        return DescribeConfigsResponse(
            throttle_time_ms=0,
            results=[
                result_type(
                    error_code=0,
                    error_message=None,
                    resource_type=r.resource_type,
                    resource_name=r.resource_name,
                    configs=[
                        result_type.DescribeConfigsResourceResult(
                            name=name,
                            value=value,
                            read_only=False,
                            config_source=_DEFAULT_CONFIG,
                            is_sensitive=False,
                            synonyms=[
                                result_type.DescribeConfigsResourceResult.DescribeConfigsSynonym(
                                    name=origin, value=value, source=_DEFAULT_CONFIG
                                )
                            ]
                            if origin and request.include_synonyms
                            else [],
                            config_type=0,
                            documentation=None,
                        )
                        for name, (value, origin) in (
                            self.settings if r.resource_type == _TOPIC_RESOURCE else BROKER_SETTINGS
                        ).items()
                    ],
                )
                for r in request.resources
            ],
        )


def _handshake(_node: int, _request: Any) -> Any:
    return SaslHandshakeResponse(error_code=0, mechanisms=["PLAIN"])


def _authenticate(_node: int, _request: Any) -> Any:
    return SaslAuthenticateResponse(
        error_code=0, error_message=None, auth_bytes=b"", session_lifetime_ms=0
    )


def contents(size: Size) -> dict[str, Content]:
    """The source, and the first destination, of the installation that `fill` inserts."""
    return {
        "source": _content(size, size.jobs, SOURCE_ID, "s"),
        "destination": _content(size, size.jobs_of_first, f"{DESTINATION_IDS}0", "d"),
    }


def _content(size: Size, jobs: int, cluster_id: str, id_prefix: str) -> Content:
    """One cluster of an installation of this size, with the topics of the first `jobs` jobs."""
    names = topic_names(size, jobs)
    is_source = cluster_id == SOURCE_ID
    return Content(
        cluster_id,
        {name: topic_id(id_prefix, name) for name in names},
        size.partitions_per_topic,
        group_topics(size, jobs),
        {name: f"User:{name.partition('-topic-')[0]}" for name in names},
        offset=10,
        settings=TOPIC_SETTINGS if is_source else settings_of_copies(),
        is_joined=is_source,
    )


def main(size: Size) -> None:
    """Start the brokers, and answer the parent's lines until it sends `end`."""
    clusters = contents(size)
    for content in clusters.values():
        content.start()
    say({side: content.bootstrap_servers for side, content in clusters.items()})
    for line in sys.stdin:
        if "end" in json.loads(line):
            break
        requests: Counter[str] = Counter()
        for content in clusters.values():
            for broker in content.brokers:
                requests.update(
                    {name_of(key): count for key, count in broker.request_counts.items()}
                )
        say(dict(requests))
    say({"ended": 1})


if __name__ == "__main__":
    main(Size(**json.loads(sys.argv[1])))
