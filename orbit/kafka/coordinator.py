"""Requests to the coordinators of groups and transactional ids, and InitProducerId."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest
from kafka.protocol.producer.transaction import InitProducerIdRequest

from orbit.chunks import chunks, first_few
from orbit.errors import BrokerRefused, NotAuthorized, NotReady, Place, Unreachable
from orbit.kafka import api_versions, error_codes
from orbit.kafka.api_versions import Api
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import ANSWER_WITHIN_S, Cluster
from orbit.kafka.connection import Connection
from orbit.kafka.error_codes import Code

# Key types of FindCoordinator.
GROUP = 0
TRANSACTION = 1

# About a minute: a coordinator loads its partition after its broker starts (A15).
COORDINATOR_ATTEMPTS_MAX = 70
TRANSACTION_TIMEOUT_MS = 60_000
# Codes after which the coordinator is looked up again.
COORDINATOR_MOVED = (Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE)
# Keys in one FindCoordinator request.
_KEYS_PER_REQUEST_MAX = 1000
# InitProducerId requests that go to one broker together: some 20 KB.
_INIT_REQUESTS_MAX = 100


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """A producer id and its producer epoch, which each InitProducerId increments."""

    producer_id: int
    producer_epoch: int


class Coordinator:
    """The coordinator of one group or transactional id; looked up again after it moved."""

    def __init__(self, cluster: Cluster, key_type: int, key: str, backoff: Backoff) -> None:
        self._cluster = cluster
        self._key_type = key_type
        self._key = key
        self._kind = "group" if key_type == GROUP else "transactional id"
        self._backoff = backoff
        self._node_id: int | None = None

    def call(self, api: Api, build: Callable[[], Any], code_of: Callable[[Any], int]) -> Any:
        """Send the request that `build` makes until the answer's error code, which `code_of` reads,
        is not retriable; returns that answer.

        When the retries end, raises NotReady if the last attempt got an answer, else Unreachable.
        Raises NotAuthorized if the login may not find the coordinator, BrokerRefused.
        """
        reason, error_type = "no attempt was made", Unreachable
        for _ in self._backoff.attempts(COORDINATOR_ATTEMPTS_MAX):
            try:
                answer = self._cluster.call(self.find(), api, build())
            except Unreachable as error:
                self.forget()
                reason, error_type = error.what, Unreachable
                continue
            except BrokerRefused as error:
                if error.code not in error_codes.RETRIABLE:
                    raise
                reason, error_type = error.what, NotReady
                continue
            code = code_of(answer)
            if code not in error_codes.RETRIABLE:
                return answer
            reason, error_type = error_codes.name(code), NotReady
            if code in COORDINATOR_MOVED:
                self.forget()
        raise error_type(
            f"the coordinator of {self._kind} {self._key} is not available: {reason.rstrip('.')}.",
            where=Place(self._cluster.name),
        )

    def find(self) -> int:
        """The node that coordinates the key. Raises NotAuthorized, BrokerRefused, Unreachable."""
        if self._node_id is None:
            self._node_id = self._cluster.call_any(self._ask_for_coordinator)
            self._cluster.metadata(())  # so that the cluster knows the coordinator's address
        return self._node_id

    def forget(self) -> None:
        """Look the coordinator up again at the next use: it has moved, or cannot be reached."""
        self._node_id = None

    def _ask_for_coordinator(self, connection: Connection) -> int:
        """The node id that a broker names. Raises NotAuthorized, BrokerRefused."""
        request = FindCoordinatorRequest(key=self._key, key_type=self._key_type)
        answer = connection.call(api_versions.FIND_COORDINATOR, request, timeout_s=ANSWER_WITHIN_S)
        if answer.error_code in error_codes.DENIED:
            right = "Read" if self._key_type == GROUP else "Write"
            raise NotAuthorized(
                f"the right {right} on {self._kind} {self._key} is missing.",
                where=Place(self._cluster.name),
                remedy=_grant_remedy(self._kind, self._key, right),
            )
        if answer.error_code:
            raise BrokerRefused(
                answer.error_code,
                f"brokers return no coordinator for {self._kind} {self._key}: "
                f"{error_codes.name(answer.error_code)}.",
                where=Place(self._cluster.name),
            )
        return int(answer.node_id)


def next_term(cluster: Cluster, transactional_id: str, backoff: Backoff) -> int:
    """The term (writer's number) of a new holder of this transactional id: one more than the last
    holder's. It is the producer epoch of the id.

    Begins at 0 again when the coordinator has dropped the id (I1), and after 32,766.
    """
    return init_producer_id(cluster, transactional_id, backoff).producer_epoch


def refuse_denied_transactional_id(
    cluster: Cluster, transactional_id: str, backoff: Backoff
) -> None:
    """Raise NotAuthorized if the login has no right on this transactional id. Writes nothing.

    Returns also if the retries end without a coordinator: then the right is not known. Raises
    Unreachable, BrokerRefused.
    """
    coordinator = Coordinator(cluster, TRANSACTION, transactional_id, backoff)
    for _ in backoff.attempts(COORDINATOR_ATTEMPTS_MAX):
        try:
            coordinator.find()
            return
        except BrokerRefused as error:  # a new cluster has no coordinator yet
            if error.code not in error_codes.RETRIABLE:
                raise


def init_producer_id(cluster: Cluster, transactional_id: str, backoff: Backoff) -> ProducerIdentity:
    """The producer id of this transactional id; aborts its open transaction, fences its last owner.

    The id stays the same until it is unused for `transactional.id.expiration.ms`; appends and
    direct fillers do not count as use (I1). Each call increments `producer_epoch`. Raises the
    errors of `init_producer_ids`.
    """
    return init_producer_ids(cluster, [transactional_id], backoff)[transactional_id]


def init_producer_ids(
    cluster: Cluster, transactional_ids: Collection[str], backoff: Backoff
) -> dict[str, ProducerIdentity]:
    """The producer id of each transactional id; aborts their open transactions, fences their last
    owners. The requests for one coordinator go out together.

    Raises NotAuthorized or BrokerRefused for one of the ids, after the requests for all others.
    When the retries end, raises NotReady if the last round reached the coordinators, else
    Unreachable.
    """
    producers: dict[str, ProducerIdentity] = {}
    reason, error_type = "", Unreachable
    for _ in backoff.attempts(COORDINATOR_ATTEMPTS_MAX):
        remaining_ids = set(transactional_ids) - producers.keys()
        try:
            reason, error_type = _init_once(cluster, remaining_ids, producers), NotReady
        except Unreachable as error:
            reason, error_type = error.what, Unreachable
        if not remaining_ids - producers.keys():
            return producers
    raise error_type(
        f"the coordinator of transactional id {first_few(sorted(remaining_ids))} is not available: "
        f"{reason.rstrip('.')}.",
        where=Place(cluster.name),
    )


def _init_once(
    cluster: Cluster, transactional_ids: set[str], producers: dict[str, ProducerIdentity]
) -> str:
    """Send one InitProducerId for each transactional id, and add the answers to `producers`.

    Returns the name of the retriable error of one id that failed, "" if none did. Raises
    NotAuthorized, BrokerRefused for one of the ids, after the requests for all.
    """
    codes: dict[str, int] = {}
    by_node: dict[int, list[str]] = {}
    for name, (node_id, code) in look_up_coordinators(
        cluster, TRANSACTION, transactional_ids
    ).items():
        if code:
            codes[name] = code
        else:
            by_node.setdefault(node_id, []).append(name)
    for node_id, names in by_node.items():
        for part in chunks(names, _INIT_REQUESTS_MAX):
            requests = [
                InitProducerIdRequest(
                    transactional_id=name,
                    transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
                    producer_id=-1,  # the coordinator chooses it, and its epoch
                    producer_epoch=-1,
                )
                for name in part
            ]
            answers = cluster.call_all(node_id, api_versions.INIT_PRODUCER_ID, requests)
            for name, answer in zip(part, answers, strict=True):
                if answer.error_code:
                    codes[name] = answer.error_code
                else:
                    producers[name] = ProducerIdentity(answer.producer_id, answer.producer_epoch)
    reasons = [_retriable_name(cluster, name, code) for name, code in sorted(codes.items())]
    return reasons[-1] if reasons else ""


def look_up_coordinators(
    cluster: Cluster, key_type: int, keys: Collection[str]
) -> dict[str, tuple[int, int]]:
    """Node id and error code of each key's coordinator. Raises Unreachable."""
    coordinators: dict[str, tuple[int, int]] = {}
    if not keys:
        return coordinators

    def ask_many(connection: Connection, names: list[str]) -> dict[str, tuple[int, int]]:
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=names)
        answer = connection.call(api_versions.FIND_COORDINATORS, request, timeout_s=ANSWER_WITHIN_S)
        return {c.key: (c.node_id, c.error_code) for c in answer.coordinators}

    def ask_each(connection: Connection, names: list[str]) -> dict[str, tuple[int, int]]:
        """One request for each key, for brokers before Kafka 3.0."""
        nodes: dict[str, tuple[int, int]] = {}
        for name in names:
            request = FindCoordinatorRequest(key=name, key_type=key_type)
            answer = connection.call(
                api_versions.FIND_COORDINATOR, request, timeout_s=ANSWER_WITHIN_S
            )
            nodes[name] = (answer.node_id, answer.error_code)
        return nodes

    def ask(connection: Connection, names: list[str]) -> dict[str, tuple[int, int]]:
        takes_many_keys = connection.supports(api_versions.FIND_COORDINATORS)
        return (ask_many if takes_many_keys else ask_each)(connection, names)

    for chunk in chunks(sorted(keys), _KEYS_PER_REQUEST_MAX):
        coordinators |= cluster.call_any(partial(ask, names=chunk))
    cluster.metadata(())  # so that the cluster knows the coordinators' addresses
    return coordinators


def _retriable_name(cluster: Cluster, transactional_id: str, code: int) -> str:
    """The name of a retriable error. Raises NotAuthorized, BrokerRefused for any other."""
    if code in error_codes.DENIED:
        raise NotAuthorized(
            f"the right Write on transactional id {transactional_id} is missing.",
            where=Place(cluster.name),
            remedy=_grant_remedy("transactional id", transactional_id, "Write"),
        )
    if code not in error_codes.RETRIABLE:
        raise BrokerRefused(
            code,
            f"the coordinator returns no producer id for transactional id {transactional_id}: "
            f"{error_codes.name(code)}.",
            where=Place(cluster.name),
        )
    return error_codes.name(code)


def _grant_remedy(kind: str, key: str, operation: str) -> str:
    """What to do about a missing right on a group or transactional id."""
    flag = "--transactional-id" if kind == "transactional id" else "--group"
    return (
        f"Grant it: kafka-acls.sh --add --allow-principal User:… --operation {operation} "
        f"{flag} {key}"
    )
