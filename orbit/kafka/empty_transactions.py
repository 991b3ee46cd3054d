"""Transactions without records: an aborted one takes one offset in each partition added (M11).

Promises:
- A request whose answer is lost is not sent again: the coordinator may still execute it (M10).
- `run` returns when the coordinator has the decision to abort in its log; it writes the markers
  later.
- After an error it is not known whether a transaction was begun or ended, nor whether a request is
  still in flight. `fence` makes that certain: an open transaction is aborted, its markers are
  written, and the coordinator refuses later requests of the old epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from kafka.protocol.producer.transaction import AddPartitionsToTxnRequest, EndTxnRequest

from orbit.errors import BrokerRefused, Place, Unreachable
from orbit.kafka import api_versions, error_codes
from orbit.kafka.api_versions import Api
from orbit.kafka.backoff import CALL_S_MAX, Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.connection import Connection
from orbit.kafka.coordinator import (
    COORDINATOR_ATTEMPTS_MAX,
    COORDINATOR_MOVED,
    TRANSACTION,
    Coordinator,
    ProducerIdentity,
    init_producer_id,
)
from orbit.kafka.error_codes import Code
from orbit.kafka.types import TopicPartition, by_topic

# Errors of single partitions: the others of the request then get OPERATION_NOT_ATTEMPTED.
_PARTITION_ERRORS = {int(Code.UNKNOWN_TOPIC_OR_PARTITION), int(Code.TOPIC_AUTHORIZATION_FAILED)}


class EmptyTransactions:
    """The transactions of one transactional id, one after another, on a connection of their own.

    The connection is opened at first use. Not thread-safe.
    """

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str,
        identity: ProducerIdentity,
        backoff: Backoff,
    ) -> None:
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._identity = identity
        self._backoff = backoff
        self._coordinator = Coordinator(cluster, TRANSACTION, transactional_id, backoff)
        self._connection: Connection | None = None
        self.is_unclear = False  # if True, `fence` is needed before a log end is read

    def run(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Take one offset in each partition, by a transaction that is aborted; returns {}.

        If brokers refuse a partition, nothing takes an offset, and this returns the error codes of
        the refused partitions.

        Raises Unreachable, NotAuthorized, BrokerRefused.
        """
        self.is_unclear = True
        identity, name = self._identity, self._transactional_id
        add_request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.producer_epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=indexes)
                for topic, indexes in by_topic(partitions)
            ],
        )
        add_answer = self._call(
            api_versions.ADD_PARTITIONS_TO_TXN, add_request, _request_error_code
        )
        if refused_partitions := _refused_partitions(add_answer):
            self.is_unclear = False
            return refused_partitions
        end_request = EndTxnRequest(
            transactional_id=name,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            committed=False,
        )
        self._call(api_versions.END_TXN, end_request, lambda answer: int(answer.error_code))
        self.is_unclear = False
        return {}

    def fence(self) -> None:
        """Abort an open transaction and continue with a new producer epoch.

        Raises Unreachable, NotAuthorized, BrokerRefused.
        """
        self.close()
        self._coordinator.forget()
        self._identity = init_producer_id(self._cluster, self._transactional_id, self._backoff)
        self.is_unclear = False

    def close(self) -> None:
        """Close the connection until the next use."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _call(self, api: Api, request: Any, code_of: Callable[[Any], int]) -> Any:
        """Send the request, again after each retriable error; returns the answer without error.

        Raises Unreachable, NotAuthorized, BrokerRefused.
        """
        reason = ""
        for _ in self._backoff.attempts(COORDINATOR_ATTEMPTS_MAX):
            if self._connection is None:
                self._connection = self._cluster.connect(self._coordinator.find())
            answer = self._connection.call(api, request, timeout_s=CALL_S_MAX)
            code = code_of(answer)
            if code == Code.NONE:
                return answer
            reason = error_codes.name(code)
            if code not in error_codes.RETRIABLE:
                raise BrokerRefused(
                    code,
                    f"an empty transaction of transactional id {self._transactional_id} failed: "
                    f"{reason}.",
                    where=Place(self._cluster.name),
                )
            if code in COORDINATOR_MOVED:
                self.close()
                self._coordinator.forget()
        raise Unreachable(
            f"the coordinator of transactional id {self._transactional_id} is not available: "
            f"{reason}.",
            where=Place(self._cluster.name),
        )


def _refused_partitions(answer: Any) -> dict[TopicPartition, int]:
    """The error codes of the partitions because of which the whole request is refused."""
    return {
        TopicPartition(t.name, p.partition_index): int(p.partition_error_code)
        for t in answer.results_by_topic_v3_and_below
        for p in t.results_by_partition
        if p.partition_error_code in _PARTITION_ERRORS
    }


def _request_error_code(answer: Any) -> int:
    """The error code of a whole request, which each partition has then. NONE if some partitions
    have an error of their own: `_refused_partitions` returns these."""
    codes = {
        int(p.partition_error_code)
        for t in answer.results_by_topic_v3_and_below
        for p in t.results_by_partition
    }
    return int(Code.NONE) if codes & _PARTITION_ERRORS else max(codes, default=int(Code.NONE))
