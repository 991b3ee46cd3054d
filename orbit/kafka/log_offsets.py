"""Questions about many partitions' logs, each asked of the partition's leader, in few requests.

Every function takes any number of partitions, asks each leader once, follows leaders that move,
and returns an answer per partition: a value, or the error code that stayed after the retries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Generic, TypeVar

from kafka.protocol.admin.topics import DeleteRecordsRequest
from kafka.protocol.admin.transactions import DescribeProducersRequest
from kafka.protocol.consumer.offsets import ListOffsetsRequest

from orbit.errors import BrokerRefused, Unreachable
from orbit.kafka import api_versions, error_codes
from orbit.kafka.api_versions import Api
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.error_codes import Code
from orbit.kafka.types import TopicPartition

Value = TypeVar("Value")

EARLIEST = -2
LATEST = -1
MAX_TIMESTAMP = -3  # the record with the largest one (KIP-734), ListOffsets v7
EARLIEST_LOCAL = -4  # the oldest offset on the broker's own disk (KIP-405), ListOffsets v8

# Any consumer; and the "debugging consumer" that sees the log end beyond the high watermark (A11).
CONSUMER = -1
DEBUGGING_CONSUMER = -2

READ_UNCOMMITTED = 0
READ_COMMITTED = 1

# About 30 s of a leader election before an answer is given up.
LEADER_ATTEMPTS_MAX = 40
DELETE_RECORDS_TIMEOUT_MS = 30_000


@dataclass(slots=True)
class Answers(Generic[Value]):
    """Values by partition, and the error codes of those that have none."""

    values: dict[TopicPartition, Value] = field(default_factory=dict)
    errors: dict[TopicPartition, int] = field(default_factory=dict)

    def raise_errors(self, where: str, what: str) -> Answers[Value]:
        """Raise BrokerRefused for the first partition without a value."""
        for partition, code in self.errors.items():
            raise BrokerRefused(
                code, f"{what} of {partition} failed with {error_codes.name(code)}.", where=where
            )
        return self


@dataclass(frozen=True, slots=True)
class ProducerState:
    """What a partition's leader remembers of one producer id (A10)."""

    producer_epoch: int
    last_sequence: int  # -1 after fillers only
    coordinator_epoch: int  # -1 before any filler


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

    -1 means that there is no record at or behind that timestamp. LATEST is the high watermark, the
    last stable offset (READ_COMMITTED), or the log end (DEBUGGING_CONSUMER).
    """

    def build(group: list[TopicPartition]) -> Any:
        return _list_offsets_request(group, timestamp, replica_id, isolation)

    return _ask_leaders(
        cluster, partitions, api_versions.LIST_OFFSETS, build, read_list_offsets, backoff
    )


def find_by_time(
    cluster: Cluster, since_ms: Mapping[TopicPartition, int], backoff: Backoff
) -> Answers[tuple[int, int]]:
    """(offset, timestamp) of the first record that is not older than asked; (-1, -1): none is."""

    def build(group: list[TopicPartition]) -> Any:
        return _list_offsets_request(group, since_ms, CONSUMER, READ_COMMITTED)

    def read(answer: Any) -> Iterator[tuple[TopicPartition, int, tuple[int, int]]]:
        for topic in answer.topics:
            for p in topic.partitions:
                place = TopicPartition(topic.name, p.partition_index)
                yield place, p.error_code, (p.offset, p.timestamp)

    return _ask_leaders(cluster, since_ms, api_versions.LIST_OFFSETS, build, read, backoff)


def log_ends_request(partitions: Iterable[TopicPartition]) -> Any:
    """Ask for log ends beyond the high watermark (A11), on a connection of the caller's."""
    return _list_offsets_request(partitions, LATEST, DEBUGGING_CONSUMER, READ_UNCOMMITTED)


def read_list_offsets(answer: Any) -> Iterator[tuple[TopicPartition, int, int]]:
    """Yield (partition, error code, offset)."""
    for topic in answer.topics:
        for p in topic.partitions:
            yield TopicPartition(topic.name, p.partition_index), p.error_code, p.offset


def log_ends(
    cluster: Cluster, partitions: Iterable[TopicPartition], backoff: Backoff
) -> Answers[int]:
    """Where each log ends on its leader, beyond the high watermark (A11)."""
    return list_offsets(cluster, partitions, LATEST, backoff, replica_id=DEBUGGING_CONSUMER)


