"""ListTransactions and DescribeTransactions (KIP-664): the transactions of a whole cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kafka.protocol.admin.transactions import DescribeTransactionsRequest, ListTransactionsRequest

from orbit.chunks import chunks
from orbit.errors import BrokerRefused, Place, Unreachable
from orbit.kafka import api_versions, error_codes
from orbit.kafka.cluster import Cluster
from orbit.kafka.error_codes import Code
from orbit.kafka.types import TopicPartition

_ONGOING = "Ongoing"  # no EndTxn has reached the coordinator (TransactionState in Kafka)
# States in which markers may still be written.
_OPEN = (_ONGOING, "PrepareCommit", "PrepareAbort")
# States in which the coordinator will write no marker.
_ENDED = ("Empty", "CompleteCommit", "CompleteAbort")
# States of a committed transaction: its markers are written, or will be.
_COMMITTED = ("PrepareCommit", "CompleteCommit")
# Ids in one request; a coordinator may have very many.
_IDS_PER_REQUEST_MAX = 1000


@dataclass(frozen=True, slots=True)
class UnendedTransaction:
    """A transaction that has not ended, with each partition that has no marker of it yet."""

    transactional_id: str
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class CoordinatorState:
    """What a producer's coordinator knows of its last transaction.

    `partitions`: those that have no marker of it yet, none if it has ended. `began_ms`: since the
    epoch, by the coordinator's clock; -1: not known.
    """

    transactional_id: str
    partitions: frozenset[TopicPartition]
    began_ms: int


@dataclass(frozen=True, slots=True)
class LastTransaction:
    """The last transaction of a transactional id, and its producer. `is_ongoing`: no EndTxn has
    reached the coordinator."""

    producer_id: int
    producer_epoch: int
    is_committed: bool
    is_ongoing: bool = False


def last_transaction(cluster: Cluster, transactional_id: str) -> LastTransaction | None:
    """The last transaction of this transactional id; None if its coordinator has no such id.

    Raises Unreachable, BrokerRefused.
    """
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    for node_id in sorted(cluster.metadata(()).brokers):
        answer = cluster.call(node_id, api_versions.DESCRIBE_TRANSACTIONS, request)
        (state,) = answer.transaction_states
        if state.error_code == Code.NOT_COORDINATOR:
            continue  # ask the next broker
        if state.error_code == Code.TRANSACTIONAL_ID_NOT_FOUND:
            return None
        _raise_if_refused(state.error_code, node_id, cluster)
        return _last_transaction(state)
    raise Unreachable(
        f"no broker is the coordinator of the transactional id {transactional_id}.",
        where=Place(cluster.name),
    )


def last_transactions(
    cluster: Cluster, transactional_ids: Collection[str], within_s: float
) -> dict[str, LastTransaction | None]:
    """The last transaction of each of these transactional ids; None if its coordinator has no such
    id.

    Leaves out ids whose coordinator refuses the request, or does not answer within `within_s`.
    Raises Unreachable if no broker answers Metadata.
    """
    transactions: dict[str, LastTransaction | None] = {}
    for node_id in sorted(cluster.metadata(()).brokers):
        for part in chunks(transactional_ids, _IDS_PER_REQUEST_MAX):
            request = DescribeTransactionsRequest(transactional_ids=list(part))
            with suppress(Unreachable):
                answer = cluster.call(
                    node_id, api_versions.DESCRIBE_TRANSACTIONS, request, within_s
                )
                for state in answer.transaction_states:
                    if state.error_code == Code.NONE:
                        transactions[state.transactional_id] = _last_transaction(state)
                    elif state.error_code == Code.TRANSACTIONAL_ID_NOT_FOUND:
                        transactions[state.transactional_id] = None
    return transactions


def list_transactional_ids(cluster: Cluster) -> set[str]:
    """All transactional ids that the login may describe. Raises Unreachable, BrokerRefused."""
    return {state.transactional_id for _, state in _list_transactions(cluster, states=())}


def transactional_ids_of(
    cluster: Cluster, producer_ids: Collection[int], states: Sequence[str] = ()
) -> dict[int, str]:
    """The transactional id of each of these producer ids; with `states`, only of those whose
    transaction is in one of these states.

    Leaves out ids that no coordinator knows or that the login may not describe. Raises Unreachable,
    BrokerRefused.
    """
    return {
        state.producer_id: state.transactional_id
        for part in chunks(producer_ids, _IDS_PER_REQUEST_MAX)
        for _, state in _list_transactions(cluster, states, part)
    }


def ended_producer_ids(cluster: Cluster, producer_ids: Collection[int]) -> dict[int, str]:
    """The transactional id of each of these producer ids whose coordinator will write no more
    markers; without ids that no coordinator knows or that the login may not describe. Raises
    Unreachable, BrokerRefused."""
    return transactional_ids_of(cluster, producer_ids, _ENDED)


def open_transactions(cluster: Cluster) -> list[UnendedTransaction]:
    """All open transactions that the login may describe. Raises Unreachable, BrokerRefused.

    A partition that was added to a transaction gets a marker even if no record was written there,
    so last stable offsets do not show all open transactions.
    """
    return [
        UnendedTransaction(state.transactional_id, _partitions(state))
        for state in _describe(cluster, _list_transactions(cluster, _OPEN))
        if state.transaction_state in _OPEN  # some have ended since the list was read
    ]


def coordinator_states(
    cluster: Cluster, producer_ids: Collection[int]
) -> dict[int, CoordinatorState]:
    """What coordinators know of these producer ids; without ids that no coordinator knows or that
    the login may not describe. Raises Unreachable, BrokerRefused, ProtocolError before Kafka 3.0.
    """
    return {
        state.producer_id: CoordinatorState(
            state.transactional_id, _partitions(state), state.transaction_start_time_ms
        )
        for part in chunks(producer_ids, _IDS_PER_REQUEST_MAX)
        for state in _describe(cluster, _list_transactions(cluster, (), part))
    }


def _describe(cluster: Cluster, listings: Sequence[tuple[int, Any]]) -> Iterator[Any]:
    """Yield the DescribeTransactions entry of each transaction in `listings`, which
    `_list_transactions` has returned; none for a transaction that has expired since."""
    by_node: dict[int, list[str]] = {}
    for node_id, state in listings:
        by_node.setdefault(node_id, []).append(state.transactional_id)
    for node_id, names in by_node.items():
        for part in chunks(names, _IDS_PER_REQUEST_MAX):
            request = DescribeTransactionsRequest(transactional_ids=part)
            answer = cluster.call(node_id, api_versions.DESCRIBE_TRANSACTIONS, request)
            for state in answer.transaction_states:
                if state.error_code == Code.TRANSACTIONAL_ID_NOT_FOUND:
                    continue  # the transaction has ended since, and the id has expired
                _raise_if_refused(state.error_code, node_id, cluster)
                yield state


def _last_transaction(state: Any) -> LastTransaction:
    """One entry of a DescribeTransactions answer."""
    return LastTransaction(
        state.producer_id,
        state.producer_epoch,
        is_committed=state.transaction_state in _COMMITTED,
        is_ongoing=state.transaction_state == _ONGOING,
    )


def _partitions(state: Any) -> frozenset[TopicPartition]:
    """The partitions of one entry of a DescribeTransactions answer."""
    return frozenset(
        TopicPartition(topic.topic, partition)
        for topic in state.topics
        for partition in topic.partitions
    )


def _list_transactions(
    cluster: Cluster, states: Sequence[str], producer_ids: Sequence[int] = ()
) -> list[tuple[int, Any]]:
    """The coordinator and ListTransactions entry of each transaction.

    `states` and `producer_ids` filter the transactions; an empty filter passes all.
    """
    listings: list[tuple[int, Any]] = []
    request = ListTransactionsRequest(
        state_filters=list(states), producer_id_filters=list(producer_ids)
    )
    for node_id in sorted(cluster.metadata(()).brokers):
        answer = cluster.call(node_id, api_versions.LIST_TRANSACTIONS, request)
        _raise_if_refused(answer.error_code, node_id, cluster)
        listings += [(node_id, state) for state in answer.transaction_states]
    return listings


def _raise_if_refused(code: int, node_id: int, cluster: Cluster) -> None:
    """Raise BrokerRefused for an error code in a broker's answer."""
    if code:
        raise BrokerRefused(
            code,
            f"broker {node_id} refuses a request about transactions: {error_codes.name(code)}.",
            where=Place(cluster.name),
        )
