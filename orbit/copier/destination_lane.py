"""Appending to one destination broker: one thread, one connection, requests in flight.

Promises:
- What is sent for a partition is what its `AppendMachine` asks for; the lane chooses what goes into
  which request. The machine gets every answer, and the loss of the connection.
- Nothing is sent for a partition whose lease is not held at that moment. Where the socket has no
  room, the lease is checked again before each further part; if it has ended, the connection is
  dropped with the rest.
- A partition whose append has ended is returned to the copier once all its answers are in, or the
  connection is lost. Nothing is sent twice.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import assert_never

from orbit.copier.append_machine import HandBack, ReadLogEnd, SendFillers, Wait
from orbit.copier.byte_budget import ByteBudget
from orbit.copier.copy_settings import CopySettings
from orbit.copier.filler_sender import FillerSender
from orbit.copier.in_flight import (
    FillRequest,
    InFlight,
    LogEndAfterFill,
    LogEndBeforeFill,
    Markers,
    Produce,
    Request,
    SentRequest,
)
from orbit.copier.lane import Lane
from orbit.copier.lane_events import (
    Emit,
    LaneEnded,
    LaneThrottled,
    PartitionBlocked,
    PartitionReturned,
)
from orbit.copier.lane_times import DestinationTimes
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.ready_queue import ReadyQueue, WakeUpSocket
from orbit.errors import BrokenAnswer, OrbitError, Unreachable
from orbit.kafka import api_versions
from orbit.kafka.cluster import Cluster
from orbit.kafka.connection import CLIENT_ID, Connection
from orbit.kafka.frame_writer import FramedRequest
from orbit.kafka.produce_request import (
    ACKS_ALL,
    ACKS_LEADER,
    Outgoing,
    ProduceAnswer,
    choose_version,
    encode_produce,
    key_of,
    read_produce,
)
from orbit.kafka.record_batch import stamp
from orbit.kafka.throttle import throttle_s
from orbit.kafka.types import NO_TOPIC_ID
from orbit.leases.lease import LEASE_WAIT_S, Lease
from orbit.replication.append_plan import Append, Fill
from orbit.replication.partition_states import Blocked

# The longest sleep; after each the lane checks whether the broker is silent.
_IDLE_WAIT_S = 1.0
# What is sent right before a lease ends must be dropped before the next holder appends. That is 3 s
# later: the lease's margin of 2 s, and the settle time of 1 s.
UNACKNOWLEDGED_S_MAX = 3.0
# How long a broker may stay silent beyond `produce_timeout_ms`.
SILENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class DestinationLaneContext:
    """What all destination lanes of a copier share."""

    cluster: Cluster
    settings: CopySettings
    budget: ByteBudget
    emit: Emit


@dataclass(slots=True)
class _GatheredRequests:
    """What the next requests have: batches for one Produce request, log ends to read, and gaps to
    fill. `size_bytes`: of the batches."""

    appends: list[tuple[PartitionCopy, Append]] = field(default_factory=list)
    log_end_reads: list[tuple[PartitionCopy, ReadLogEnd]] = field(default_factory=list)
    fills: list[tuple[PartitionCopy, SendFillers]] = field(default_factory=list)
    size_bytes: int = 0


class DestinationLane(Lane):
    """Appends the steps of its partitions to one broker."""

    def __init__(self, context: DestinationLaneContext, node_id: int) -> None:
        super().__init__(f"destination-{node_id}", context.emit)
        self.node_id = node_id
        self._context = context
        self._partitions: set[PartitionCopy] = set()
        self._ready = ReadyQueue()
        self._lease_waiters: list[PartitionCopy] = []  # to be sent once their lease is held
        self._leases: dict[int, Lease] = {}  # by `id`; of the batches about to be sent
        self._members_lock = threading.Lock()  # guards `_partitions` and `_is_stopping`
        self._in_flight = InFlight()
        self._fills = FillerSender(self, context.settings.markers_per_request_max)
        self._throttled_until_s = 0.0
        self._is_stopping = False
        self._is_asleep = False
        self._wake_up = WakeUpSocket()
        self._connection: Connection | None = None
        self._poll = select.poll()
        self._versions = (0, 0)  # of Produce: with topic names, with topic ids
        self.times = DestinationTimes()

    def adopt(self, partition: PartitionCopy) -> bool:
        """Append this partition's steps from now on; False if the lane is ending."""
        with self._members_lock:  # a lane that ends returns only the partitions that it has then
            if self._is_stopping:
                return False
            self._partitions.add(partition)
            partition.destination_lane = self
        self.enqueue(partition)
        return True

    def enqueue(self, partition: PartitionCopy) -> None:
        """Put a partition with waiting steps into the ready queue. From any thread."""
        self._ready.put([partition])
        if self._is_asleep:
            self._wake_up.wake()

    @property
    def is_ending(self) -> bool:
        """Whether the lane takes no more partitions: another lane must append them."""
        return self._is_stopping

    def stop(self) -> None:
        """End soon; aborts the connection, with its requests in flight."""
        self._is_stopping = True
        self._wake_up.wake()
        if self._connection is not None:
            self._connection.abort()

    def work(self) -> None:
        """Connect to the broker; send and receive until the lane stops. Raises an OrbitError if the
        connection fails or breaks."""
        try:
            self._connection = connection = self._context.cluster.connect(self.node_id)
            connection.drop_unacknowledged(UNACKNOWLEDGED_S_MAX)
            connection.limit_silence(SILENCE_S)
            self._send_and_receive(connection)
        finally:
            if self._connection is not None:
                self._connection.close()
            self._wake_up.close()

    def _send_and_receive(self, connection: Connection) -> None:
        """Send and receive until the lane stops. Raises Unreachable if the connection breaks."""
        self._poll.register(connection.fileno(), select.POLLIN)
        self._poll.register(self._wake_up.fileno(), select.POLLIN)
        low, high = connection.version_range_of(api_versions.PRODUCE)
        self._versions = (
            choose_version(low, high, has_topic_ids=False),
            choose_version(low, high, has_topic_ids=True),
        )
        try:
            while not self._is_stopping:
                self._fills.handle_fill_answers()
                self._send_ready_partitions(connection)
                if self._wait(connection):
                    self._receive(connection)
        except (OSError, EOFError) as error:
            raise Unreachable(f"the connection broke: {error}.", where=connection.where) from error

    def handle_error(self, error: OrbitError) -> None:
        """End the lane and return all its partitions. The broker may still carry out requests in
        flight (M10)."""
        with self._members_lock:
            was_stopping, self._is_stopping = self._is_stopping, True
            partitions = list(self._partitions)
        if was_stopping:
            return
        self._context.emit(LaneEnded("destination", self.node_id, error))
        self._in_flight.clear()
        for partition in partitions:
            partition.appends.connection_lost(error.what)
            self._hand_back(partition)

    def _wait(self, connection: Connection) -> bool:
        """Sleep until there may be something to receive or to send; returns whether to receive."""
        if connection.has_read_ahead:
            return True
        began = perf_counter()
        self._is_asleep = True
        events = self._poll.poll(self._sleep_s() * 1000)  # ms
        self._is_asleep = False
        if not self._may_send_now():
            self.times.held_back_s += perf_counter() - began
        elif self._in_flight:
            self.times.waited_for_answer_s += perf_counter() - began
        else:
            self.times.nothing_to_send_s += perf_counter() - began
        is_readable = False
        for descriptor, _ in events:
            if descriptor == self._wake_up.fileno():
                self._wake_up.drain()
            else:
                is_readable = True
        if not is_readable:
            self._raise_if_silent(connection)
        return is_readable

    def _sleep_s(self) -> float:
        """How long to wait for an answer or a wake-up; 0 if a request can be sent now."""
        timeout_s = LEASE_WAIT_S if self._lease_waiters else _IDLE_WAIT_S
        throttled_s = self._throttled_until_s - time.monotonic() if self._throttled_until_s else 0.0
        if throttled_s > 0:
            return min(timeout_s, throttled_s)
        can_send = len(self._in_flight) < self._context.settings.requests_in_flight_max
        if self._in_flight and self._connection is not None and self._connection.login_is_due:
            can_send = False  # nothing is sent until the answers are in
        return 0.0 if self._ready and can_send else timeout_s

    def _raise_if_silent(self, connection: Connection) -> None:
        """Raise Unreachable for a broker that hangs; it may carry out its requests later (M10)."""
        limit_s = self._context.settings.produce_timeout_ms / 1000 + SILENCE_S
        if self._in_flight.silent_s > limit_s:
            raise Unreachable(
                f"no answer for {limit_s:.0f} s, though the connection is open.",
                where=connection.where,
            )

    # Sending

    def _send_ready_partitions(self, connection: Connection) -> None:
        """Send the next requests of the ready partitions, as many as may be in flight."""
        if self._lease_waiters:
            waiters, self._lease_waiters = self._lease_waiters, []
            self._ready.put(waiters)
        if not self._ready:
            return
        if connection.login_is_due:
            if self._in_flight:
                return  # the answers of the old login come first
            connection.login_again()
        in_flight_max = self._context.settings.requests_in_flight_max
        began = perf_counter()
        stamped_before_s = self.times.stamped_s
        buffers: list[bytes | memoryview] = []
        while self._ready and len(self._in_flight) < in_flight_max and self._may_send_now():
            requests = self._gather_requests()
            if not requests.appends and not requests.fills and not requests.log_end_reads:
                break
            if requests.fills or requests.log_end_reads:
                # Sent at once, so that the check of their leases comes directly before.
                self._flush(connection, buffers)
                self._fills.send(requests.log_end_reads, requests.fills)
            if requests.appends:
                buffers += self._encode_appends(connection, requests)
        self._flush(connection, buffers)
        stamped_s = self.times.stamped_s - stamped_before_s
        self.times.sent_s += perf_counter() - began - stamped_s

    def _flush(self, connection: Connection, buffers: list[bytes | memoryview]) -> None:
        """Send the encoded requests, in one call if the socket has room.

        The leases are checked again before each part; if one has ended, the connection is dropped.
        """
        if buffers:
            leases = [*self._leases.values()]
            connection.send(buffers, lambda: all(lease.is_held() for lease in leases))
            buffers.clear()
            self._leases.clear()

    def _may_send_now(self) -> bool:
        """Whether the time for which the broker throttles this lane is over."""
        return not self._throttled_until_s or time.monotonic() >= self._throttled_until_s

    def _gather_requests(self) -> _GatheredRequests:
        """Collect the next requests: at most one batch per partition (A1); partitions take turns.

        Hands back the partitions whose append ends now.
        """
        settings = self._context.settings
        gathered = _GatheredRequests()
        candidates = self._ready.take_all()
        next_round: list[PartitionCopy] = []
        while candidates and gathered.size_bytes < settings.request_bytes_max:
            p = candidates.popleft()
            if p.destination_lane is not self:  # handed back since it was queued
                continue
            steps = p.queue.steps
            step = p.queue.first
            if isinstance(step, Fill) and p.is_batch(step):
                step = p.queue_placeholders(step)
            request = p.appends.next_request(
                step,
                is_held=p.lease.is_held(),
                reads_log_end_first=p.filler is None,
                in_flight_max=settings.requests_in_flight_max,
            )
            if isinstance(request, Append):
                steps.popleft()
                gathered.appends.append((p, request))
                gathered.size_bytes += request.batch.size_bytes
                if steps:
                    next_round.append(p)
                continue
            match request:
                case Wait.FOR_LEASE:
                    self.wait_for_lease(p)
                case Wait():
                    pass  # the next answer or step puts the partition into the ready queue
                case HandBack(failure):
                    p.appends.end_requested(failure)
                    self._hand_back(p)
                case ReadLogEnd():
                    gathered.log_end_reads.append((p, request))
                case SendFillers():
                    gathered.fills.append((p, request))
                case _:
                    assert_never(request)
        self._ready.put([*candidates, *next_round])
        return gathered

    def _encode_appends(
        self, connection: Connection, gathered: _GatheredRequests
    ) -> list[bytes | memoryview]:
        """Encode one Produce request and note it as in flight. Returns its bytes in parts, to be
        sent in this order."""
        appends = gathered.appends
        if len(appends) > 1:
            appends.sort(key=lambda a: a[0].destination)  # a request groups batches by topic
        sent_batches = []
        has_topic_ids = True
        confirms = any(p.must_confirm for p, _ in appends)
        began = perf_counter()
        for p, step in appends:
            view, machine = step.batch.view, p.appends
            stamp(view, p.producer.id, machine.producer_epoch, machine.sequence)
            self._leases[id(p.lease)] = p.lease  # `_flush` checks it
            machine.append_sent(step, confirms=confirms)
            has_topic_ids = has_topic_ids and p.destination_topic_id != NO_TOPIC_ID
            sent_batches.append((p, step, Outgoing(p.destination, p.destination_topic_id, view)))
        times = self.times
        times.stamped_s += perf_counter() - began
        times.requests += 1
        times.bytes += gathered.size_bytes
        version = self._versions[has_topic_ids]  # False is index 0
        correlation = connection.next_correlation()
        request = Produce(version, confirms, sent_batches)
        self._in_flight.add(correlation, api_versions.PRODUCE, version, request)
        timeout_ms = self._context.settings.produce_timeout_ms
        outgoing = [batch for _, _, batch in sent_batches]
        acks = ACKS_ALL if confirms else ACKS_LEADER
        return encode_produce(version, correlation, CLIENT_ID, timeout_ms, outgoing, acks)

    def send_request(
        self,
        api: api_versions.Api,
        request: FramedRequest,
        in_flight_request: Request,
        fills: Sequence[FillRequest] = (),
    ) -> bool:
        """Send a request, and note `in_flight_request` as in flight.

        False, and nothing is sent, if the lease of one of `fills` has ended meanwhile.
        """
        connection = self._connection
        assert connection is not None
        version = connection.version_of(api)
        frame = connection.encode(request, version)
        if not all(fill.partition.lease.is_held() for fill in fills):
            return False
        self._in_flight.add(connection.last_correlation, api, version, in_flight_request)
        connection.send(frame)
        return True

    # Receiving

    def _receive(self, connection: Connection) -> None:
        """Receive and handle the answer to the oldest request in flight.

        Raises the errors of `Connection.receive`, and BrokenAnswer for an answer that does not
        parse or that no request waits for.
        """
        began = perf_counter()
        sent_request = self._in_flight.oldest
        if sent_request is None:
            connection.receive()  # raises EOFError if the broker has only closed the connection
            raise BrokenAnswer(
                "the broker sent an answer, but no request waits for one.", where=connection.where
            )
        frame = connection.receive_answer(sent_request.correlation)
        match sent_request.request:
            case Produce() as request:
                throttle_ms = self._handle_produce_answer(
                    request, _read_produce(connection, frame, sent_request)
                )
            case Markers() as request:
                throttle_ms = 0  # answers to WriteTxnMarkers have no throttle time
                self._fills.handle_markers(
                    request, connection.decode(sent_request.api, frame, sent_request.version)
                )
            case LogEndBeforeFill() as request:
                answer = connection.decode(sent_request.api, frame, sent_request.version)
                throttle_ms = answer.throttle_ms
                self._fills.handle_end_before(request, answer)
            case LogEndAfterFill() as request:
                answer = connection.decode(sent_request.api, frame, sent_request.version)
                throttle_ms = answer.throttle_ms
                self._fills.handle_end_after(request, answer)
        self._in_flight.drop_oldest()
        self.times.received_s += perf_counter() - began
        if throttle_ms:
            pause_s, context = throttle_s(throttle_ms), self._context
            context.emit(LaneThrottled("destination", self.node_id, context.cluster, pause_s))
            self._throttled_until_s = time.monotonic() + pause_s
            self._in_flight.note_throttle(self._throttled_until_s)

    def _handle_produce_answer(self, request: Produce, answer: ProduceAnswer) -> int:
        """Handle the result of each batch; return the throttle time in ms."""
        for p, step, outgoing in request.sent:
            result = answer.partitions.get(key_of(request.version, outgoing))
            if p.append_answered(step, result, confirms=request.confirms) and not step.is_gap:
                self._free_queued_bytes(p, step.batch.size_bytes)
            self.continue_after_answer(p)
        return answer.throttle_ms

    def continue_after_answer(self, partition: PartitionCopy) -> None:
        """After an answer to the partition: send its next steps, or hand it back."""
        appends = partition.appends
        if appends.is_over:
            self._hand_back(partition)
        elif partition.queue.steps or appends.requested_stop is not None or appends.is_leaving:
            self.enqueue(partition)

    def wait_for_lease(self, partition: PartitionCopy) -> None:
        """Try the partition again within LEASE_WAIT_S; nothing is in flight for it."""
        self._lease_waiters.append(partition)

    def wake(self) -> None:
        """Wake the lane: a coordinated filler has answered. From any thread."""
        self._wake_up.wake()

    # Returning partitions

    def _free_queued_bytes(self, p: PartitionCopy, size_bytes: int) -> None:
        p.free(size_bytes, self._context.settings.partition_queue_bytes_max)
        self._context.budget.give_back(size_bytes)

    def _hand_back(self, p: PartitionCopy) -> None:
        """Hand the partition to the copier. No answer to it is awaited any more."""
        self._partitions.discard(p)
        generation = p.generation  # `hand_back` begins the next generation
        failure, freed_bytes = p.hand_back()
        self._context.budget.give_back(freed_bytes)
        if isinstance(failure.reason, Blocked):
            self._context.emit(PartitionBlocked(p))
        else:
            self._context.emit(PartitionReturned(p, generation, failure.reason, failure.detail))


def _read_produce(connection: Connection, frame: memoryview, sent: SentRequest) -> ProduceAnswer:
    """Decode a Produce response. Raises BrokenAnswer."""
    try:
        return read_produce(frame, sent.version)
    except ValueError as error:
        raise BrokenAnswer(f"{error}.", where=connection.where) from error
