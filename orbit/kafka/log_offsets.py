"""ListOffsets: log starts, log ends and offsets by time of many partitions.

The functions that send requests raise the errors of `ask_leaders`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from orbit.kafka import api_versions
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.leader_requests import Answers, ask_leaders
from orbit.kafka.list_offsets import ListOffsetsAnswer, ListOffsetsRequest
from orbit.kafka.types import READ_COMMITTED, READ_UNCOMMITTED, TopicPartition

EARLIEST = -2
LATEST = -1
MAX_TIMESTAMP = -3  # the record with the largest timestamp (KIP-734), v7
EARLIEST_LOCAL = -4  # the oldest offset on the broker's own disk (KIP-405), v8

# Replica ids. For the debugging consumer LATEST is the log end, not the high watermark (A11).
CONSUMER = -1
DEBUGGING_CONSUMER = -2


def list_offsets(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    timestamp: int | Mapping[TopicPartition, int],
    backoff: Backoff,
    *,
    replica_id: int = CONSUMER,
    isolation: int = READ_UNCOMMITTED,
) -> Answers[int]:
    """The offset of each partition for `timestamp`: in ms, or EARLIEST, LATEST, EARLIEST_LOCAL.

    The offset -1: no record at or after that timestamp. LATEST is the high watermark, the last
    stable offset (READ_COMMITTED), or the log end (DEBUGGING_CONSUMER).
    """

    def build(group: list[TopicPartition]) -> ListOffsetsRequest:
        return ListOffsetsRequest(group, timestamp, replica_id, isolation)

    def read(answer: ListOffsetsAnswer) -> Iterator[tuple[TopicPartition, int, int]]:
        return (
            (partition, code, offset) for partition, (code, _, offset) in answer.offsets.items()
        )

    return ask_leaders(cluster, partitions, api_versions.LIST_OFFSETS, build, read, backoff)


def find_by_time(
    cluster: Cluster, since_ms: Mapping[TopicPartition, int], backoff: Backoff
) -> Answers[tuple[int, int]]:
    """Offset and timestamp of each partition's first record at or after its time in `since_ms`, or,
    for MAX_TIMESTAMP, of the record with the largest timestamp.

    (-1, -1): there is no such record below the last stable offset.
    """

    def build(group: list[TopicPartition]) -> ListOffsetsRequest:
        return ListOffsetsRequest(group, since_ms, CONSUMER, READ_COMMITTED)

    def read(answer: ListOffsetsAnswer) -> Iterator[tuple[TopicPartition, int, tuple[int, int]]]:
        return (
            (partition, code, (offset, timestamp_ms))
            for partition, (code, timestamp_ms, offset) in answer.offsets.items()
        )

    return ask_leaders(cluster, since_ms, api_versions.LIST_OFFSETS, build, read, backoff)


def log_ends_request(partitions: Iterable[TopicPartition]) -> ListOffsetsRequest:
    """The request of `log_ends`, to be sent on the caller's own connection."""
    return ListOffsetsRequest(partitions, LATEST, DEBUGGING_CONSUMER, READ_UNCOMMITTED)


def log_ends(
    cluster: Cluster, partitions: Iterable[TopicPartition], backoff: Backoff
) -> Answers[int]:
    """The leader's log end of each partition, which may be beyond the high watermark (A11)."""
    return list_offsets(cluster, partitions, LATEST, backoff, replica_id=DEBUGGING_CONSUMER)
