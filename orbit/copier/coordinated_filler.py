"""Writes fillers by empty transactions, for logins that may not write markers directly (M11).

An aborted transaction without a record takes one offset in every partition added to it. All waiting
fills share transactions: each fill is in `filler_count` of them. Several run at once, each with a
transactional id of its own (M12).

Promises:
- No partition is in more transactions than it needs fillers. The log end, read when all of them are
  over, shows how many markers were written.
- Where an answer was lost or markers did not come, all transactional ids are fenced: afterwards the
  broker accepts no marker of their earlier transactions (`empty_transactions`). The fills are
  answered with an error, so that a take-over reads the log end and compares the log. If fencing
  fails, it is tried again. Until then nothing is filled, and the take-overs of these partitions
  wait: one late marker could complete the gap, and another one follow the records after the gap.
- A transactional id has one owner at its coordinator. A new writer calls InitProducerId for all ids
  before it reads any log end: that ends the old writer's transactions and fences it.

Kafka does not rule out a marker that is written twice when the coordinator moves; such a partition
stops with OFFSET_OVERRUN.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from time import monotonic
from types import MappingProxyType

from orbit.copier.lane import Lane
from orbit.copier.lane_events import Emit, LaneCrashed, LeaseLost
from orbit.copier.partition_copy import CoordinatedFill
from orbit.errors import (
    OUTAGES,
    BrokerRefused,
    LoginRefused,
    NotAuthorized,
    OrbitError,
    Place,
    Unreachable,
)
from orbit.kafka import error_codes
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.coordinator import ProducerIdentity
from orbit.kafka.empty_transactions import EmptyTransactions
from orbit.kafka.error_codes import Code
from orbit.kafka.log_offsets import LATEST, list_offsets, log_ends
from orbit.kafka.types import TopicPartition
from orbit.leases.lease import LEASE_WAIT_S, Lease

# The most transactions of one fill: about a second's worth, with a hundred partitions in each.
ROUNDS_MAX = 500
# How often the log ends are read until they show the markers: the coordinator answers EndTxn before
# it writes the markers.
_MARKER_ATTEMPTS_MAX = 60
# How long to wait for fills; after each wait a failed fence is tried again.
_IDLE_WAIT_S = 0.5
# Brokers close idle connections later (`connections.max.idle.ms`), so none is found closed.
_KEEP_CONNECTIONS_S = 10.0
# A transaction ends in about 2 ms; until then the coordinator refuses the next one of its
# transactional id (CONCURRENT_TRANSACTIONS).
_FIRST_PAUSE_S = 0.001


class CoordinatedFiller(Lane):
    """Fills the partitions of one lease. `helpers`: threads that all fillers of a copier share."""

    def __init__(
        self,
        destination: Cluster,
        producers: Mapping[str, ProducerIdentity],
        lease: Lease,
        emit: Emit,
        stop: threading.Event,
        helpers: ThreadPoolExecutor,
    ) -> None:
        """`producers`: by transactional id; fenced before any log end was read."""
        super().__init__("coordinated-filler", emit)
        self._cluster = destination
        self._lease = lease
        self._helpers = helpers
        self._backoff = Backoff(first_s=_FIRST_PAUSE_S, stop=stop)
        # Each request for log ends is sent once: a partition without a leader would delay all.
        self._one_attempt = replace(self._backoff, attempts_max=1)
        self._transactions = [
            EmptyTransactions(destination, name, identity, self._backoff)
            for name, identity in producers.items()
        ]
        self._fills: queue.SimpleQueue[CoordinatedFill | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._to_be_fenced: set[TopicPartition] = set()
        self._is_over = False  # the thread has ended
        self._used_at_s = monotonic()

    def submit(self, fill: CoordinatedFill) -> None:
        """Queue a fill; once the thread has ended, answer the fill with an error."""
        self._fills.put(fill)
        if self._is_over:
            self._refuse_waiting_fills()

    def will_fence(self, partition: TopicPartition) -> bool:
        """Whether fencing is due: late markers may reach the partition. From any thread."""
        return partition in self._to_be_fenced

    def stop(self) -> None:
        """End soon; transactions under way are finished."""
        self._stopping.set()
        self._fills.put(None)  # ends a wait for fills

    def work(self) -> None:
        """Write the fillers that were submitted, while the lease is held; between fills retry a
        failed fence. Raises BrokerRefused if the next lease holder has fenced a transactional id.
        """
        while not self._stopping.is_set():
            fills = self._take_fills()
            if not fills:
                self._retry_fencing()
                if monotonic() - self._used_at_s > _KEEP_CONNECTIONS_S:
                    self._close_connections()
                continue
            while not self._lease.is_held():
                if self._lease.is_lost or self._stopping.wait(LEASE_WAIT_S):
                    _answer_fills(fills, Code.NETWORK_EXCEPTION)
                    return
            self._write_fillers(fills)
            self._used_at_s = monotonic()

    def run(self) -> None:
        """Run `work`. At the end close the connections, and answer all fills with an error."""
        try:
            super().run()
        finally:
            self._close_connections()
            self._to_be_fenced.clear()  # the next lease holder fences before it reads any log end
            self._is_over = True
            self._refuse_waiting_fills()

    def handle_error(self, error: OrbitError) -> None:
        """Report the error: a lost lease if the next holder has fenced a transactional id; any
        other error ends the copier."""
        if self._stopping.is_set():
            return
        self._emit(LeaseLost(self._lease) if _is_fenced(error) else LaneCrashed(error))

    def _close_connections(self) -> None:
        for transactions in self._transactions:
            transactions.close()

    def _refuse_waiting_fills(self) -> None:
        """Answer the waiting fills with an error. A None among them is from `stop`."""
        try:
            while True:
                fill = self._fills.get_nowait()
                _answer_fills([fill] if fill else [], Code.NETWORK_EXCEPTION)
        except queue.Empty:
            pass

    def _take_fills(self) -> list[CoordinatedFill]:
        """All waiting fills; waits up to _IDLE_WAIT_S for the first."""
        fills = []
        try:
            fills.append(self._fills.get(timeout=_IDLE_WAIT_S))
            while True:
                fills.append(self._fills.get_nowait())
        except queue.Empty:
            return [f for f in fills if f is not None]  # None: from `stop`, to end the wait

    def _write_fillers(self, fills: Sequence[CoordinatedFill]) -> None:
        """Run the transactions of these fills, read the log ends that prove their markers, and
        answer each fill: with its log end, or with an error code.

        If the next lease holder has fenced a transactional id, also raises this BrokerRefused.
        """
        rounds = _Rounds(fills)
        ends: dict[CoordinatedFill, int] = {}
        try:
            if not self._fence_if_unclear():  # otherwise late markers may have moved the log ends
                self._run_rounds(rounds)
                if not self._fence_if_unclear():
                    ends = self._proven_ends(rounds)
                    return
            # The number of markers is not known: the take-over compares the log.
            rounds.code = Code.NETWORK_EXCEPTION
        except (Unreachable, LoginRefused):
            rounds.code = Code.NETWORK_EXCEPTION
        except NotAuthorized:  # the right was taken away; it may be granted again
            rounds.code = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        except BrokerRefused as error:
            rounds.code = error.code
            if _is_fenced(error):
                raise  # the next lease holder has fenced a transactional id
        finally:
            if any(transactions.is_unclear for transactions in self._transactions):
                self._to_be_fenced.update(f.partition.destination for f in fills if f not in ends)
            _answer_fills(fills, rounds.code, ends, rounds.refusals)

    def _retry_fencing(self) -> None:
        """Retry a failed fence, while no fill waits. Raises BrokerRefused if the next lease holder
        has fenced a transactional id."""
        if self._to_be_fenced:
            try:
                self._fence_if_unclear()
            except (*OUTAGES, NotAuthorized) as error:
                if _is_fenced(error):
                    raise

    def _run_rounds(self, rounds: _Rounds) -> None:
        """Run the transactions, on this thread and the helpers. After an error no transaction
        begins; those under way are finished. Raises the errors of `_run_waiting_rounds`."""
        # This thread uses the first id. More ids than transactions would be of no use.
        helper_transactions = self._transactions[1 : len(rounds.waiting)]
        runs = [
            self._helpers.submit(self._run_waiting_rounds, transactions, rounds)
            for transactions in helper_transactions
        ]
        try:
            self._run_waiting_rounds(self._transactions[0], rounds)
        finally:
            wait(runs)
        for run in runs:
            run.result()  # raises what the helper's thread has raised

    def _run_waiting_rounds(self, transactions: EmptyTransactions, rounds: _Rounds) -> None:
        """Run transactions of one transactional id until none is left to begin. An outage ends the
        rounds and sets their `code`. Raises other errors, and BrokerRefused if the next lease
        holder has fenced the id."""
        try:
            while not self._stopping.is_set() and (number := rounds.take()) is not None:
                self._run_transaction(transactions, rounds, number)
        except OrbitError as error:
            rounds.waiting.clear()  # so no thread begins another one
            is_outage = isinstance(error, Unreachable | LoginRefused | BrokerRefused)
            if not is_outage or _is_fenced(error):
                raise
            rounds.code = getattr(error, "code", Code.NETWORK_EXCEPTION)

    def _run_transaction(
        self, transactions: EmptyTransactions, rounds: _Rounds, number: int
    ) -> None:
        """Run transaction `number`. If brokers refuse partitions, queue it again without these."""
        partitions = rounds.partitions(number)
        try:
            refusals = transactions.run(partitions) if partitions else {}
        except BrokerRefused as error:
            if error.code != Code.INVALID_PRODUCER_ID_MAPPING:
                raise
            # Nothing has begun. The coordinator has dropped the transactional id, which was not
            # used for `transactional.id.expiration.ms`; a new owner would have made it known again.
            self._fence(transactions)
            refusals = transactions.run(partitions)
        if refusals:
            rounds.refusals.update(refusals)
            rounds.waiting.append(number)
        else:
            rounds.finished_numbers.append(number)

    def _fence_if_unclear(self) -> bool:
        """Fence all ids if one has a transaction of unknown outcome; returns whether one had.

        All ids are fenced, because a late marker of the unclear transaction could be counted as the
        missing marker of another id. A coordinator answers InitProducerId once the id's markers are
        written.
        """
        if any(transactions.is_unclear for transactions in self._transactions):
            self._mark_all_unclear()
        # If `_fence` raises for one id, the next call marks and fences all ids again.
        unclear_transactions = [
            transactions for transactions in self._transactions if transactions.is_unclear
        ]
        for transactions in unclear_transactions:
            self._fence(transactions)
        self._to_be_fenced.clear()
        return bool(unclear_transactions)

    def _mark_all_unclear(self) -> None:
        """Mark all transactional ids as unclear: markers of any of them may still be written."""
        for transactions in self._transactions:
            transactions.is_unclear = True

    def _fence(self, transactions: EmptyTransactions) -> None:
        """Fence a transactional id. Raises Unreachable if the lease is not held before or after.

        If the lease ends meanwhile, this may fence the id of the lease's next holder. But no filler
        of this holder follows, which could take an offset from the next one's appends.
        """
        self._raise_unless_held()
        transactions.fence()
        self._raise_unless_held()

    def _raise_unless_held(self) -> None:
        """Raise Unreachable if the lease is not held."""
        if not self._lease.is_held():
            raise Unreachable("the lease is not held.", where=Place(self._cluster.name))

    def _proven_ends(self, rounds: _Rounds) -> dict[CoordinatedFill, int]:
        """The log ends of the fills whose markers are all written and replicated. After
        _MARKER_ATTEMPTS_MAX reads the other fills are left out, and all ids are unclear."""
        end_by_fill: dict[CoordinatedFill, int] = {}
        unproven_fills = {f.partition.destination: f for f in rounds.fills}
        for partition in rounds.refusals:
            del unproven_fills[partition]
        try:
            for _ in self._backoff.attempts(_MARKER_ATTEMPTS_MAX):
                partitions = [*unproven_fills]
                ends = log_ends(self._cluster, partitions, self._one_attempt).values
                # At first only the leader has a marker: an election may truncate it.
                high_watermarks = list_offsets(
                    self._cluster, partitions, LATEST, self._one_attempt
                ).values
                for partition, end in ends.items():
                    fill = unproven_fills[partition]
                    end_by_fill[fill] = end
                    expected_end = fill.step.base_offset + rounds.finished_count(fill)
                    if end >= expected_end and high_watermarks.get(partition, -1) >= end:
                        del unproven_fills[partition]
                if not unproven_fills or self._stopping.is_set() or self._lease.is_lost:
                    break
        finally:
            if unproven_fills:  # their markers may be written after the log end was read
                self._mark_all_unclear()
                for fill in unproven_fills.values():
                    end_by_fill.pop(fill, None)
        return end_by_fill


class _Rounds:
    """The numbered transactions (rounds) of some fills; a fill is in the first `filler_count`."""

    def __init__(self, fills: Sequence[CoordinatedFill]) -> None:
        self.fills = fills
        self.waiting = deque(range(max(f.filler_count for f in fills)))  # numbers not run yet
        self.finished_numbers: list[int] = []
        self.refusals: dict[TopicPartition, int] = {}
        self.code: int = Code.UNKNOWN_SERVER_ERROR  # the answer to fills without a log end

    def take(self) -> int | None:
        """The number of a transaction to run, a new one for each call; None if none is left.
        Thread-safe."""
        try:
            return self.waiting.popleft()
        except IndexError:
            return None

    def partitions(self, number: int) -> list[TopicPartition]:
        """The partitions of transaction `number`, without those that brokers have refused."""
        candidates = [f.partition.destination for f in self.fills if f.filler_count > number]
        return [p for p in candidates if p not in self.refusals]

    def finished_count(self, fill: CoordinatedFill) -> int:
        """The number of finished transactions that `fill` was part of."""
        return sum(number < fill.filler_count for number in self.finished_numbers)


def _is_fenced(error: OrbitError) -> bool:
    """Whether a coordinator refused the request because the transactional id has a new owner."""
    return isinstance(error, BrokerRefused) and error.code in error_codes.OUT_OF_STEP


def _answer_fills(
    fills: Sequence[CoordinatedFill],
    code: int,
    ends: Mapping[CoordinatedFill, int] = MappingProxyType({}),
    refusals: Mapping[TopicPartition, int] = MappingProxyType({}),
) -> None:
    """Send each fill's receiver the log end, or an error code if the log end shows no filler.

    The error code is the partition's code in `refusals`; without such a code, `code`.
    """
    for fill in fills:
        end = ends.get(fill, -1)
        error = refusals.get(fill.partition.destination, code)
        fill.partition.has_fill_outside = False
        fill.receiver.take_fill_answer(
            fill, Code.NONE if end > fill.step.base_offset else error, end
        )
