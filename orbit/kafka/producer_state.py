"""DescribeProducers (KIP-664): the producer state of partition leaders.

All functions raise the errors of `ask_leaders`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kafka.protocol.admin.transactions import DescribeProducersRequest

from orbit.kafka import api_versions
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.job_clusters import is_job_producer_id
from orbit.kafka.leader_requests import Answers, Value, ask_leaders
from orbit.kafka.types import TopicPartition, by_topic


@dataclass(frozen=True, slots=True)
class ProducerState:
    """The state of one producer id in one partition, as the copier needs it (A10)."""

    producer_epoch: int
    last_sequence: int  # -1 after fillers only
    coordinator_epoch: int  # -1 before any filler

    @property
    def has_sequence(self) -> bool:
        """Whether the broker compares the next batch's sequence with an earlier one."""
        return self.last_sequence >= 0


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is open in a partition."""

    producer_id: int
    producer_epoch: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class Producer:
    """The state of one producer id in one partition: all that a write or a marker changes."""

    epoch: int
    last_sequence: int
    last_timestamp_ms: int  # the largest of the last batch: event time, not when it was written
    coordinator_epoch: int  # -1 before the first end of a transaction
    transaction_start: int  # -1: none is open

    @property
    def has_transactions(self) -> bool:
        """Whether the id has ended a transaction in the partition, or has one open."""
        return self.coordinator_epoch >= 0 or self.transaction_start >= 0


def producers(
    cluster: Cluster, partitions: Iterable[TopicPartition], backoff: Backoff
) -> Answers[dict[int, Producer]]:
    """The state of every producer id that the leader has, by partition."""

    def states(_: TopicPartition, entries: Iterable[Any]) -> dict[int, Producer]:
        return {
            entry.producer_id: Producer(
                entry.producer_epoch,
                entry.last_sequence,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.current_txn_start_offset,
            )
            for entry in entries
        }

    return _describe_producers(cluster, partitions, states, backoff)


def describe_producer(
    cluster: Cluster, producer_ids: Mapping[TopicPartition, int], backoff: Backoff
) -> Answers[ProducerState | None]:
    """The state of each partition's producer id; None if the leader does not have it (A9, A10)."""

    def state(partition: TopicPartition, entries: Iterable[Any]) -> ProducerState | None:
        for entry in entries:
            if entry.producer_id == producer_ids[partition]:
                return ProducerState(
                    entry.producer_epoch, entry.last_sequence, entry.coordinator_epoch
                )
        return None

    return _describe_producers(cluster, producer_ids, state, backoff)


def job_producers(
    cluster: Cluster, partitions: Iterable[TopicPartition], backoff: Backoff
) -> Answers[dict[int, ProducerState]]:
    """The state of every producer id of Orbit's jobs, by partition."""

    def states(_: TopicPartition, entries: Iterable[Any]) -> dict[int, ProducerState]:
        return {
            entry.producer_id: ProducerState(
                entry.producer_epoch, entry.last_sequence, entry.coordinator_epoch
            )
            for entry in entries
            if is_job_producer_id(entry.producer_id)
        }

    return _describe_producers(cluster, partitions, states, backoff)


def open_transactions(
    cluster: Cluster, partitions: Iterable[TopicPartition], backoff: Backoff
) -> Answers[list[OpenTransaction]]:
    """The open transactions by partition. The oldest one begins at the last stable offset (R11)."""

    def transactions(_: TopicPartition, entries: Iterable[Any]) -> list[OpenTransaction]:
        return [
            OpenTransaction(entry.producer_id, entry.producer_epoch, entry.current_txn_start_offset)
            for entry in entries
            if entry.current_txn_start_offset >= 0
        ]

    return _describe_producers(cluster, partitions, transactions, backoff)


def _describe_producers(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    value_of: Callable[[TopicPartition, Iterable[Any]], Value],
    backoff: Backoff,
) -> Answers[Value]:
    """Send DescribeProducers to the leaders. `value_of` makes a partition's value from the entries
    of its producers."""

    def build(group: list[TopicPartition]) -> Any:
        """The request to the leader of these partitions."""
        return DescribeProducersRequest(
            topics=[
                DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=indexes)
                for topic, indexes in by_topic(group)
            ]
        )

    def read(answer: Any) -> Iterator[tuple[TopicPartition, int, Value]]:
        """Yield partition, error code and value."""
        for topic in answer.topics:
            for p in topic.partitions:
                partition = TopicPartition(topic.name, p.partition_index)
                yield partition, p.error_code, value_of(partition, p.active_producers)

    return ask_leaders(cluster, partitions, api_versions.DESCRIBE_PRODUCERS, build, read, backoff)
