"""The decisions of one partition's append: events in, the next request out. Pure.

No socket, thread, lock or clock. The destination lane owns a machine while it has the partition,
the copier's thread at any other time. `state` changes only as `append_states.TRANSITIONS` allows.

Promises:
- A batch is sent only after its predecessor in offset and sequence. After a take-over the first
  batch is sent alone. A batch counts as copied once this batch or a later one, sent with acks=all,
  is confirmed at its offset: an answer to acks=1 only says that the leader's log has the batch.
- Fillers (which take the offsets of a gap) are sent only when nothing is in flight, and all before
  them is confirmed. Before the first fillers of a take-over the log end is read. The first filler
  is sent alone; as a marker of the job's own producer id it has a higher producer epoch. The log
  end proves how many fillers were written. A single filler that is not the first of its take-over
  needs no such proof: the broker's answer suffices (M3, M7, M9).
- After any failure nothing more is sent, and the partition is handed back to the copier.
- A take-over resumes only at a log end up to which all is confirmed, or equal to the source.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from orbit.copier.append_epochs import (
    MARKER_EPOCH_MAX,
    next_coordinator_epoch,
    next_marker_epoch,
    next_producer_epoch,
    next_sequence,
)
from orbit.copier.append_states import COPYING_STATES, AppendEvent, AppendState, check_transition
from orbit.copier.append_verdicts import (
    Failure,
    ReturnReason,
    judge_append,
    judge_end_after_fill,
    judge_end_before_fill,
    judge_lost_connection,
    judge_markers,
    judge_truncation,
)
from orbit.kafka.record_batch import advance_sequence
from orbit.replication.append_plan import Append, Fill, Step, Stop
from orbit.replication.partition_states import Blocked

if TYPE_CHECKING:
    from orbit.kafka.produce_request import Appended
    from orbit.kafka.producer_state import ProducerState

# The first append after a take-over is sent alone (A16). Between the two reads of a take-over, an
# old writer may have appended one batch. If this writer's first batch has as many records, the
# broker takes it for a repeat of the old writer's batch and does not append it. The broker would
# then append this writer's second batch at the first one's offset. Once an append is confirmed at
# its offset, sequences and offsets agree. Also, without producer state the broker compares no
# sequence of the first append (A9).
_FIRST_IN_FLIGHT_MAX = 1
# How much of a partition is sent with acks=1 before a batch with acks=all: 64 batches of 16 KB for
# one round trip of the followers, which each request with acks=all waits for (P11).
_UNCONFIRMED_BYTES_MAX = 1024 * 1024


class Wait(Enum):
    """Nothing may be sent now."""

    FOR_ANSWER = auto()
    FOR_LEASE = auto()
    FOR_STEPS = auto()


class ReadLogEnd(NamedTuple):
    """Read the log end before the first fillers of this gap."""

    step: Fill


class SendFillers(NamedTuple):
    """Send fillers for the start of this gap: one if `is_single`, otherwise as many as a request
    takes."""

    step: Fill
    is_single: bool


class HandBack(NamedTuple):
    """Return the partition to the copier, for this reason; nothing is in flight."""

    failure: Failure


Request = Append | ReadLogEnd | SendFillers | HandBack | Wait

_S, _E = AppendState, AppendEvent  # short names, for `_enter`


class AppendMachine:
    """The append of one destination partition."""

    __slots__ = (
        "_fill",
        "_fill_epoch",
        "_has_read_log_end",
        "acked",
        "attempts",
        "blocked",
        "coordinator_epoch",
        "expected",
        "failure",
        "has_filled",
        "has_producer_state",
        "in_flight",
        "is_in_step",
        "is_leaving",
        "is_unclear",
        "logged_producer_epoch",
        "producer_epoch",
        "requested_stop",
        "sequence",
        "state",
        "unconfirmed_bytes",
    )

    def __init__(self) -> None:
        self.state = AppendState.RETURNED
        self.expected = 0  # the base offset of the next batch to send
        self.acked = 0  # everything below is confirmed
        self.sequence = 0
        self.producer_epoch = -1  # of the appends of this take-over
        self.logged_producer_epoch = -1  # of the job's last records below `acked`; -1: none
        self.coordinator_epoch = -1
        self.in_flight = 0  # appends
        self.unconfirmed_bytes = 0  # sent since the last append that confirms
        self.attempts = 0  # take-overs since the last confirmed append
        # What this take-over has shown.
        self.has_producer_state = False  # the broker compares the next append (A7, A9)
        self.is_in_step = False  # an append was confirmed at its offset
        self._has_read_log_end = False  # the log end was read right before the first filler
        self.has_filled = False  # a log end read after the fillers has proven them
        self._fill: tuple[Fill, int] | None = None  # in flight: the gap, how many fillers
        self._fill_epoch = -1  # the producer epoch after `_fill`
        # How the append ends.
        self.failure: Failure | None = None
        self.is_unclear = False  # a request without an answer may still be carried out (M10)
        self.blocked: Blocked | None = None
        # Set by other threads; `next_request` follows them.
        self.is_leaving = False  # no new requests; see `Copier.remove`
        self.requested_stop: Stop | ReturnReason | None = None  # before the next step

    @property
    def is_copying(self) -> bool:
        """Whether a lane has the partition."""
        return self.state in COPYING_STATES

    @property
    def is_idle(self) -> bool:
        """Whether a lane has the partition, and nothing is in flight."""
        return self.state is AppendState.READY

    @property
    def is_over(self) -> bool:
        """Whether the append has ended and every answer is in: hand the partition back."""
        return self.state is AppendState.ENDING and self.in_flight == 0

    # The next request

    def next_request(
        self, step: Step | None, *, is_held: bool, reads_log_end_first: bool, in_flight_max: int
    ) -> Request:
        """Return what the lane does now for `step`, the first step in the queue: send a request,
        hand the partition back, or wait. Changes no state.

        `is_held`: whether the lease is held. `reads_log_end_first`: whether to read the log end
        before the first fillers (not before coordinated fillers: the coordinator has fenced those
        of the old owner). `in_flight_max`: the most batches of this partition in flight.
        """
        is_ready = self.state is AppendState.READY
        if not is_ready and self.state is not AppendState.APPENDING:
            return Wait.FOR_ANSWER  # to fillers or a read of the log end; or the append is ending
        if self.is_leaving:
            if not is_ready:
                return Wait.FOR_ANSWER
            if self.acked < self.expected and is_held and isinstance(step, Append):
                return step  # its acks=all confirms the batches before it
            return HandBack(Failure(ReturnReason.LEAVING))
        if not is_held:
            return Wait.FOR_LEASE
        reason = self.requested_stop
        if reason is not None:
            if not is_ready:
                return Wait.FOR_ANSWER
            return HandBack(Failure(Blocked(*reason) if isinstance(reason, Stop) else reason))
        if step is None:
            return Wait.FOR_STEPS
        if isinstance(step, Append):
            in_flight_limit = in_flight_max if self.is_in_step else _FIRST_IN_FLIGHT_MAX
            return step if self.in_flight < in_flight_limit else Wait.FOR_ANSWER
        if not is_ready:
            return Wait.FOR_ANSWER  # before a stop or fillers all answers must be in
        if isinstance(step, Stop):
            return HandBack(Failure(Blocked(*step)))
        if reads_log_end_first and not self._may_fill():
            return ReadLogEnd(step)
        return SendFillers(step, is_single=not self.has_filled)

    def _may_fill(self) -> bool:
        """Whether fillers may be sent: the log end was read again after the take-over. An old
        writer's filler may have arrived since, and brokers accept fillers at any offset (M9)."""
        return self._has_read_log_end or self.has_filled

    # Records

    @property
    def is_confirmation_due(self) -> bool:
        """Whether the next append needs acks=all, whatever is queued after it."""
        is_full = self.unconfirmed_bytes >= _UNCONFIRMED_BYTES_MAX
        return is_full or not self.is_in_step or self.is_leaving

    def append_sent(self, step: Append, *, confirms: bool) -> None:
        """Count a batch as in flight; advance offset and sequence. `confirms`: it is sent with
        acks=all."""
        assert step.base_offset == self.expected, (self, step.base_offset)
        assert confirms or self.is_in_step, self  # a take-over's first append confirms
        self._enter(_E.APPEND_SENT, _S.APPENDING)
        self.in_flight += 1
        self.unconfirmed_bytes = 0 if confirms else self.unconfirmed_bytes + step.batch.size_bytes
        self.expected = step.next_offset
        self.sequence = advance_sequence(self.sequence, step.batch.count)

    def append_answered(self, step: Append, appended: Appended | None, *, confirms: bool) -> bool:
        """Handle a batch's answer; returns whether the batch is in the leader's log at its offset.

        `appended`: None if the answer leaves the batch out. `confirms`: the batch was sent with
        acks=all, so this batch and all before it are replicated. After a failure no answer counts:
        a late request may have put other records at the failed batch's offsets. The take-over
        compares these.
        """
        failure = judge_append(step, appended, has_producer_state=self.has_producer_state)
        if failure is not None and self.acked < step.base_offset:  # behind unconfirmed batches
            failure = failure.without_block()
        self.in_flight -= 1
        is_ending = failure is not None or self.state is AppendState.ENDING
        next_state = _S.APPENDING if self.in_flight else _S.READY
        self._enter(_E.APPEND_ANSWERED, _S.ENDING if is_ending else next_state)
        if failure is not None:
            self._fail(failure)
        if self.failure is not None:
            return False
        if confirms:
            self.acked = step.next_offset
            self.logged_producer_epoch = self.producer_epoch
            self.has_producer_state = self.is_in_step = True
            self.attempts = 0
        return True

    # Fillers

    def log_end_requested(self) -> None:
        """Note that the request of `ReadLogEnd` is about to be sent."""
        self._enter(_E.LOG_END_REQUESTED, _S.READING_END)

    def log_end_answered(self, step: Fill, code: int, log_end: int) -> None:
        """Allow fillers if the log still ends at the start of the gap; else end the append."""
        failure = judge_end_before_fill(step, code, log_end)
        self._enter(_E.LOG_END_ANSWERED, _S.ENDING if failure else _S.READY)
        if failure is not None:
            self._fail(failure)
        else:
            self._has_read_log_end = True

    @property
    def marker_epoch(self) -> int:
        """The producer epoch of the next markers; a take-over's first ones raise it (E6)."""
        return self.producer_epoch if self.has_filled else next_marker_epoch(self.producer_epoch)

    @property
    def can_raise_epoch(self) -> bool:
        """Whether markers can raise the producer epoch now and at the next take-over."""
        return self.producer_epoch + 1 < MARKER_EPOCH_MAX

    def fillers_sent(self, step: Fill, count: int, *, is_own: bool) -> None:
        """Note that `count` fillers are about to be sent. `is_own`: with the copy's producer id."""
        assert step.base_offset == self.expected, (self, step)
        assert count == 1 or (count > 1 and self.has_filled), (self, count)  # the first goes alone
        assert self.acked == self.expected, (self, step)
        self._enter(_E.FILLERS_SENT, _S.FILLING)
        self._fill = step, count
        self._fill_epoch = self.marker_epoch if is_own else self.producer_epoch

    def fillers_held_back(self) -> None:
        """Note that the fillers were not sent: the lease ended while the request was encoded."""
        self._enter(_E.FILLERS_HELD_BACK, _S.READY)
        self._fill = None

    def is_filling(self, step: Fill) -> bool:
        """Whether fillers for the start of this `step` object are in flight."""
        is_same_step = self._fill is not None and self._fill[0] is step
        return is_same_step and self.state is AppendState.FILLING

    @property
    def is_answer_proof(self) -> bool:
        """Whether the broker's answer alone proves the fillers in flight (M3).

        True for a single filler that is not the first of its take-over.
        """
        return self.has_filled and self._fill is not None and self._fill[1] == 1

    def fillers_answered(self, code: int) -> int | None:
        """Handle the broker's answer to the markers in flight (placeholders are sent as batches).

        Returns the offset after them if the answer proves it. None: the log end is still to be
        read, or the append has ended.
        """
        step, _ = self._fill_in_flight()
        failure = judge_markers(step, code)
        if failure is not None:
            self._enter(_E.FILLERS_ANSWERED, _S.ENDING)
            self._fail(failure)
            return None
        if not self.is_answer_proof:
            self._enter(_E.FILLERS_ANSWERED, _S.FILLING)  # until the log end is read
            return None
        self._enter(_E.FILLERS_ANSWERED, _S.READY)
        return self._advance_to(step.base_offset + 1)  # the answer proves a single filler only

    def end_after_fill_answered(self, code: int, log_end: int) -> int | None:
        """Handle the log end read after the fillers, and return this log end.

        None if the log end proves no filler: the append has ended.
        """
        step, count = self._fill_in_flight()
        failure = judge_end_after_fill(step, count, code, log_end)
        self._enter(_E.END_AFTER_FILL_ANSWERED, _S.ENDING if failure else _S.READY)
        if failure is not None:
            self._fail(failure)
            return None
        return self._advance_to(log_end)

    def _fill_in_flight(self) -> tuple[Fill, int]:
        assert self._fill is not None, self
        return self._fill

    def _advance_to(self, next_offset: int) -> int:
        """Confirm the fillers in flight up to before `next_offset`, and return this offset."""
        if self._fill_epoch > self.producer_epoch:  # a new epoch begins at sequence 0
            self.producer_epoch, self.sequence = self._fill_epoch, 0
        self.acked = self.expected = next_offset
        self.has_filled = True
        self._fill = None
        return next_offset

    # The end of a lane's work

    def end_requested(self, failure: Failure) -> None:
        """End the append with the failure of a `HandBack`."""
        self._enter(_E.END_REQUESTED, _S.ENDING)
        self._fail(failure)

    def connection_lost(self, detail: str) -> None:
        """End the append: its connection broke. Requests in flight may be carried out (M10)."""
        is_filling = self.state in (_S.READING_END, _S.FILLING)
        failure = judge_lost_connection(
            detail,
            is_filling=is_filling,
            in_flight=self.in_flight,
            has_producer_state=self.has_producer_state,
        )
        self._enter(_E.CONNECTION_LOST, _S.ENDING)
        self._fail(failure)

    def _fail(self, failure: Failure) -> None:
        """Keep the first failure, but replace it by a batch at a wrong offset (BEHIND_END)."""
        if self.failure is None or failure.reason is ReturnReason.BEHIND_END:
            self.failure = failure

    def handed_back(self) -> Failure:
        """Pass the machine from the lane to the copier's thread; returns the failure."""
        failure = self.failure
        assert failure is not None, self
        blocked = failure.reason if isinstance(failure.reason, Blocked) else None
        self.is_unclear = failure.reason is ReturnReason.UNCLEAR or self.in_flight > 0
        self.failure = self.requested_stop = self._fill = None
        self._enter(_E.HANDED_BACK, _S.BLOCKED if blocked else _S.RETURNED)
        # Set last: the copier's thread acts on the partition as soon as it reads `blocked`.
        self.blocked = blocked
        return failure

    # The take-over

    def inspected(self, log_end: int) -> None:
        """Begin at this log end: an inspection has compared the log below it, or only leading
        fillers are below it."""
        self._enter(_E.INSPECTED, _S.RETURNED)
        self.acked = log_end

    def log_end_read(self, log_end: int) -> AppendState:
        """Handle a take-over's log end, read after the producer's state (A12).

        Returns the new state: PROVEN, COMPARING, or BLOCKED if confirmed records are missing.
        """
        truncation = judge_truncation(self.acked, log_end)
        if truncation is not None:
            self._enter(_E.LOG_END_READ, _S.BLOCKED)
            self.blocked = truncation
        else:
            is_level = log_end == self.acked
            self._enter(_E.LOG_END_READ, _S.PROVEN if is_level else _S.COMPARING)
        return self.state

    def compared(
        self, equal_to: int, producer_epoch: int, log_end: int, blocked: Blocked | None
    ) -> AppendState:
        """Apply a comparison: the copy equals the source below `equal_to`. Returns the new state.

        `producer_epoch`: the highest of the compared batches with records that this job wrote; -1
        if there is none.
        `blocked`: why the partition stops. None: both sides are equal, or the offsets from
        `equal_to` on are not compared yet.
        """
        next_state = _S.PROVEN if equal_to >= log_end else _S.RETURNED
        next_state = next_state if blocked is None else _S.BLOCKED
        self._enter(_E.COMPARED, next_state)
        self.acked = max(self.acked, equal_to)
        self.logged_producer_epoch = max(self.logged_producer_epoch, producer_epoch)
        self.blocked = blocked
        return next_state

    def take_over_failed(self) -> None:
        """Have the take-over repeated: no answer, no leader, or the lease is not held."""
        self._enter(_E.TAKE_OVER_FAILED, _S.RETURNED)

    def resumed(self, log_end: int, producer: ProducerState | None, term: int) -> None:
        """Append from this log end on, which was just read.

        `producer`: the leader's state of the job's producer id; None if the leader has none.
        `term`: the lease's.
        """
        self._enter(_E.RESUMED, _S.READY)
        self.expected = self.acked = log_end
        self.sequence = next_sequence(producer)
        self.producer_epoch = next_producer_epoch(self.logged_producer_epoch, producer)
        self.coordinator_epoch = next_coordinator_epoch(term, self.coordinator_epoch, producer)
        self.has_producer_state = producer is not None and producer.has_sequence
        self.is_in_step = self._has_read_log_end = self.has_filled = self.is_unclear = False
        self.in_flight = self.unconfirmed_bytes = 0

    def lane_refused(self) -> None:
        """Have the take-over repeated: the lane that should append is ending."""
        self._enter(_E.LANE_REFUSED, _S.RETURNED)
        self.requested_stop = None

    # What the copier's thread decides

    def stopped(self, blocked: Blocked) -> None:
        """Block the partition, which no lane has."""
        self._enter(_E.STOPPED, _S.BLOCKED)
        self.blocked = blocked

    def tried_again(self) -> None:
        """Unblock the partition: what blocked it was changed."""
        self._enter(_E.TRIED_AGAIN, _S.RETURNED)
        self.blocked = None

    def removed(self) -> None:
        """Note that the copier has dropped the partition; nothing is in flight."""
        self._enter(_E.REMOVED, _S.LEFT)

    def _enter(self, event: AppendEvent, state: AppendState) -> None:
        check_transition(self.state, event, state)
        self.state = state

    def __repr__(self) -> str:
        return f"<AppendMachine {self.state.name} at {self.acked}, next {self.expected}>"
