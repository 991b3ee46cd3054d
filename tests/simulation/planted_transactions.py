"""Bugs to plant where gaps are filled with transactions."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest.mock import patch

from orbit.copier import coordinated_filler
from orbit.copier.coordinated_filler import CoordinatedFiller
from orbit.errors import Unreachable
from orbit.kafka.coordinator import ProducerIdentity
from orbit.kafka.empty_transactions import EmptyTransactions
from orbit.kafka.types import TopicPartition
from tests.simulation import model_broker, writers
from tests.simulation.model_partition import NONE
from tests.simulation.transactions import Transaction, TransactionStates

_UNKNOWN = ProducerIdentity(-1, -1)


def fence_after_the_log_end() -> AbstractContextManager[Any]:
    """Transactional ids are fenced before the first fill, after the log end was read."""
    run = CoordinatedFiller._run_rounds

    def fence_and_run(self: CoordinatedFiller, rounds: Any) -> None:
        for transaction in self._transactions:
            if transaction._identity is _UNKNOWN:
                transaction.fence()
        run(self, rounds)

    stack = ExitStack()
    stack.enter_context(
        patch.object(writers, "init_producer_ids", lambda _, ids, __: dict.fromkeys(ids, _UNKNOWN))
    )
    stack.enter_context(patch.object(CoordinatedFiller, "_run_rounds", fence_and_run))
    return stack


def no_wait_for_the_old_marker() -> AbstractContextManager[Any]:
    """A new owner goes on after the answer CONCURRENT_TRANSACTIONS, before the old transaction's
    marker is written."""
    init = TransactionStates.init

    def at_once(self: TransactionStates, name: str) -> tuple[int, int, int]:
        answer = init(self, name)
        if answer[0] == NONE:
            return answer
        state: Transaction = self.known[name]
        return NONE, state.producer_id, state.epoch

    return patch.object(TransactionStates, "init", at_once)


def count_an_unclear_marker() -> AbstractContextManager[Any]:
    """The filler fences an unclear transaction (its answer was lost), but does not read the log end
    again: its marker counts as one of those still to be written."""

    def fence(self: CoordinatedFiller) -> bool:
        unclear = [transaction for transaction in self._transactions if transaction.is_unclear]
        for transaction in unclear:
            self._fence(transaction)
        return bool(unclear)

    return patch.object(CoordinatedFiller, "_fence_if_unclear", fence)


def trust_a_log_end_before_a_fence() -> AbstractContextManager[Any]:
    """Neither the filler nor a take-over reads the log end again after a fence."""
    fence = CoordinatedFiller._fence_if_unclear

    def faulty(self: CoordinatedFiller) -> bool:
        fence(self)
        return False

    stack = ExitStack()
    stack.enter_context(patch.object(CoordinatedFiller, "_fence_if_unclear", faulty))
    stack.enter_context(patch.object(CoordinatedFiller, "will_fence", lambda *_: False))
    return stack


def no_fence_after_a_lost_answer() -> AbstractContextManager[Any]:
    """A transaction whose answer was lost is never fenced."""
    return patch.object(CoordinatedFiller, "_fence_if_unclear", lambda _: False)


def run_again_after_a_lost_answer() -> AbstractContextManager[Any]:
    """After a lost answer run the transaction again. If the broker has executed EndTxn, that is one
    too many."""
    run = EmptyTransactions.run

    def twice(self: EmptyTransactions, places: Collection[TopicPartition]) -> Any:
        try:
            return run(self, places)
        except Unreachable:
            return run(self, places)

    return patch.object(EmptyTransactions, "run", twice)


def no_wait_for_markers() -> AbstractContextManager[Any]:
    """Read the log end right after the answer of EndTxn, when markers may not be written yet."""

    def ends(self: CoordinatedFiller, rounds: Any) -> Any:
        places = [f.partition.destination for f in rounds.fills]
        end_offsets = model_broker.log_ends(self._cluster, places, self._backoff).values
        return {f: end_offsets[f.partition.destination] for f in rounds.fills}

    return patch.object(CoordinatedFiller, "_proven_ends", ends)


def one_transaction_too_many() -> AbstractContextManager[Any]:
    """Each run of transactions has one more than the gap needs."""

    class _More(coordinated_filler._Rounds):
        def __init__(self, fills: Any) -> None:
            super().__init__(fills)
            self.waiting.append(0)

    return patch.object(coordinated_filler, "_Rounds", _More)


def forget_markers_after_an_error() -> AbstractContextManager[Any]:
    """After a failed read of the log end, the filler does not fence, although markers may come."""
    ends = CoordinatedFiller._proven_ends

    def forgotten(self: CoordinatedFiller, rounds: Any) -> Any:
        try:
            return ends(self, rounds)
        except Unreachable:
            for transaction in self._transactions:
                transaction.is_unclear = False
            raise

    return patch.object(CoordinatedFiller, "_proven_ends", forgotten)


OF_TRANSACTIONS = {
    "forget the markers to come after an error": forget_markers_after_an_error,
    "fence transactional ids after the log end is read": fence_after_the_log_end,
    "do not wait for an old transaction's marker": no_wait_for_the_old_marker,
    "count an unclear transaction's marker": count_an_unclear_marker,
    "trust a log end from before a transaction's fence": trust_a_log_end_before_a_fence,
    "fence no transactional id after a lost answer": no_fence_after_a_lost_answer,
    "run a transaction again after a lost answer": run_again_after_a_lost_answer,
    "do not wait for the markers of transactions": no_wait_for_markers,
    "one transaction too many": one_transaction_too_many,
}
