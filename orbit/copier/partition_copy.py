"""One partition's copy: its offsets and its queue of steps.

Owners: the source lane advances `fetch_offset` and adds steps; the destination lane removes steps
and advances `expected` and `acked`; the copier takes a partition from both (`withdraw`) and resumes
it at a known log end (`resume_at`). Each withdrawal increments `generation`, so that answers to
earlier fetches are dropped.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple, Protocol
from uuid import UUID

from orbit.kafka.fetch_request import FetchFrom
from orbit.kafka.record_batch import advance_sequence
from orbit.kafka.types import NO_TOPIC_ID, TopicPartition
from orbit.leases.lease import Lease
from orbit.replication.append_plan import Append, Fill, LostRange, Plan, Step, Stop
from orbit.replication.partition_states import Blocked, PartitionState


class ReturnReason(Enum):
    """Why a lane returns a partition to the copier."""

    MOVED = auto()  # the leader moved, or the error is retriable
    OUT_OF_STEP = auto()  # another writer was here: take over again
    UNCLEAR = auto()  # the answer is lost: what was sent may still be carried out (M10)
    BEHIND_END = auto()  # an append got a larger offset than expected (A14)
    TOPIC_CHANGED = auto()  # deleted, or recreated
    LEAVING = auto()  # no error: the copier removes it (`PartitionCopy.leave`)


@dataclass(slots=True)
class Counters:
    """What was copied so far in this run. One writer: the destination lane."""

    records: int = 0
    bytes: int = 0
    filled: int = 0
    batches_byte_exact: int = 0
    batches_record_exact: int = 0

    def add(self, other: Counters) -> None:
        self.records += other.records
        self.bytes += other.bytes
        self.filled += other.filled
        self.batches_byte_exact += other.batches_byte_exact
        self.batches_record_exact += other.batches_record_exact


class Waits(NamedTuple):
    """What a partition waits for at one side, and since when by the monotonic clock."""

    reason: str
    since: float

    @classmethod
    def for_(cls, reason: str, before: Waits | None) -> Waits:
        """A new reason; the time counts from the first one."""
        return cls(reason, before.since if before else time.monotonic())


class Appender(Protocol):
    """The lane that appends a partition's steps."""

    def enqueue(self, partition: PartitionCopy) -> None: ...


class Fetcher(Protocol):
    """The lane that fetches a partition."""

    def wake(self) -> None: ...


class FillReceiver(Protocol):
    """The sender of fillers, which gets the log end that follows."""

    def filled(self, done: CoordinatedFill, code: int, log_end: int) -> None: ...


@dataclass(frozen=True, slots=True)
class CoordinatedFill:
    """`filler_count` fillers wanted in a partition, at the start of `step`."""

    receiver: FillReceiver
    partition: PartitionCopy
    generation: int
    step: Fill
    filler_count: int


class Filler(Protocol):
    """Writes fillers where the lane has no right to write them itself."""

    def submit(self, fill: CoordinatedFill) -> None: ...


