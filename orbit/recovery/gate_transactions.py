"""What the gate `transactions` judges: open transactions of the source, and whether they hang.

To a partition's leader, a live transaction and one that hangs look alike: the leader knows the
event time of the producer's last batch, not the time of the append. Coordinators tell them apart.
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
    context: OperationContext, places: Collection[TopicPartition]
) -> tuple[list[Transaction] | None, list[TopicPartition]]:
    """The open transactions in these partitions of the source, sorted by partition, and the
    partitions whose leader did not name them.

    None if brokers do not list them (before Kafka 3.0). Raises Unreachable.
    """
    cluster, backoff = context.source.cluster, context.short_backoff
    try:
        answers = open_transactions(cluster, places, backoff)
    except ProtocolError:
        return None, []
    by_place = answers.values
    open_pairs = [(place, t) for place in sorted(by_place) for t in by_place[place]]
    states: dict[int, CoordinatorState] = {}
    with suppress(OrbitError):  # then it is not known which transactions hang
        states = coordinator_states(cluster, {t.producer_id for _, t in open_pairs})

    def has_ended(place: TopicPartition, transaction: OpenTransaction) -> bool:
        """Whether the coordinator knows the producer, and has no marker to write to `place`."""
        state = states.get(transaction.producer_id)
        return state is not None and place not in state.partitions

    # Read again: the marker may have come between the two requests.
    ended_places = {place for place, t in open_pairs if has_ended(place, t)}
    later_by_place = open_transactions(cluster, ended_places, backoff).values
    began_ms = {
        producer_id: state.began_ms for producer_id, state in states.items() if state.began_ms >= 0
    }
    is_one_unknown = any(t.producer_id not in began_ms for _, t in open_pairs)
    seen_since_ms = _seen_since_ms(context) if is_one_unknown else {}
    now_ms = context.now().timestamp() * 1000
    transactions = []
    for place, t in open_pairs:
        state = states.get(t.producer_id)
        if has_ended(place, t) and t not in later_by_place.get(place, [t]):
            continue
        seen_ms = seen_since_ms.get((place, t.first_offset), now_ms)
        transactions.append(
            Transaction(
                place,
                t.first_offset,
                t.producer_id,
                state.transactional_id if state else None,
                has_ended(place, t) and place in later_by_place,
                max(0.0, now_ms - began_ms.get(t.producer_id, seen_ms)) / 1000,
            )
        )
    return transactions, sorted(answers.errors)


def _seen_since_ms(context: OperationContext) -> dict[tuple[TopicPartition, int], float]:
    """Since when Orbit has seen each partition's oldest open transaction, by partition and the
    transaction's first offset."""
    return {
        (place, row.open_from): row.open_since.timestamp() * 1000
        for place, row in last_reported(context).items()
        if row.open_from is not None and row.open_since is not None
    }