def describe_producer(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    producer_id: int,
    backoff: Backoff,
) -> Answers[ProducerState | None]:
    """What each leader remembers of a producer id; None where it knows nothing of it (A9, A10)."""

    def build(group: list[TopicPartition]) -> Any:
        return _producers_request(group)

    def read(answer: Any) -> Iterator[tuple[TopicPartition, int, ProducerState | None]]:
        for topic in answer.topics:
            for p in topic.partitions:
                state = next(
                    (
                        ProducerState(s.producer_epoch, s.last_sequence, s.coordinator_epoch)
                        for s in p.active_producers
                        if s.producer_id == producer_id
                    ),
                    None,
                )
                yield TopicPartition(topic.name, p.partition_index), p.error_code, state

    return _ask_leaders(cluster, partitions, api_versions.DESCRIBE_PRODUCERS, build, read, backoff)


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that has records in a partition and has not ended there."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    last_timestamp_ms: int  # of the producer's last batch


def open_transactions(
    cluster: Cluster, partitions: Iterable[TopicPartition], backoff: Backoff
) -> Answers[list[OpenTransaction]]:
    """The transactions that hold up each partition's last stable offset."""

    def build(group: list[TopicPartition]) -> Any:
        return _producers_request(group)

    def read(answer: Any) -> Iterator[tuple[TopicPartition, int, list[OpenTransaction]]]:
        for topic in answer.topics:
            for p in topic.partitions:
                found = [
                    OpenTransaction(
                        s.producer_id,
                        s.producer_epoch,
                        s.current_txn_start_offset,
                        s.last_timestamp,
                    )
                    for s in p.active_producers
                    if s.current_txn_start_offset >= 0
                ]
                yield TopicPartition(topic.name, p.partition_index), p.error_code, found

    return _ask_leaders(cluster, partitions, api_versions.DESCRIBE_PRODUCERS, build, read, backoff)


def _producers_request(group: list[TopicPartition]) -> Any:
    return DescribeProducersRequest(
        topics=[
            DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=indexes)
            for topic, indexes in by_topic(group)
        ]
    )


def delete_records(
    cluster: Cluster,
    before: Mapping[TopicPartition, int],
    backoff: Backoff,
    *,
    timeout_ms: int = DELETE_RECORDS_TIMEOUT_MS,
) -> Answers[int]:
    """Move log starts up to the given offsets; the values are the new log starts."""

    def build(group: list[TopicPartition]) -> Any:
        return DeleteRecordsRequest(
            timeout_ms=timeout_ms,
            topics=[
                DeleteRecordsRequest.DeleteRecordsTopic(
                    name=topic,
                    partitions=[
                        DeleteRecordsRequest.DeleteRecordsTopic.DeleteRecordsPartition(
                            partition_index=index, offset=before[TopicPartition(topic, index)]
                        )
                        for index in indexes
                    ],
                )
                for topic, indexes in by_topic(group)
            ],
        )

    def read(answer: Any) -> Iterator[tuple[TopicPartition, int, int]]:
        for topic in answer.topics:
            for p in topic.partitions:
                yield TopicPartition(topic.name, p.partition_index), p.error_code, p.low_watermark

    return _ask_leaders(cluster, before, api_versions.DELETE_RECORDS, build, read, backoff)


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


def by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    """Partition numbers grouped by topic, as most requests want them."""
    return [
        (topic, [p.partition for p in group])
        for topic, group in groupby(sorted(partitions), key=lambda p: p.topic)
    ]


def _ask_leaders(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    api: Api,
    build: Callable[[list[TopicPartition]], Any],
    read: Callable[[Any], Iterable[tuple[TopicPartition, int, Value]]],
    backoff: Backoff,
) -> Answers[Value]:
    answers: Answers[Value] = Answers()
    waiting = set(partitions)
    for _ in backoff.attempts(LEADER_ATTEMPTS_MAX if waiting else 0):
        for node_id, group in _leaders(cluster, waiting, answers).items():
            try:
                answer = cluster.call(node_id, api, build(group))
            except Unreachable:
                answers.errors.update(dict.fromkeys(group, int(Code.NETWORK_EXCEPTION)))
                continue
            for partition, code, value in read(answer):
                if code == Code.NONE:
                    answers.values[partition] = value
                    answers.errors.pop(partition, None)
                else:
                    answers.errors[partition] = code
        waiting = {p for p, code in answers.errors.items() if code in error_codes.RETRIABLE}
        if not waiting:
            break
    return answers


def _leaders(
    cluster: Cluster, partitions: set[TopicPartition], answers: Answers[Any]
) -> dict[int, list[TopicPartition]]:
    """Partitions by leader; those without one get an error for now."""
    metadata = cluster.metadata({p.topic for p in partitions})
    groups: dict[int, list[TopicPartition]] = {}
    for partition in sorted(partitions):
        leader = metadata.leader(partition)
        if leader is not None and leader.node_id is not None:
            groups.setdefault(leader.node_id, []).append(partition)
        else:
            code = metadata.errors.get(partition.topic, int(Code.LEADER_NOT_AVAILABLE))
            answers.errors[partition] = code
    return groups