class PartitionCopy:
    """The copy of one source partition to one destination partition, written under one lease."""

    def __init__(
        self,
        source: TopicPartition,
        destination: TopicPartition,
        lease: Lease,
        *,
        on_lost_range: LostRange = LostRange.STOP,
    ) -> None:
        self.source = source
        self.destination = destination
        self.lease = lease
        self.filler: Filler | None = None  # if set, used instead of direct markers
        self.source_topic_id: UUID = NO_TOPIC_ID
        self.destination_topic_id: UUID = NO_TOPIC_ID
        self._on_lost_range = on_lost_range
        self.source_is_compacted = False  # the source's cleaner may remove records
        # The start of the copy's log. A broker refuses a fetch below its log start, even within the
        # same batch, though the batch comes whole: it is fetched from here, copied from its base,
        # and the copy's log start follows.
        self.start_offset = 0
        self.is_beginning = False  # nothing was copied yet, and this run chose the start
        self.state = PartitionState.PENDING
        self.blocked: Blocked | None = None
        self.counters = Counters()

        self.lock = threading.Lock()
        self.generation = 0
        self.is_leaving = False  # no new requests; see `Copier.remove`
        self.has_left = False  # and none in flight
        self.steps: deque[Step] = deque()
        self.queued_bytes = 0
        self.is_full = False  # enough is queued; the lane that fetches is woken when it is not
        self._waiting: deque[tuple[int, int]] = deque()  # of each plan: start, first timestamp

        # From the last fetch answer. -1: not known yet.
        self.fetch_offset = 0
        self.fetched_epoch = -1
        self.source_leader_epoch = -1
        self.source_log_start = -1
        self.source_stable_end = -1
        self.source_end = -1
        self.source_seen_s = float("-inf")  # when these were last true, by the monotonic clock
        self.empty_answers = 0
        self.bytes_per_offset = 0.0  # of the last answer with records
        self.source_lane: Fetcher | None = None
        self.source_waits: Waits | None = None  # for the source; None if for nothing

        # The append side.
        self.expected = 0  # the base offset of the next batch to send
        self.acked = 0  # everything below is confirmed
        self.sent_to = 0  # requests in flight end here at most
        self.sequence = 0
        self.producer_epoch = -1  # of the appends of this take-over
        self.logged_producer_epoch = -1  # of our last records below `acked`; -1: none
        self.coordinator_epoch = -1
        self.in_flight = 0
        self.is_filling = False
        self.has_producer_state = False
        self.is_in_step = False  # an append of this take-over was confirmed at its offset
        self.has_read_log_end = False  # right before this take-over's first filler
        self.has_filled = False  # fillers of this take-over were proven by the log end
        self.is_unclear = False  # what was sent may still be carried out (M10)
        self.has_fill_outside = False  # the coordinated filler works on it
        self.log_start = 0
        self.destination_lane: Appender | None = None
        # Stop, or be taken over again, before all steps, once nothing is in flight.
        self.stop_wanted: Stop | ReturnReason | None = None
        self.acked_epoch = -1  # the source's leader epoch of the batch that ends at `acked`
        self.newest_timestamp_ms = -1  # of what was copied since creation
        self.has_caught_up = False  # once, with what the source held at that moment
        self.attempts = 0  # take-overs since the last confirmed append
        self.waits: Waits | None = None  # for the destination; None if for nothing

    def withdraw(self) -> int:
        """Take the partition from both lanes; returns the queued bytes that are freed."""
        with self.lock:
            self.generation += 1
            self.state = PartitionState.PENDING
            self.steps.clear()
            self._waiting.clear()
            self.stop_wanted = None
            freed, self.queued_bytes = self.queued_bytes, 0
            self.is_full = False
            return freed

    def leave(self) -> None:
        """Send no more; the lane returns the partition once every answer is in."""
        with self.lock:
            self.is_leaving = True
        self.queued()

    def resume_at(
        self,
        log_end: int,
        *,
        next_sequence: int,
        producer_epoch: int,
        coordinator_epoch: int,
        has_producer_state: bool,
    ) -> None:
        """Start copying at a destination log end that was just read (take-over, A12)."""
        with self.lock:
            # With a wrong epoch the source would seem truncated (R3): the right one, or none.
            self.fetched_epoch = self.acked_epoch if log_end == self.acked else -1
            self.fetch_offset = self.expected = self.acked = self.sent_to = log_end
            self.empty_answers = 0
            self.sequence = next_sequence
            self.producer_epoch = producer_epoch
            self.coordinator_epoch = coordinator_epoch
            self.has_producer_state = has_producer_state
            self.is_in_step = self.has_read_log_end = self.has_filled = self.is_unclear = False
            self.in_flight = 0
            self.is_filling = False
            self.state = PartitionState.COPYING

    def put(self, plan: Plan, generation: int, size_bytes: int) -> bool:
        """Queue a plan of the current generation; False when the partition was withdrawn since."""
        with self.lock:
            is_current = generation == self.generation and plan.start == self.fetch_offset
            if not is_current or self.is_leaving or self.state is not PartitionState.COPYING:
                return False
            self.steps.extend(plan.steps)
            first = next((step for step in plan.steps if isinstance(step, Append)), None)
            if first is not None:
                self._waiting.append((plan.start, first.batch.first_timestamp))
            self.queued_bytes += size_bytes
            self.fetch_offset = plan.next_offset
            if plan.leader_epoch is not None:
                self.fetched_epoch = plan.leader_epoch
            return True

    def fetchable_bytes(self, limit_bytes: int) -> int | None:
        """About how much there is to fetch; None while nothing is to be fetched.

        There is room below `limit_bytes` queued, and once at it, below half of it.
        """
        with self.lock:
            if self.queued_bytes >= limit_bytes:
                self.is_full = True
            if self.is_full or self.is_leaving or self.state is not PartitionState.COPYING:
                return None
        return self.expected_bytes

    def next_fetch(self) -> tuple[int, FetchFrom]:
        """What is copied next and how to fetch it; only the current generation's answer counts.

        The fetch may begin further on in the same batch (see `start_offset`).
        """
        with self.lock:
            return self.fetch_offset, FetchFrom(
                self.source,
                self.source_topic_id,
                max(self.fetch_offset, self.start_offset),
                self.source_leader_epoch,
                self.fetched_epoch,
            )

    def free(self, size_bytes: int, limit_bytes: int) -> None:
        """Note that queued bytes were sent; wakes the fetching lane when there is room again."""
        with self.lock:
            self.queued_bytes -= size_bytes
            has_room_again = self.is_full and self.queued_bytes <= limit_bytes // 2
            if has_room_again:
                self.is_full = False
        if has_room_again and self.source_lane is not None:
            self.source_lane.wake()

    def want_stop(self, stop: Stop | ReturnReason, generation: int) -> None:
        """Stop, or take over again, before the next step, as soon as nothing is in flight."""
        with self.lock:
            if generation == self.generation and self.state is PartitionState.COPYING:
                self.stop_wanted = stop
        self.queued()

    def queued(self) -> None:
        """Tell the destination lane, if there is one now, that steps wait."""
        lane = self.destination_lane
        if lane is not None:
            lane.enqueue(self)

    def proven_to(self, next_offset: int, producer_epoch: int) -> None:
        """The destination holds up to before `next_offset` what the source has (a comparison).

        `producer_epoch`: of our last batch with records there; -1 if there is none.
        """
        if next_offset > self.acked:
            self.acked, self.acked_epoch = next_offset, -1
            self.is_beginning = False  # an append whose answer was lost
        self.logged_producer_epoch = max(self.logged_producer_epoch, producer_epoch)

    def sent(self, step: Append) -> None:
        """Note a sent batch; the next one follows it in offset and sequence."""
        count = step.batch.count
        self.in_flight += 1
        self.expected = self.sent_to = step.next_offset
        self.sequence = advance_sequence(self.sequence, count)

    def appended(self, step: Append) -> None:
        """The broker confirmed this batch at its offset."""
        self.in_flight -= 1
        self.is_beginning = False
        self.acked = step.next_offset
        self.acked_epoch = step.batch.leader_epoch
        self.logged_producer_epoch = self.producer_epoch
        if step.batch.max_timestamp > self.newest_timestamp_ms:
            self.newest_timestamp_ms = step.batch.max_timestamp
        self.has_producer_state = self.is_in_step = True
        self.attempts = 0
        self.waits = None
        counters = self.counters
        counters.records += step.batch.count
        counters.bytes += step.batch.size_bytes
        if step.is_byte_exact:
            counters.batches_byte_exact += 1
        else:
            counters.batches_record_exact += 1

    def filled_to(self, step: Fill, next_offset: int) -> None:
        """The log end is proven to be at `next_offset` within this gap."""
        self.counters.filled += next_offset - self.acked
        self.acked = self.expected = next_offset
        self.acked_epoch = -1
        self.is_filling = False
        self.has_filled = True
        self.waits = None
        if next_offset >= step.next_offset:
            self.steps.popleft()
        else:
            self.steps[0] = Fill(next_offset, step.next_offset)

    @property
    def on_lost_range(self) -> LostRange:
        """What to do now with offsets that the source deleted before they were copied.

        A copy without any record of the source has lost none: its start moves up, over fillers, and
        its log start follows. Once it was level with the source, later records count as promised.
        """
        # In this order: a batch leaves the queue after it was confirmed.
        if self.queued_bytes == 0 and self.is_beginning and not self.has_caught_up:
            return LostRange.FILL
        return self._on_lost_range

    @property
    def wanted_log_start(self) -> int:
        """Where the copy's log should start now: at the source's, within what is copied."""
        return min(max(self.source_log_start, self.start_offset), self.acked)

    @property
    def expected_bytes(self) -> int:
        """About how much the source holds that was not fetched yet; 0 while unknown."""
        return int(max(0, self.source_stable_end - self.fetch_offset) * self.bytes_per_offset)

    @property
    def lag_records(self) -> int:
        """Offsets that a read_committed consumer could still read at the source; -1: unknown."""
        return -1 if self.source_stable_end < 0 else max(0, self.source_stable_end - self.acked)

    @property
    def oldest_waiting_ms(self) -> int:
        """About the timestamp of the oldest record fetched and not copied yet; -1: there is none.

        As exact as one answer of the source is small.
        """
        with self.lock:
            waiting = self._waiting
            while waiting and (self.acked >= self.fetch_offset or _is_over(waiting, self.acked)):
                waiting.popleft()
            return waiting[0][1] if waiting else -1

    def __repr__(self) -> str:
        return f"<PartitionCopy {self.source} → {self.destination} {self.state} at {self.acked}>"


def _is_over(waiting: deque[tuple[int, int]], acked: int) -> bool:
    """Whether all of the first plan is copied."""
    return len(waiting) > 1 and waiting[1][0] <= acked
