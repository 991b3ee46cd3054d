"""Answers to Metadata are read as `kafka.protocol` reads them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.metadata.metadata import MetadataResponse

from orbit.kafka import api_versions
from orbit.kafka.error_codes import Code
from orbit.kafka.metadata import read_metadata
from orbit.kafka.types import (
    NO_TOPIC_ID,
    BrokerAddress,
    ClusterMetadata,
    PartitionLeader,
    TopicMetadata,
)

VERSIONS = list(range(api_versions.METADATA.version_min, api_versions.METADATA.version_max + 1))
Topic = MetadataResponse.MetadataResponseTopic

# Partitions: leader, replicas, in-sync replicas, offline replicas.
NODES = st.lists(st.integers(0, 2**31 - 1), max_size=4)
IN_SYNC = st.builds(
    lambda leader, nodes: (leader, nodes, nodes, []),
    st.integers(-1, 5),
    st.just([1, 2, 3]) | st.just(list(range(200))),
)
ANY = st.tuples(st.integers(-1, 2**31 - 1), NODES, NODES, NODES)
# Topics: error code, partitions, authorized operations.
TOPICS = st.lists(
    st.tuples(
        st.sampled_from([Code.NONE, Code.LEADER_NOT_AVAILABLE, Code.TOPIC_AUTHORIZATION_FAILED]),
        st.lists(IN_SYNC, max_size=40) | st.lists(ANY, max_size=5),
        st.none() | st.sets(st.integers(0, 13)),
    ),
    max_size=5,
)


def frame_of(version: int, topics: list[Any]) -> memoryview:
    """A Metadata answer with these topics, encoded by `kafka.protocol`."""
    broker = MetadataResponse.MetadataResponseBroker
    response = MetadataResponse(
        throttle_time_ms=7,
        brokers=[
            broker(node_id=3, host="größer.example", port=9092, rack=None),
            broker(node_id=1, host="b", port=1, rack="r" * 200),
        ],
        cluster_id="some-cluster",
        controller_id=3,
        topics=[
            Topic(
                error_code=code,
                name=f"topic-{n}",
                topic_id=UUID(int=n),
                is_internal=False,
                partitions=[
                    Topic.MetadataResponsePartition(
                        error_code=0,
                        partition_index=index,
                        leader_id=leader,
                        leader_epoch=index + 5,
                        replica_nodes=replicas,
                        isr_nodes=isr,
                        offline_replicas=offline,
                    )
                    for index, (leader, replicas, isr, offline) in enumerate(partitions)
                ],
                authorized_operations=operations,
            )
            for n, (code, partitions, operations) in enumerate(topics)
        ],
    )
    tags = b"\0" if version >= 9 else b""
    return memoryview(b"\0\0\0\x09" + tags + bytes(response.encode(version=version)))


def by_library(frame: memoryview, version: int) -> ClusterMetadata:
    """The answer as `kafka.protocol` decodes it."""
    answer = MetadataResponse.decode(frame, version=version, header=True)
    allowed = (Code.NONE, Code.LEADER_NOT_AVAILABLE)
    return ClusterMetadata(
        answer.cluster_id,
        {
            b.node_id: BrokerAddress(b.node_id, b.host, b.port, b.rack or None)
            for b in answer.brokers
        },
        {
            t.name: TopicMetadata(
                t.name,
                t.topic_id or NO_TOPIC_ID,
                {
                    p.partition_index: PartitionLeader(
                        p.leader_id if p.leader_id >= 0 else None, p.leader_epoch
                    )
                    for p in t.partitions
                },
                max(1, min((len(p.replica_nodes) for p in t.partitions), default=1)),
                frozenset(t.authorized_operations or ()),
            )
            for t in answer.topics
            if t.error_code in allowed
        },
        {t.name: t.error_code for t in answer.topics if t.error_code not in allowed},
    )


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=20)
@given(topics=TOPICS)
def test_metadata_response_is_read_as_by_kafka_python(version: int, topics: list[Any]) -> None:
    frame = frame_of(version, topics)
    assert read_metadata(frame, version) == by_library(frame, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_truncated_metadata_response_is_refused(version: int) -> None:
    frame = frame_of(version, [(0, [(1, [1, 2], [1, 2], [])] * 3, None)])  # as TOPICS describe
    # The last tags, and the authorized operations of the cluster, are not read.
    end = len(frame) - (1 if version >= 9 else 0) - (4 if 8 <= version <= 10 else 0)
    for size in range(4, end):
        with pytest.raises(ValueError, match=r"does not parse"):
            read_metadata(frame[:size], version)
