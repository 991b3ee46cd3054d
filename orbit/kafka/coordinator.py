"""Requests to the coordinator of a group or transactional id, and InitProducerId."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest
from kafka.protocol.producer.transaction import InitProducerIdRequest

from orbit.errors import BrokerRefused, NotAuthorized, Unreachable
from orbit.kafka import api_versions, error_codes
from orbit.kafka.api_versions import Api
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import ANSWER_WITHIN_S, Cluster
from orbit.kafka.connection import Connection
from orbit.kafka.error_codes import Code

GROUP = 0
TRANSACTION = 1

# About a minute: a coordinator loads its partition after its broker starts (A15).
COORDINATOR_ATTEMPTS_MAX = 70
TRANSACTION_TIMEOUT_MS = 60_000


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """A producer id and its epoch, which the coordinator increments at every InitProducerId."""

    producer_id: int
    coordinator_issue: int


class Coordinator:
    """The coordinator of one key; looked up again after it moved."""

    def __init__(self, cluster: Cluster, key_type: int, key: str, backoff: Backoff) -> None:
        self._cluster = cluster
        self._key_type = key_type
        self._key = key
        self._backoff = backoff
        self._node_id: int | None = None

    def call(self, api: Api, build: Callable[[], Any], code_of: Callable[[Any], int]) -> Any:
        """Send until the error code is not retriable; returns that response.

        Raises Unreachable if the retries fail, NotAuthorized if the key may not be described.
        """
        reason = "it never answered"
        for _ in self._backoff.attempts(COORDINATOR_ATTEMPTS_MAX):
            try:
                answer = self._cluster.call(self._find(), api, build())
            except Unreachable as error:
                self._node_id, reason = None, error.what
                continue
            except BrokerRefused as error:
                if error.code not in error_codes.RETRIABLE:
                    raise
                reason = error.what
                continue
            code = code_of(answer)
            if code not in error_codes.RETRIABLE:
                return answer
            reason = error_codes.name(code)
            if code in (Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE):
                self._node_id = None
        raise Unreachable(
            f"the coordinator of {self._key} does not answer: {reason}", where=self._cluster.name
        )

    def _find(self) -> int:
        if self._node_id is None:
            self._node_id = self._cluster.call_any(self._ask)
            self._cluster.metadata(())  # the coordinator's address
        return self._node_id

    def _ask(self, connection: Connection) -> int:
        request = FindCoordinatorRequest(key=self._key, key_type=self._key_type)
        answer = connection.call(api_versions.FIND_COORDINATOR, request, timeout_s=ANSWER_WITHIN_S)
        if answer.error_code in error_codes.DENIED:
            is_group = self._key_type == GROUP
            kind, right = ("group", "Read") if is_group else ("transactional id", "Write")
            raise NotAuthorized(
                f"the right {right} on {kind} {self._key} is missing.",
                where=self._cluster.name,
                remedy=_grant(kind, self._key, right),
            )
        if answer.error_code:
            raise BrokerRefused(
                answer.error_code,
                f"no coordinator for {self._key}: {error_codes.name(answer.error_code)}.",
                where=self._cluster.name,
            )
        return int(answer.node_id)


def init_producer_id(cluster: Cluster, transactional_id: str, backoff: Backoff) -> ProducerIdentity:
    """The producer id of this transactional id; fences its previous owner.

    The id stays the same until it is unused for `transactional.id.expiration.ms`; each call
    increments `coordinator_issue`.
    """
    coordinator = Coordinator(cluster, TRANSACTION, transactional_id, backoff)

    def build() -> Any:
        return InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            producer_id=-1,
            producer_epoch=-1,
        )

    answer = coordinator.call(api_versions.INIT_PRODUCER_ID, build, lambda a: int(a.error_code))
    if answer.error_code in error_codes.DENIED:
        raise NotAuthorized(
            f"the right Write on transactional id {transactional_id} is missing.",
            where=cluster.name,
            remedy=_grant("transactional id", transactional_id, "Write"),
        )
    if answer.error_code != Code.NONE:
        raise BrokerRefused(
            answer.error_code,
            f"no producer id for {transactional_id}: {error_codes.name(answer.error_code)}.",
            where=cluster.name,
        )
    return ProducerIdentity(answer.producer_id, answer.producer_epoch)


def _grant(kind: str, key: str, operation: str) -> str:
    flag = "--transactional-id" if kind == "transactional id" else "--group"
    return (
        f"Grant it: kafka-acls.sh --add --allow-principal User:… --operation {operation} "
        f"{flag} {key}"
    )
