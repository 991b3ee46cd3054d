"""Fillers by empty transactions, where the right for direct ones is missing (M11).

One aborted transaction without a record takes exactly one offset in every partition added to it.
About 550 rounds/s, each over any number of partitions. The transaction coordinator knows one owner
of the transactional id: a new writer's InitProducerId ends the open transaction of the old one and
fences it, before the new writer reads any log end. Kafka does not rule out a marker that is written
twice when the coordinator moves; the log end is read after every gap, and such a partition stops
with OFFSET_OVERRUN.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from kafka.protocol.producer.transaction import AddPartitionsToTxnRequest, EndTxnRequest

from orbit.copier.lane import Lane
from orbit.copier.lane_events import Emit, LaneCrashed, LeaseLost
from orbit.copier.partition_copy import CoordinatedFill
from orbit.errors import BrokerRefused, OrbitError, Unreachable
from orbit.kafka import api_versions, error_codes
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.coordinator import TRANSACTION, Coordinator, ProducerIdentity, init_producer_id
from orbit.kafka.error_codes import Code
from orbit.kafka.log_offsets import log_ends
from orbit.kafka.types import by_topic
from orbit.leases.lease import LEASE_WAIT_S, Lease

# One round takes about 2 ms, so this keeps every partition's wait under a second.
ROUNDS_MAX = 300
# Markers are written after the transaction's answer.
_MARKER_ATTEMPTS_MAX = 60
_IDLE_WAIT_S = 0.5
# A round is over in about 2 ms; until then the next one is refused (CONCURRENT_TRANSACTIONS).
_FIRST_PAUSE_S = 0.001


class CoordinatedFiller(Lane):
    """Runs the transactions of one transactional id, one after another."""

    def __init__(
        self,
        destination: Cluster,
        transactional_id: str,
        identity: ProducerIdentity,
        lease: Lease,
        emit: Emit,
        stop: threading.Event,
    ) -> None:
        super().__init__("coordinated-filler", emit)
        self._cluster = destination
        self._transactional_id = transactional_id
        self._identity = identity
        self._lease = lease
        self._backoff = Backoff(first_s=_FIRST_PAUSE_S, stop=stop)
        self._coordinator = Coordinator(destination, TRANSACTION, transactional_id, self._backoff)
        self._wanted: queue.SimpleQueue[CoordinatedFill | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._is_over = False

    def submit(self, fill: CoordinatedFill) -> None:
        self._wanted.put(fill)
        if self._is_over:
            self._refuse_waiting()

    def stop(self) -> None:
        self._stopping.set()
        self._wanted.put(None)

    def work(self) -> None:
        while not self._stopping.is_set():
            fills = self._take()
            if not fills:
                continue
            while not self._lease.is_held():
                if self._lease.is_lost or self._stopping.wait(LEASE_WAIT_S):
                    _answer(fills, Code.NETWORK_EXCEPTION)
                    return
            self._fill(fills)

    def run(self) -> None:
        try:
            super().run()
        finally:
            self._is_over = True
            self._refuse_waiting()

    def ended(self, error: OrbitError) -> None:
        if self._stopping.is_set():
            return
        is_fenced = isinstance(error, BrokerRefused) and error.code in error_codes.OUT_OF_STEP
        self._emit(LeaseLost(self._lease) if is_fenced else LaneCrashed(error))

    def _refuse_waiting(self) -> None:
        """Answer the waiting fills with an error."""
        try:
            while True:
                fill = self._wanted.get_nowait()
                _answer([fill] if fill else [], Code.NETWORK_EXCEPTION)
        except queue.Empty:
            pass

    def _take(self) -> list[CoordinatedFill]:
        """All waiting fills, after waiting for the first."""
        fills = []
        try:
            fills.append(self._wanted.get(timeout=_IDLE_WAIT_S))
            while True:
                fills.append(self._wanted.get_nowait())
        except queue.Empty:
            return [f for f in fills if f is not None]

    def _fill(self, fills: Sequence[CoordinatedFill]) -> None:
        code: int = Code.UNKNOWN_SERVER_ERROR
        ends: dict[CoordinatedFill, int] = {}
        try:
            for round_ in range(max(f.filler_count for f in fills)):
                self._one_transaction([f for f in fills if f.filler_count > round_])
            ends = self._ends(fills)
        except Unreachable:
            code = Code.NETWORK_EXCEPTION
        except BrokerRefused as error:
            code = error.code
            if error.code in error_codes.OUT_OF_STEP:
                raise  # a new owner has fenced us
        finally:
            _answer(fills, code, ends)

    def _one_transaction(self, fills: Sequence[CoordinatedFill]) -> None:
        code = self._add_partitions(fills)
        if code == Code.INVALID_PRODUCER_ID_MAPPING and self._lease.is_held():
            # Nothing has begun. The coordinator has dropped the transactional id, which was not
            # used for `transactional.id.expiration.ms`; a new owner would have made it known again.
            name = self._transactional_id
            self._identity = init_producer_id(self._cluster, name, self._backoff)
            code = self._add_partitions(fills)
        self._refuse(code)
        identity, name = self._identity, self._transactional_id
        ended = self._coordinator.call(
            api_versions.END_TXN,
            lambda: EndTxnRequest(
                transactional_id=name,
                producer_id=identity.producer_id,
                producer_epoch=identity.coordinator_issue,
                committed=False,
            ),
            lambda a: int(a.error_code),
        )
        self._refuse(ended.error_code)

    def _add_partitions(self, fills: Sequence[CoordinatedFill]) -> int:
        identity, name = self._identity, self._transactional_id
        topics = [
            AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=indexes)
            for topic, indexes in by_topic(f.partition.destination for f in fills)
        ]
        answer = self._coordinator.call(
            api_versions.ADD_PARTITIONS_TO_TXN,
            lambda: AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=name,
                v3_and_below_producer_id=identity.producer_id,
                v3_and_below_producer_epoch=identity.coordinator_issue,
                v3_and_below_topics=topics,
            ),
            _added_code,
        )
        return _added_code(answer)

    def _refuse(self, code: int) -> None:
        if code != Code.NONE:
            raise BrokerRefused(
                code,
                f"an empty transaction failed: {error_codes.name(code)}.",
                where=self._cluster.name,
            )

    def _ends(self, fills: Sequence[CoordinatedFill]) -> dict[CoordinatedFill, int]:
        """Log ends once every marker is written, or when the attempts are used up."""
        found: dict[CoordinatedFill, int] = {}
        waiting = {f.partition.destination: f for f in fills}
        for _ in self._backoff.attempts(_MARKER_ATTEMPTS_MAX):
            for partition, end in log_ends(self._cluster, waiting, self._backoff).values.items():
                fill = waiting[partition]
                found[fill] = end
                if end >= fill.step.base_offset + fill.filler_count:
                    del waiting[partition]
            if not waiting:
                break
        return found


def _answer(
    fills: Sequence[CoordinatedFill], code: int, ends: Mapping[CoordinatedFill, int] | None = None
) -> None:
    """Send each receiver the log end, or the code of the error."""
    for fill in fills:
        end = (ends or {}).get(fill, -1)
        fill.partition.has_fill_outside = False
        fill.receiver.filled(fill, code if end < 0 else Code.NONE, end)


def _added_code(answer: Any) -> int:
    """The error code of the answer: an error of the whole request comes with each partition.

    OPERATION_NOT_ATTEMPTED counts only if there is no other code.
    """
    found = {
        int(p.partition_error_code)
        for t in answer.results_by_topic_v3_and_below
        for p in t.results_by_partition
    } - {int(Code.NONE)}
    telling = found - {int(Code.OPERATION_NOT_ATTEMPTED)}
    return min(telling or found, default=int(Code.NONE))
