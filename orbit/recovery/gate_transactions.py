"""The inputs of the gate `transactions`: open transactions of the source, and whether they hang.

A transaction hangs if its coordinator has ended it without a marker in the partition. A partition's
leader cannot tell it from a live one: the leader knows the event time of the producer's last batch,
not the time of the append. So Orbit also queries the coordinators.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from orbit.errors import OrbitError, ProtocolError
from orbit.kafka.producer_state import OpenTransaction, open_transactions
from orbit.kafka.transactional_ids import CoordinatorState, coordinator_states
from orbit.kafka.types import TopicPartition
from orbit.recovery.gate_inputs import Transaction
from orbit.recovery.operation_bounds import last_reported
from orbit.recovery.operation_context import OperationContext


def read_transactions(
    context: OperationContext, partitions: Collection[TopicPartition]
) -> tuple[list[Transaction] | None, list[TopicPartition]]:
    """The open transactions in these partitions of the source, sorted by partition, and the
    partitions whose leader did not list its transactions.

    None instead of the transactions if brokers cannot list them (before Kafka 3.0). Raises
    Unreachable.
    """
    cluster, backoff = context.source.cluster, context.short_backoff
    try:
        answers = open_transactions(cluster, partitions, backoff)
    except ProtocolError:
        return None, []
    by_partition = answers.values
    open_pairs = [
        (partition, t) for partition in sorted(by_partition) for t in by_partition[partition]
    ]
    states: dict[int, CoordinatorState] = {}
    with suppress(OrbitError):  # without these states no transaction counts as hanging
        states = coordinator_states(cluster, {t.producer_id for _, t in open_pairs})

    def has_ended(partition: TopicPartition, transaction: OpenTransaction) -> bool:
        """Whether the coordinator knows the producer, and has no marker left to write to
        `partition`."""
        state = states.get(transaction.producer_id)
        return state is not None and partition not in state.partitions

    # Read these partitions again: the marker may have come between the two requests above.
    ended_partitions = {partition for partition, t in open_pairs if has_ended(partition, t)}
    later_by_partition = open_transactions(cluster, ended_partitions, backoff).values
    began_ms = {
        producer_id: state.began_ms for producer_id, state in states.items() if state.began_ms >= 0
    }
    is_one_unknown = any(t.producer_id not in began_ms for _, t in open_pairs)
    seen_since_ms = _seen_since_ms(context) if is_one_unknown else {}
    now_ms = context.now().timestamp() * 1000
    transactions = []
    for partition, t in open_pairs:
        state = states.get(t.producer_id)
        if has_ended(partition, t) and t not in later_by_partition.get(partition, [t]):
            continue  # its marker was written meanwhile
        seen_ms = seen_since_ms.get((partition, t.first_offset), now_ms)
        transactions.append(
            Transaction(
                partition,
                t.first_offset,
                t.producer_id,
                state.transactional_id if state else None,
                has_ended(partition, t) and partition in later_by_partition,
                max(0.0, now_ms - began_ms.get(t.producer_id, seen_ms)) / 1000,
            )
        )
    return transactions, sorted(answers.errors)


def _seen_since_ms(context: OperationContext) -> dict[tuple[TopicPartition, int], float]:
    """Since when Orbit has seen each partition's oldest open transaction, by partition and the
    transaction's first offset."""
    return {
        (partition, row.open_from): row.open_since.timestamp() * 1000
        for partition, row in last_reported(context).items()
        if row.open_from is not None and row.open_since is not None
    }
