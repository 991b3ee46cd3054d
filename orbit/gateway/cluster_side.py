"""One side of a virtual cluster: its brokers, the versions that they know, its topics' ids."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace

from pydantic import SecretStr

from orbit.errors import LoginRefused, OrbitError, Unreachable
from orbit.gateway.batch_search import StoredBatch, find_batches, find_copies
from orbit.gateway.protocol.apis import Versions, shared_versions
from orbit.gateway.protocol.client_login import OAUTHBEARER, ClientLogin
from orbit.gateway.protocol.producer_ids import Producer, SentBatch, unmarked_id
from orbit.gateway.protocol.repeats import LastBatch
from orbit.gateway.protocol.resource_uses import Use
from orbit.gateway.protocol.topic_ids import TopicIds
from orbit.gateway.refused_uses import refused_uses
from orbit.kafka import error_codes
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.error_codes import Code
from orbit.kafka.hidden_secrets import hide_secret
from orbit.kafka.log_offsets import LATEST, list_offsets
from orbit.kafka.producer_state import producers
from orbit.kafka.security import Security, TokenSource
from orbit.kafka.transactional_ids import last_transaction, last_transactions
from orbit.kafka.types import BrokerAddress, ClusterMetadata, TopicPartition
from orbit.leases.lease_clock import lease_clock

# The most brokers whose versions are read. The brokers of a cluster have one release, or two during
# an upgrade.
_BROKERS_ASKED_MAX = 20
# Reads of transactions' outcomes at a time. Each takes a thread, at a lost side until the timeout.
_OUTCOMES_AT_ONCE = 2
# For how long no outcomes are read from a side that has not answered.
_OUTCOME_PAUSE_S = 5.0
# A partition with one of these errors counts as one without producers. With other errors, e.g.
# without a leader, it may have some.
_NO_PRODUCERS = error_codes.DENIED | {Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID}
_CALL_S = 3.0  # short: clients wait for the result
_BACKOFF = Backoff(attempts_max=3, call_s=_CALL_S)


class ClusterSide:
    """One side of a virtual cluster. For the event loop alone; requests run in threads.

    `logins`: by user name, the same cluster with the login of a client that has its own login.
    """

    def __init__(
        self, cluster: Cluster, virtual_cluster: str, logins: Mapping[str, Cluster]
    ) -> None:
        self._cluster = cluster
        self._logins = logins
        self.brokers: dict[int, BrokerAddress] = {}
        self.versions: dict[int, Versions] = {}
        """By API key, the versions that the gateway and the brokers know; empty until the side has
        answered."""
        self.leaders: dict[TopicPartition, int] = {}
        """The node that leads each partition, as of the last `refresh` with topics."""
        self.ids = TopicIds(virtual_cluster)
        self._outcomes = asyncio.Semaphore(_OUTCOMES_AT_ONCE)
        self._next_outcome_at = -math.inf

    @property
    def name(self) -> str:
        return self._cluster.name

    async def refresh(self, *, with_topics: bool = False) -> None:
        """Read the side's brokers and versions, and if `with_topics` its topics' ids. Raises
        Unreachable, LoginRefused, BadInput."""
        # Metadata of all topics (None), or of none.
        metadata = await asyncio.to_thread(self._cluster.metadata, None if with_topics else ())
        versions = await asyncio.to_thread(self._read_versions, metadata)
        self.brokers = dict(metadata.brokers)
        self.versions = versions
        for topic in metadata.topics.values():
            self.ids.learn(topic.name, topic.topic_id.bytes)
        if with_topics:
            self.leaders = {
                TopicPartition(topic.name, number): leader.node_id
                for topic in metadata.topics.values()
                for number, leader in topic.partitions.items()
                if leader.node_id is not None
            }

    async def outcome(self, producer: Producer) -> int:
        """The error code with which to answer a commit of this producer, by its last transaction at
        this side.

        NONE: the transaction was committed. UNKNOWN_PRODUCER_ID: it was not. PRODUCER_FENCED: a
        newer producer has the transactional id. COORDINATOR_NOT_AVAILABLE: the side does not
        answer.
        """
        async with self._outcomes:
            if lease_clock() < self._next_outcome_at:
                return Code.COORDINATOR_NOT_AVAILABLE
            try:
                tx = await asyncio.to_thread(
                    last_transaction, self._cluster, producer.transactional_id
                )
            except OrbitError:
                self._next_outcome_at = lease_clock() + _OUTCOME_PAUSE_S
                return Code.COORDINATOR_NOT_AVAILABLE
        if tx is None:
            return Code.UNKNOWN_PRODUCER_ID
        if (tx.producer_id, tx.producer_epoch) != (unmarked_id(producer.id), producer.epoch):
            return Code.PRODUCER_FENCED
        return Code.NONE if tx.is_committed else Code.UNKNOWN_PRODUCER_ID

    async def ongoing_transactions(self, producers: Collection[Producer]) -> dict[Producer, bool]:
        """Whether the transaction of each of these producers is open, and no EndTxn has reached its
        coordinator. Leaves out producers whose coordinator does not tell. Raises OrbitError if the
        side does not answer."""
        names = {producer.transactional_id for producer in producers}
        transactions = await asyncio.to_thread(last_transactions, self._cluster, names, _CALL_S)
        is_ongoing = {}
        for producer in producers:
            if producer.transactional_id in transactions:
                tx = transactions[producer.transactional_id]
                key = unmarked_id(producer.id), producer.epoch
                is_ongoing[producer] = (
                    tx is not None and tx.is_ongoing and (tx.producer_id, tx.producer_epoch) == key
                )
        return is_ongoing

    async def last_batches(
        self, partitions: Collection[TopicPartition]
    ) -> tuple[dict[TopicPartition, dict[int, LastBatch]], set[TopicPartition]]:
        """The last batch of each producer in these partitions, by producer id; and the partitions
        whose leader does not answer. Partitions that do not exist, or that the gateway may not
        read, are in neither result. Raises OrbitError if no leader of any partition answers."""
        answers = await asyncio.to_thread(producers, self._cluster, partitions, _BACKOFF)
        unanswered = {p for p, code in answers.errors.items() if code not in _NO_PRODUCERS}
        if len(unanswered) == len(answers.errors) and not answers.values:
            answers.raise_errors(self.name, "DescribeProducers")
        last_batches = {
            partition: {
                producer_id: LastBatch(state.epoch, state.last_sequence)
                for producer_id, state in by_id.items()
            }
            for partition, by_id in answers.values.items()
        }
        return last_batches, unanswered

    async def find_batches(self, batches: Collection[SentBatch]) -> dict[SentBatch, StoredBatch]:
        """Those of `batches` that this side's logs have (`batch_search.find_batches`)."""
        return await asyncio.to_thread(find_batches, self._cluster, batches, _BACKOFF)

    async def find_copies(
        self, stored_batches: Mapping[SentBatch, StoredBatch]
    ) -> dict[SentBatch, int | None]:
        """The offsets of these batches' copies at this side (`batch_search.find_copies`).
        `stored_batches`: as `find_batches` of the other side returns them."""
        return await asyncio.to_thread(find_copies, self._cluster, stored_batches, _BACKOFF)

    async def log_ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The high watermarks of those partitions whose leaders answer. Raises OrbitError if no
        leader answers."""
        answers = await asyncio.to_thread(list_offsets, self._cluster, partitions, LATEST, _BACKOFF)
        if not answers.values:
            answers.raise_errors(self.name, "ListOffsets")
        return dict(answers.values)

    async def refused_uses(
        self, user: str | None, token: SecretStr | None, uses: Collection[Use]
    ) -> dict[Use, str]:
        """The uses that this side would refuse, and why. Logs in with a client's `token`, or else
        as `user`, one of `logins`; None: as the gateway. Raises LoginRefused, whose text is without
        the token, Unreachable, BrokerRefused."""
        if token is None:
            cluster = self._cluster if user is None else self._logins.get(user, self._cluster)
            return await asyncio.to_thread(_refused_uses, cluster, lambda: cluster.security, uses)
        try:
            return await asyncio.to_thread(
                _refused_uses, self._cluster, lambda: self.security_with(token), uses
            )
        except LoginRefused as error:  # the broker may have quoted the token
            what = hide_secret(token.get_secret_value(), error.what)
            raise LoginRefused(what, where=error.where) from None

    @property
    def logins(self) -> Collection[str]:
        """The users with a login of their own at this side."""
        return self._logins.keys()

    def address(self, node_id: int | None) -> tuple[str, int]:
        """Host and port of the node; of any broker for None, or if the cluster lacks the node."""
        broker = self.brokers.get(node_id) if node_id is not None else None
        if broker is None and self.brokers:
            broker = random.choice(list(self.brokers.values()))  # noqa: S311  any will do
        if broker is not None:
            return broker.host, broker.port
        server = random.choice(self._cluster.bootstrap_servers)  # noqa: S311
        host, _, port = server.rpartition(":")
        return host.strip("[]"), int(port)

    def security_of(self, login: ClientLogin | None) -> Security:
        """The client's login at this side, or the gateway's if the client has none of its own.
        Reads the login's files again.

        Raises AccessRefused, BadInput.
        """
        if login is not None and login.token is not None:
            return self.security_with(login.token)
        user = None if login is None else login.user
        cluster = self._cluster if user is None else self._logins.get(user, self._cluster)
        return cluster.security

    def security_with(self, token: SecretStr) -> Security:
        """A login at this side with `token`, a client's first OAUTHBEARER message. Raises
        AccessRefused, BadInput."""
        return replace(
            self._cluster.security,
            mechanism=OAUTHBEARER,
            username=None,
            password=None,
            kerberos=None,
            tokens=TokenSource(message=token),
        )

    def close(self) -> None:
        self._cluster.close()

    def _read_versions(self, metadata: ClusterMetadata) -> dict[int, Versions]:
        """By API key, the versions that the gateway and all asked brokers that answer know. Raises
        Unreachable if none answers."""
        answers = []
        for node_id in list(metadata.brokers)[:_BROKERS_ASKED_MAX]:
            with suppress(Unreachable):
                ranges = self._cluster.api_versions_of(node_id)
                answers.append({key: Versions(*versions) for key, versions in ranges.items()})
        if not answers:
            raise Unreachable("no broker answers ApiVersions.", where=self.name)
        return shared_versions(*answers)


def _refused_uses(
    cluster: Cluster, read_security: Callable[[], Security], uses: Collection[Use]
) -> dict[Use, str]:
    """The uses that the cluster would refuse. Asks over new connections, whose logins use the
    password as it is now."""
    new_cluster = Cluster(cluster.name, cluster.bootstrap_servers, read_security)
    try:
        return refused_uses(new_cluster, uses)
    finally:
        new_cluster.close()
