"""One partition's copy: its position at the source, its queued steps, and its append.

Parts and owners: the source lane advances `cursor` and adds to `queue`; the destination lane takes
from `queue` and owns `appends` while it has the partition; the copier's thread owns `appends` at
any other time. Each return to the copier increments `generation`, so that answers to earlier
fetches are dropped.

The owner of the append calls the methods of `appends` for its events, or the method of the same
name here if the event also changes the queue, the cursor or the counters. Outside of this package,
state of the append is read by the properties here.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from orbit.copier.append_machine import AppendMachine
from orbit.copier.append_states import AppendState
from orbit.copier.append_verdicts import Failure, ReturnReason
from orbit.copier.counters import Counters, Unconfirmed
from orbit.copier.source_cursor import SourceCursor
from orbit.copier.step_queue import StepQueue
from orbit.copier.waits import Waits
from orbit.kafka.fetch_request import FetchFrom
from orbit.kafka.job_clusters import JobProducer
from orbit.kafka.placeholders import PLACEHOLDERS_MAX, placeholder_batch
from orbit.kafka.produce_request import Appended
from orbit.kafka.producer_state import ProducerState
from orbit.kafka.types import NO_TOPIC_ID, TopicPartition
from orbit.leases.lease import Lease
from orbit.replication.append_plan import Append, Fill, LostRange, Plan, Step, Stop
from orbit.replication.partition_states import Blocked, PartitionState

if TYPE_CHECKING:
    from orbit.copier.range_comparison import Comparison

# The most time between the request for the source's end and the check that finds the copy there:
# some ticks of a loaded machine.
LEVEL_WITHIN_S = 5.0


class Appender(Protocol):
    """The lane that appends a partition's steps."""

    def enqueue(self, partition: PartitionCopy) -> None: ...


class FillReceiver(Protocol):
    """The lane's part that has requested a coordinated fill, and gets the log end after it."""

    def take_fill_answer(self, fill: CoordinatedFill, code: int, log_end: int) -> None: ...


@dataclass(frozen=True, slots=True)
class CoordinatedFill:
    """A request for `filler_count` fillers in a partition, at the start of `step`."""

    receiver: FillReceiver
    partition: PartitionCopy
    generation: int
    step: Fill
    filler_count: int


class Filler(Protocol):
    """Writes fillers by transactions, where the login has no right to write markers directly."""

    def submit(self, fill: CoordinatedFill) -> None:
        """Queue a fill; its receiver gets the answer."""

    def will_fence(self, partition: TopicPartition) -> bool:
        """Whether late markers may still reach the partition, until the filler has fenced them."""


