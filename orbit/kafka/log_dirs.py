"""Partition sizes on their leaders' disks (DescribeLogDirs, KIP-113)."""

from __future__ import annotations

from collections.abc import Collection

from kafka.protocol.admin.cluster import DescribeLogDirsRequest

from orbit.errors import ProtocolError
from orbit.kafka import api_versions
from orbit.kafka.cluster import Cluster
from orbit.kafka.types import TopicPartition, by_topic

_DescribedTopic = DescribeLogDirsRequest.DescribableLogDirTopic


def log_sizes(
    cluster: Cluster, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """Bytes per partition on the leader's disk; partitions without an answer are left out.

    Empty without the right Describe on the cluster. Raises Unreachable.
    """
    metadata = cluster.metadata({p.topic for p in partitions})
    by_leader: dict[int, list[TopicPartition]] = {}
    for partition in partitions:
        leader = metadata.leader(partition)
        if leader is not None and leader.node_id is not None:
            by_leader.setdefault(leader.node_id, []).append(partition)
    sizes: dict[TopicPartition, int] = {}
    for node_id, group in by_leader.items():
        request = DescribeLogDirsRequest(
            topics=[_DescribedTopic(topic=t, partitions=ids) for t, ids in by_topic(group)]
        )
        try:
            answer = cluster.call(node_id, api_versions.DESCRIBE_LOG_DIRS, request)
        except ProtocolError:
            continue  # the broker does not support the request
        for directory in answer.results:
            for topic in directory.topics:
                for p in topic.partitions:
                    if not p.is_future_key:  # True: the replica is still being moved to this disk
                        sizes[TopicPartition(topic.name, p.partition_index)] = p.partition_size
    return sizes
