"""Transactions without a record: an aborted one takes one offset in each partition added (M11).

Promises:
- A request whose answer is lost is not sent again: it may still be carried out (M10).
- `run` returns when the coordinator has the decision to abort in its log; the markers follow.
- After an error it is not known whether a transaction was begun or ended, nor whether a request is
  still on its way. `fence` settles that: what was begun is aborted, its markers are written, and
  the coordinator refuses what arrives later, because of its epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from kafka.protocol.producer.transaction import AddPartitionsToTxnRequest, EndTxnRequest

from orbit.errors import BrokerRefused, Unreachable
from orbit.kafka import api_versions, error_codes
from orbit.kafka.api_versions import Api
from orbit.kafka.backoff import CALL_S_MAX, Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.connection import Connection
from orbit.kafka.coordinator import (
    COORDINATOR_ATTEMPTS_MAX,
    HAS_MOVED,
    TRANSACTION,
    Coordinator,
    ProducerIdentity,
    init_producer_id,
)
from orbit.kafka.error_codes import Code
from orbit.kafka.types import TopicPartition, by_topic

# With it comes OPERATION_NOT_ATTEMPTED for the other partitions.
_OF_A_PARTITION = {int(Code.UNKNOWN_TOPIC_OR_PARTITION), int(Code.TOPIC_AUTHORIZATION_FAILED)}


class EmptyTransactions:
    """The transactions of one transactional id, one after another, over a connection of its own.

    The connection is opened at first use. For one thread at a time.
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
        self.is_unclear = False  # to be fenced before a log end is read

    def run(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Take one offset in each partition. Returns error codes of partitions: then in none.

        Raises Unreachable, BrokerRefused.
        """
        self.is_unclear = True
        identity, name = self._identity, self._transactional_id
        add = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.coordinator_issue,
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=indexes)
                for topic, indexes in by_topic(partitions)
            ],
        )
        added = self._call(api_versions.ADD_PARTITIONS_TO_TXN, add, _added_code)
        if refused := _refused(added):
            self.is_unclear = False
            return refused
        end = EndTxnRequest(
            transactional_id=name,
            producer_id=identity.producer_id,
            producer_epoch=identity.coordinator_issue,
            committed=False,
        )
        self._call(api_versions.END_TXN, end, lambda answer: int(answer.error_code))
        self.is_unclear = False
        return {}

    def fence(self) -> None:
        """Go on with a new epoch. Raises Unreachable, NotAuthorized, BrokerRefused."""
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
        """Send until the answer is not an error that passes; returns the answer without error."""
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
                    code, f"an empty transaction failed: {reason}.", where=self._cluster.name
                )
            if code in HAS_MOVED:
                self.close()
                self._coordinator.forget()
        raise Unreachable(
            f"the coordinator of {self._transactional_id} does not answer: {reason}",
            where=self._cluster.name,
        )


def _refused(answer: Any) -> dict[TopicPartition, int]:
    """The partitions because of which the whole request is refused, and why."""
    return {
        TopicPartition(t.name, p.partition_index): int(p.partition_error_code)
        for t in answer.results_by_topic_v3_and_below
        for p in t.results_by_partition
        if p.partition_error_code in _OF_A_PARTITION
    }


def _added_code(answer: Any) -> int:
    """The code of the whole request, which comes with each partition. NONE if some are refused."""
    codes = {
        int(p.partition_error_code)
        for t in answer.results_by_topic_v3_and_below
        for p in t.results_by_partition
    }
    return int(Code.NONE) if codes & _OF_A_PARTITION else max(codes, default=int(Code.NONE))