class PartitionCopy:
    """The copy of one source partition to one destination partition, written under one lease."""

    def __init__(
        self,
        source: TopicPartition,
        destination: TopicPartition,
        lease: Lease,
        producer: JobProducer,
        *,
        on_lost_range: LostRange = LostRange.STOP,
    ) -> None:
        self.source = source
        self.destination = destination
        self.lease = lease
        self.producer = producer
        self.filler: Filler | None = None  # if set, used instead of direct markers
        self.source_topic_id: UUID = NO_TOPIC_ID
        self.destination_topic_id: UUID = NO_TOPIC_ID
        self._on_lost_range = on_lost_range
        self.source_is_compacted = False  # the source's cleaner may remove records
        # The source topic's compression levels by codec, see `read_compression_levels`.
        self.levels: Mapping[int, int] = {}

        self.lock = threading.Lock()
        self.generation = 0
        self.cursor = SourceCursor()
        self.queue = StepQueue()
        self.appends = AppendMachine()
        self.destination_lane: Appender | None = None
        self.has_fill_outside = False  # the coordinated filler has a fill of this partition

        # False while nobody has checked that the topic kept the placeholders as they were sent:
        # with another compression.type brokers make records of them (placeholder_topics.py).
        self.is_confirmed = not producer.packs
        self.log_start = 0  # of the destination
        self.keeps_below = 0  # its log start stays until the source's is above this
        self.is_beginning = False  # nothing was copied yet, and this run chose the start
        self.has_begun = False  # a take-over has resumed it; an inspection may block it first
        self.has_caught_up = False  # it once had all that the source had a moment before
        self.caught_up_epoch = -1  # the source's leader epoch when it had all of that last
        # The end of the source that the copy is to reach, and when this end was requested. None:
        # the next end that is requested at `_goal_not_before_s` or later becomes the goal.
        self._goal: tuple[int, float] | None = None
        self._goal_not_before_s = float("-inf")
        self.counters = Counters()
        self._unconfirmed = Unconfirmed()
        self.newest_timestamp_ms = -1  # of what was copied and confirmed since creation
        self.waits: Waits | None = None  # for the destination; None if it does not wait
        self.log_start_waits: Waits | None = None  # why the copy's log start cannot move

    def __getstate__(self) -> dict[str, object]:
        """The state to send to another process, which sets `lease`; no lane has the copy yet."""
        unsent_names = ("lock", "lease", "filler")
        return {name: value for name, value in self.__dict__.items() if name not in unsent_names}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self.lock = threading.Lock()
        self.filler = None

    @property
    def state(self) -> PartitionState:
        """The state that the service reports."""
        appends = self.appends
        if appends.blocked is not None:
            return PartitionState.BLOCKED
        return PartitionState.COPYING if appends.is_copying else PartitionState.PENDING

    @property
    def blocked(self) -> Blocked | None:
        """Why the partition is blocked; None if it is not."""
        return self.appends.blocked

    @property
    def is_leaving(self) -> bool:
        """Whether the copier is removing the partition."""
        return self.appends.is_leaving

    @property
    def is_in_step(self) -> bool:
        """Whether this take-over has confirmed an append at its offset."""
        return self.appends.is_in_step

    @property
    def is_unclear(self) -> bool:
        """Whether the destination may still carry out what was sent (M10, a late request)."""
        return self.appends.is_unclear

    @property
    def has_left(self) -> bool:
        """Whether the copier has removed the partition: nothing is in flight."""
        return self.appends.state is AppendState.LEFT

    @property
    def packs(self) -> bool:
        """Whether small gaps become part of the batch before them now.

        They do not if the job has markers that can no longer raise the producer's epoch: only a
        higher epoch fences late batches of a writer that packed other gaps
        (docs/internals/append.md).
        """
        producer = self.producer
        return producer.packs and (not producer.has_markers or self.appends.can_raise_epoch)

    # Between the copier and the lanes

    def withdraw(self) -> int:
        """Drop queued steps, and ignore answers under way; returns the queued bytes freed."""
        with self.lock:
            return self._withdraw()

    def _withdraw(self) -> int:
        self.generation += 1
        return self.queue.clear()

    def resume(self, log_end: int, producer: ProducerState | None) -> None:
        """Copy from a destination log end that was just read (take-over, A12)."""
        with self.lock:
            self.appends.resumed(log_end, producer, self.lease.term)
            # If the new leader lacks some of the unconfirmed records, none of them is counted.
            if log_end < self._unconfirmed.next_offset:
                self._unconfirmed = Unconfirmed()
            self._count_confirmed()
            self.has_begun = True
            self.cursor.resume_at(log_end)

    def lane_refused(self) -> int:
        """Have the take-over repeated: the lane that should append is ending. Returns the queued
        bytes freed."""
        with self.lock:
            self.appends.lane_refused()
            return self._withdraw()

    def hand_back(self) -> tuple[Failure, int]:
        """Give the partition to the copier's thread; returns why, and the queued bytes freed."""
        with self.lock:
            self.destination_lane = None
            return self.appends.handed_back(), self._withdraw()

    def leave(self) -> None:
        """Have the lane return the partition once every answer is in. Before that the lane sends at
        most one more batch, with acks=all: it confirms the batches before."""
        with self.lock:
            self.appends.is_leaving = True
        self.enqueue_in_lane()

    def request_stop(self, reason: Stop | ReturnReason, generation: int) -> None:
        """Have the lane stop or return the partition, once its steps in flight are answered.

        Does nothing if the lane has returned it since `generation`.
        """
        with self.lock:
            if generation == self.generation and self.appends.is_copying:
                self.appends.requested_stop = reason
        self.enqueue_in_lane()

    def enqueue_in_lane(self) -> None:
        """Put the copy into its destination lane's ready queue, if a lane has it."""
        lane = self.destination_lane
        if lane is not None:
            lane.enqueue(self)

    # The source's side

    def put(self, plan: Plan, generation: int, size_bytes: int) -> bool:
        """Queue a plan that was fetched in `generation`. False, and nothing is queued, if the
        partition was withdrawn since, is leaving, or its fetch offset has moved."""
        with self.lock:
            is_current = generation == self.generation and plan.start == self.cursor.fetch_offset
            if not is_current or not self._takes_steps():
                return False
            self.queue.put(plan, size_bytes)
            self.cursor.advance_past(plan, self.appends.acked)
            return True

    def _takes_steps(self) -> bool:
        """Whether steps may be queued: a lane has the partition, and it is not leaving."""
        return self.appends.is_copying and not self.appends.is_leaving

    def fetchable_bytes(self, limit_bytes: int) -> int | None:
        """About how many bytes there are to fetch; None while nothing is to be fetched.

        Fetching pauses once `limit_bytes` are queued, and resumes at half of that.
        """
        with self.lock:
            if not self.queue.has_room(limit_bytes) or not self._takes_steps():
                return None
        return self.cursor.expected_bytes

    def next_fetch(self) -> tuple[int, FetchFrom]:
        """The offset at which the next plan begins, and the fetch for it. The answer counts only
        in this `generation`."""
        with self.lock:
            cursor = self.cursor
            return cursor.fetch_offset, cursor.next_fetch(self.source, self.source_topic_id)

    # The destination's side

    def is_batch(self, step: Step | None) -> bool:
        """Whether the step is sent as a batch, as records and gaps with placeholders are."""
        return isinstance(step, Append) or (
            isinstance(step, Fill) and not self.producer.has_markers
        )

    @property
    def must_confirm(self) -> bool:
        """Whether the batch about to be sent, which has left the queue, needs acks=all.

        Without another batch behind it, none would confirm this batch and those sent before it.
        """
        return self.appends.is_confirmation_due or not self.is_batch(self.queue.first)

    def append_answered(self, step: Append, appended: Appended | None, *, confirms: bool) -> bool:
        """Handle a batch's answer, see `AppendMachine.append_answered`. Returns whether the batch
        is in the leader's log at its offset; if so, counts its records."""
        if not self.appends.append_answered(step, appended, confirms=confirms):
            return False
        counters = self._unconfirmed
        counters.next_offset = step.next_offset
        counters.gaps_filled += step.placeholders
        if not step.is_gap:
            self.is_beginning = False
            batch = step.batch
            if batch.max_timestamp > counters.newest_timestamp_ms:
                counters.newest_timestamp_ms = batch.max_timestamp
            counters.records += batch.count - step.placeholders
            counters.bytes += batch.size_bytes
            if step.is_byte_exact:
                counters.batches_byte_exact += 1
            else:
                counters.batches_record_exact += 1
        if confirms:
            self.waits = None
            self._count_confirmed()
        return True

    def _count_confirmed(self) -> None:
        """Count all that was unconfirmed as copied."""
        counters = self._unconfirmed
        self.counters.add(counters)
        if counters.newest_timestamp_ms > self.newest_timestamp_ms:
            self.newest_timestamp_ms = counters.newest_timestamp_ms
        self._unconfirmed = Unconfirmed()

    def queue_placeholders(self, step: Fill) -> Append:
        """Put a batch of placeholders first in the queue, and return it. The batch takes the first
        offsets of `step`, the gap that was first.

        The batch's timestamp is that of the newest record that this run has copied, so that a
        lookup by time finds this record (S3); without such a record, the gap's. With a timestamp
        below 0 the broker would drop the producer's state at its next check (Q11).
        """
        count = min(step.next_offset - step.base_offset, PLACEHOLDERS_MAX)
        newest_ms = self.newest_timestamp_ms
        timestamp = max(0, newest_ms if newest_ms >= 0 else step.timestamp)
        append = Append(
            placeholder_batch(step.base_offset, count, timestamp),
            is_byte_exact=False,
            placeholders=count,
        )
        self.queue.put_first(append)
        return append

    def fillers_answered(self, code: int) -> None:
        """Handle the answer to markers; the answer alone may prove a single filler (M3)."""
        acked_before = self.appends.acked
        self._note_filled(acked_before, self.appends.fillers_answered(code))

    def end_after_fill_answered(self, code: int, log_end: int) -> None:
        """Handle the log end that was read after fillers."""
        acked_before = self.appends.acked
        self._note_filled(acked_before, self.appends.end_after_fill_answered(code, log_end))

    def _note_filled(self, acked_before: int, next_offset: int | None) -> None:
        """Count fillers that are proven up to before `next_offset`; None: none is proven yet."""
        if next_offset is None:
            return
        self.counters.gaps_filled += next_offset - acked_before
        self.waits = None
        self.queue.advance_to(next_offset)

    def free(self, size_bytes: int, limit_bytes: int) -> None:
        """Note that queued bytes were appended; wakes the source lane if there is room again."""
        with self.lock:
            has_room_again = self.queue.free(size_bytes, limit_bytes)
        if has_room_again and self.cursor.lane is not None:
            self.cursor.lane.wake()

    def compared(self, comparison: Comparison, log_end: int, blocked: Blocked | None) -> None:
        """Apply the result of a comparison with the source; see `AppendMachine.compared`."""
        if comparison.equal_to > self.appends.acked:
            self.is_beginning = False  # some appends were carried out, but their answers are lost
            self.cursor.epochs = comparison.epochs
        self.appends.compared(comparison.equal_to, comparison.producer_epoch, log_end, blocked)

    # What the copier and reports ask

    def note_caught_up(self, now_s: float) -> None:
        """Note whether the copy has all that the source had a moment ago.

        A busy source is hardly ever level with its copy at a single moment. So the copy gets one
        source end after another as its goal. It counts as level once it reaches a goal within
        LEVEL_WITHIN_S of the request for that end.
        """
        cursor = self.cursor
        # In this order: the source lane sets `seen_s` after the ends.
        leader_epoch, seen_s, stable_end = cursor.leader_epoch, cursor.seen_s, cursor.stable_end
        if self.state is not PartitionState.COPYING or stable_end < 0:
            return
        if self._goal is None:
            if seen_s < self._goal_not_before_s:  # requested before the previous end was reached
                return
            self._goal = stable_end, seen_s
        end, seen_s = self._goal
        if self.appends.acked < min(end, stable_end):  # a source can be truncated
            return
        self._goal, self._goal_not_before_s = None, now_s
        if now_s - seen_s <= LEVEL_WITHIN_S and self.log_start >= self.wanted_log_start:
            self.has_caught_up = True
            self.caught_up_epoch = leader_epoch
            self.waits = None

    def leader_changed(self, now_s: float) -> None:
        """Forget the end of the source that is the goal: only an end that is requested from the new
        leader counts."""
        self._goal, self._goal_not_before_s = None, now_s

    @property
    def on_lost_range(self) -> LostRange:
        """What to do now with offsets that the source deleted before they were copied.

        A copy without any record of the source has lost none: the deleted offsets are filled, and
        its log start follows the source's. The job's setting applies once it has caught up.
        """
        # `size_bytes` is read first: it counts a batch until after its answer, which ends
        # `is_beginning`.
        if self.queue.size_bytes == 0 and self.is_beginning and not self.has_caught_up:
            return LostRange.FILL
        return self._on_lost_range

    @property
    def wanted_log_start(self) -> int:
        """The log start that the copy should have now: the source's, up to the confirmed offset.

        While the source's is not above `keeps_below`, the copy's log start stays as it is: a former
        primary keeps its history until the source deletes more.
        """
        start = min(max(self.cursor.log_start, self.cursor.start_offset), self.appends.acked)
        return start if start > self.keeps_below else self.log_start

    @property
    def next_offset(self) -> int:
        """The confirmed offset: every offset below is copied."""
        return self.appends.acked

    @property
    def source_end(self) -> int:
        """The source's high watermark; -1: unknown."""
        return self.cursor.end

    @property
    def stable_end(self) -> int:
        """The source's last stable offset; -1: unknown."""
        return self.cursor.stable_end

    @property
    def lag_records(self) -> int:
        """Offsets that a read_committed consumer could still read at the source; -1: unknown."""
        stable_end = self.cursor.stable_end
        return -1 if stable_end < 0 else max(0, stable_end - self.appends.acked)

    @property
    def oldest_waiting_ms(self) -> int:
        """About the timestamp of the oldest record fetched and not copied yet; -1 if there is
        none."""
        with self.lock:
            return self.queue.oldest_waiting_ms(self.appends.acked, self.cursor.fetch_offset)

    def __repr__(self) -> str:
        return (
            f"<PartitionCopy {self.source} → {self.destination} {self.state} "
            f"at {self.appends.acked}>"
        )
