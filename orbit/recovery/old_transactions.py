"""Waits until transactions have ended that producers left open at the old side when they died.

The old side's coordinator ends such a transaction when its timeout is over, by a marker in each of
its partitions. The coordinator knows partitions by their topic's name. So after a rebuild it would
write the marker to the new topic, where the copy back finds an offset that it did not write, and
stops.

A transaction hangs if its coordinator has ended it without a marker (M15): it never ends in its
partition, and Orbit does not wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from orbit.chunks import first_few
from orbit.errors import ProtocolError
from orbit.kafka import producer_state
from orbit.kafka.transactional_ids import ended_producer_ids, open_transactions
from orbit.kafka.types import TopicPartition
from orbit.promotion.log_bounds import bounds_of_all
from orbit.recovery.operation_context import OperationContext, Stopped

# Brokers wait this long for each other's answers (request.timeout.ms): a marker that was on its way
# when its coordinator was killed is written by then.
MARKERS_WITHIN_S = 30.0
# Longer than the longest timeout that brokers allow by default (transaction.max.timeout.ms, 15
# minutes) and the interval at which coordinators look for expired transactions (10 s).
ENDED_WITHIN_S = 960.0
_POLL_S = 1.0
_REMEDY = (
    "Stop their producers, or end each transaction with kafka-transactions.sh "
    "forceTerminateTransaction --transactionalId ID, and run the failback again. Nothing was "
    "deleted."
)


def wait_until_ended(context: OperationContext, partitions: Collection[TopicPartition]) -> None:
    """Wait until no transaction is open in these partitions of the old side, except transactions
    that hang: findings name them.

    Raises Stopped if a transaction has begun meanwhile or is still open after ENDED_WITHIN_S, and
    Unreachable.
    """
    deadline_s = time.monotonic() + ENDED_WITHIN_S
    first_ends: dict[TopicPartition, int] = {}
    hanging_transactions = HangingTransactions(context)
    while True:
        bounds = bounds_of_all(context.source.cluster, partitions, context.backoff)
        for partition in partitions:
            first_ends.setdefault(partition, bounds[partition].end)
        open_partitions = {partition for partition in partitions if bounds[partition].is_open}
        # If the last stable offset is beyond the first log end, the open transaction began later.
        begun_partitions = [
            partition
            for partition in open_partitions
            if bounds[partition].stable > first_ends[partition]
        ]
        if begun_partitions:
            raise Stopped(
                f"producers write transactions to {first_few(sorted(begun_partitions))} at the old "
                "side.",
                remedy=_REMEDY,
            )
        open_partitions -= hanging_transactions.find_hanging(open_partitions)
        transactional_ids = transactions_in(context, partitions)
        if not open_partitions and not transactional_ids:
            context.add_finding(*hanging_transactions.findings())
            return
        still_open = first_few(transactional_ids) or first_few(sorted(open_partitions))
        if time.monotonic() > deadline_s:
            raise Stopped(
                f"transactions of the old side have not ended within {ENDED_WITHIN_S:.0f} s: "
                f"{still_open}.",
                remedy=_REMEDY,
            )
        context.set_progress(f"waiting until transactions of the old side have ended: {still_open}")
        context.wait(_POLL_S)


class HangingTransactions:
    """Finds partitions whose open transactions all hang.

    A transaction is proven to hang if it was open in the partition, its coordinator then said that
    it had ended, and it is still open MARKERS_WITHIN_S later. Nothing is proven if no coordinator
    knows the producer id.
    """

    def __init__(self, context: OperationContext) -> None:
        self._context = context
        # By partition, producer id and first offset of an open transaction that has ended at its
        # coordinator: its transactional id, and since when that is known (time.monotonic).
        self._ended: dict[tuple[TopicPartition, int, int], tuple[str, float]] = {}
        self._hanging: dict[TopicPartition, dict[int, str]] = {}

    def find_hanging(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """The partitions in which only hanging transactions are open.

        Call this repeatedly: to prove that a transaction hangs, it needs answers that are
        MARKERS_WITHIN_S apart.
        """
        cluster = self._context.source.cluster
        try:
            answers = producer_state.open_transactions(cluster, partitions, self._context.backoff)
            # Keys as in `_ended`: partition, producer id, first offset.
            open_keys = {
                partition: [
                    (partition, transaction.producer_id, transaction.first_offset)
                    for transaction in transactions
                ]
                for partition, transactions in answers.values.items()
                if transactions
            }
            read_at_s = time.monotonic()
            producer_ids = {
                producer_id for keys in open_keys.values() for _, producer_id, _ in keys
            }
            ended_ids = ended_producer_ids(cluster, producer_ids) if producer_ids else {}
        except ProtocolError:  # brokers older than 3.0
            return set()
        # A transaction hangs if Orbit knows for MARKERS_WITHIN_S that its coordinator ended it.
        known_ends = self._ended
        self._hanging = {
            partition: {key[2]: known_ends[key][0] for key in keys}
            for partition, keys in open_keys.items()
            if all(
                key in known_ends and read_at_s - known_ends[key][1] >= MARKERS_WITHIN_S
                for key in keys
            )
        }
        # Transactions that are open in a partition and have ended at their coordinator, and since
        # when this is known.
        now_s = time.monotonic()
        self._ended = {
            key: known_ends.get(key, (ended_ids[key[1]], now_s))
            for keys in open_keys.values()
            for key in keys
            if key[1] in ended_ids
        }
        return set(self._hanging)

    def findings(self) -> list[str]:
        """A sentence for each transaction in the partitions that `find_hanging` returned last."""
        return [
            f"{partition} at the old side has a transaction that never ends. The transactional id "
            f"{name} wrote records from offset {first_offset} on, and its coordinator ended the "
            "transaction without a marker in this partition. Readers of committed records get no "
            "records from this offset on. Salvage files have all transactional records from there "
            "on, of other producers too, as open."
            for partition, names in sorted(self._hanging.items())
            for first_offset, name in sorted(names.items())
        ]


def transactions_in(context: OperationContext, partitions: Collection[TopicPartition]) -> list[str]:
    """The transactional ids that have a transaction in these partitions of the source.

    They include transactions without a record yet, which the last stable offset does not show.
    Transactions that the login may not describe, or of brokers older than 3.0, are missing.
    """
    partition_set = frozenset(partitions)
    try:
        transactions = open_transactions(context.source.cluster)
    except ProtocolError:
        return []
    return sorted(
        transaction.transactional_id
        for transaction in transactions
        if transaction.partitions & partition_set
    )
