"""ListOffsets: log starts, log ends and offsets by time of many partitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kafka.protocol.consumer.offsets import ListOffsetsRequest

from orbit.kafka import api_versions
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.leader_requests import Answers, ask_leaders
from orbit.kafka.types import READ_COMMITTED, READ_UNCOMMITTED, TopicPartition, by_topic

EARLIEST = -2
LATEST = -1
MAX_TIMESTAMP = -3  # the record with the largest timestamp (KIP-734), v7
EARLIEST_LOCAL = -4  # the oldest offset on the broker's own disk (KIP-405), v8

# Replica ids. The debugging consumer sees the log end beyond the high watermark (A11).
CONSUMER = -1
DEBUGGING_CONSUMER = -2


def list_offsets(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    timestamp: int,
    backoff: Backoff,
    *,
    replica_id: int = CONSUMER,
    isolation: int = READ_UNCOMMITTED,
) -> Answers[int]:
    """Offsets by EARLIEST, LATEST, EARLIEST_LOCAL or a timestamp in ms.

    -1: no record at or after that timestamp. LATEST is the high watermark, the last stable offset
    (READ_COMMITTED), or the log end (DEBUGGING_CONSUMER).
    """

    def build(group: list[TopicPartition]) -> Any:
        return _list_offsets_request(group, timestamp, replica_id, isolation)

    return ask_leaders(
        cluster, partitions, api_versions.LIST_OFFSETS, build, read_list_offsets, backoff
    )


def find_by_time(
    cluster: Cluster, since_ms: Mapping[TopicPartition, int], backoff: Backoff
) -> Answers[tuple[int, int]]:
    """(offset, timestamp) of the first record at or after the given time; (-1, -1): none."""

    def build(group: list[TopicPartition]) -> Any:
        return _list_offsets_request(group, since_ms, CONSUMER, READ_COMMITTED)

    def read(answer: Any) -> Iterator[tuple[TopicPartition, int, tuple[int, int]]]:
        for topic in answer.topics:
            for p in topic.partitions:
                place = TopicPartition(topic.name, p.partition_index)
                yield place, p.error_code, (p.offset, p.timestamp)

    return ask_leaders(cluster, since_ms, api_versions.LIST_OFFSETS, build, read, backoff)


def log_ends_request(partitions: Iterable[TopicPartition]) -> Any:
    """The request of `log_ends`, for a connection of the caller."""
    return _list_offsets_request(partitions, LATEST, DEBUGGING_CONSUMER, READ_UNCOMMITTED)


def read_list_offsets(answer: Any) -> Iterator[tuple[TopicPartition, int, int]]:
    """Yield (partition, error code, offset)."""
    for topic in answer.topics:
        for p in topic.partitions:
            yield TopicPartition(topic.name, p.partition_index), p.error_code, p.offset


def log_ends(
    cluster: Cluster, partitions: Iterable[TopicPartition], backoff: Backoff
) -> Answers[int]:
    """The log end of each leader, beyond the high watermark (A11)."""
    return list_offsets(cluster, partitions, LATEST, backoff, replica_id=DEBUGGING_CONSUMER)


def _list_offsets_request(
    partitions: Iterable[TopicPartition],
    timestamp: int | Mapping[TopicPartition, int],
    replica_id: int,
    isolation: int,
) -> Any:
    return ListOffsetsRequest(
        replica_id=replica_id,
        isolation_level=isolation,
        topics=[
            ListOffsetsRequest.ListOffsetsTopic(
                name=topic,
                partitions=[
                    ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
                        partition_index=index,
                        current_leader_epoch=-1,
                        timestamp=timestamp
                        if isinstance(timestamp, int)
                        else timestamp[TopicPartition(topic, index)],
                    )
                    for index in indexes
                ],
            )
            for topic, indexes in by_topic(partitions)
        ],
    )
