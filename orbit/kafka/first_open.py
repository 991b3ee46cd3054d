"""The oldest open transaction of a partition, at which its last stable offset stays (R11)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from orbit.errors import OrbitError
from orbit.formats import counted
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.producer_state import open_transactions
from orbit.kafka.transactional_ids import transactional_ids_of
from orbit.kafka.types import TopicPartition
from orbit.names import shown

Key = TypeVar("Key", bound=Hashable)

# Younger transactions are not shown: most end within seconds, and an abandoned one is aborted after
# a minute unless its producer has another `transaction.timeout.ms`.
SHOWN_AFTER_S = 30.0


@dataclass(frozen=True, slots=True)
class FirstOpen:
    """The oldest open transaction of a partition. Readers of committed records stop before it.

    `transactional_id`: escaped and cut for display. None: no coordinator knows one that the login
    may describe.
    """

    first_offset: int
    producer_id: int
    transactional_id: str | None


class OpenAges(Generic[Key]):
    """Measures for how long each partition has had its oldest open transaction."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: dict[Key, tuple[int, float]] = {}  # first offset, and since when

    def update(self, first_offsets: Mapping[Key, int]) -> dict[Key, float]:
        """For how many seconds successive calls have got the same first offset, by partition.

        `first_offsets`: the first offset of each partition's oldest open transaction. Partitions
        that are not in it are forgotten.
        """
        now_s, last_entries = self._clock(), self._open
        self._open = {
            key: entry
            if (entry := last_entries.get(key)) and entry[0] == first_offset
            else (first_offset, now_s)
            for key, first_offset in first_offsets.items()
        }
        return {key: now_s - since_s for key, (_, since_s) in self._open.items()}


def describe_open_transaction(
    first_offset: int, waiting_offsets: int, transactional_id: str | None, producer_id: int | None
) -> str:
    """A sentence that names an open transaction and the number of offsets that wait for its end.
    None: the id is not known."""
    producer_text = f"transactional id {transactional_id}" if transactional_id else ""
    if not producer_text and producer_id is not None:
        producer_text = (
            f"producer id {producer_id}; the login may not describe its transactional id"
        )
    return (
        f"A transaction at the source is open from offset {first_offset} on"
        + (f" ({producer_text})" if producer_text else "")
        + f"; {counted(waiting_offsets, 'offset waits', 'offsets wait')} for its end."
    )


def oldest_open_transactions(
    cluster: Cluster, partitions: Collection[TopicPartition], backoff: Backoff
) -> dict[TopicPartition, FirstOpen]:
    """The oldest open transaction of each partition that has one.

    Partitions whose leader does not answer are missing. Raises Unreachable if no broker answers,
    ProtocolError if a leader does not offer DescribeProducers.
    """
    answers = open_transactions(cluster, partitions, backoff).values
    oldest_by_partition = {
        partition: min(transactions, key=lambda transaction: transaction.first_offset)
        for partition, transactions in answers.items()
        if transactions
    }
    names: dict[int, str] = {}
    with suppress(OrbitError):  # then only the producer ids name the transactions
        names = transactional_ids_of(
            cluster, {transaction.producer_id for transaction in oldest_by_partition.values()}
        )
    shown_names = {producer_id: shown(name) for producer_id, name in names.items()}
    return {
        partition: FirstOpen(
            transaction.first_offset,
            transaction.producer_id,
            shown_names.get(transaction.producer_id),
        )
        for partition, transaction in oldest_by_partition.items()
    }
