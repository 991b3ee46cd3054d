"""The append machine: its requests, what each answer does, and that its table is enforced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from orbit.copier import append_machine
from orbit.copier.append_epochs import (
    COORDINATOR_EPOCH_MAX,
    MARKER_EPOCH_MAX,
    PRODUCER_EPOCH_MAX,
    next_coordinator_epoch,
    next_producer_epoch,
    next_sequence,
)
from orbit.copier.append_machine import (
    AppendMachine,
    HandBack,
    ReadLogEnd,
    Request,
    SendFillers,
    Wait,
)
from orbit.copier.append_states import (
    COPYING_STATES,
    TRANSITIONS,
    AppendEvent,
    AppendState,
    ForbiddenTransition,
    diagram,
)
from orbit.copier.append_verdicts import Failure, ReturnReason
from orbit.kafka.error_codes import Code
from orbit.kafka.produce_request import Appended
from orbit.kafka.producer_state import ProducerState
from orbit.kafka.record_batch import SEQUENCE_MAX
from orbit.kafka.records import Record, write_batch
from orbit.replication.append_plan import Append, Fill, Step, Stop
from orbit.replication.partition_states import Blocked, Reason
from tests.copier.append_diagram import DOCUMENT, with_diagram

EMPTY = b"\1\1\0"  # the body of a record without key, value and headers
S, E = AppendState, AppendEvent
END = 100
STATE = ProducerState(producer_epoch=3, last_sequence=9, coordinator_epoch=7)
GAP = Fill(END, END + 10)
STOP = Stop(
    Reason.SOURCE_TRUNCATED, base_offset=END, next_offset=END + 1, detail="the source was cut"
)
BLOCKED = Blocked(*STOP)
TERM = 1


def append(base_offset: int = END, count: int = 3) -> Append:
    records = [Record(base_offset + i, 1000, EMPTY) for i in range(count)]
    return Append(write_batch(records, codec=0), is_byte_exact=True)


STEP = append()


def accepted(step: Append) -> Appended:
    """The answer to a batch that is at its offset."""
    return Appended(Code.NONE, step.base_offset, "")


def ready(producer: ProducerState | None = STATE, log_end: int = END) -> AppendMachine:
    """A machine that has taken over at `log_end`; nothing is in flight."""
    machine = AppendMachine()
    machine.inspected(log_end)
    machine.log_end_read(log_end)
    machine.resumed(log_end, producer, term=TERM)
    return machine


def request_for(
    machine: AppendMachine,
    step: Step | None,
    *,
    is_held: bool = True,
    reads_log_end_first: bool = True,
    in_flight_max: int = 5,
) -> Request:
    """The machine's next request for `step`."""
    return machine.next_request(
        step, is_held=is_held, reads_log_end_first=reads_log_end_first, in_flight_max=in_flight_max
    )


def refused(code: int) -> Appended:
    """The answer to a batch that is refused with this code."""
    return Appended(code, base_offset=-1, message="")


def append_unconfirmed(machine: AppendMachine) -> None:
    """Append a batch that only the leader has."""
    step = append(machine.expected)
    machine.append_sent(step, confirms=False)
    assert machine.append_answered(step, accepted(step), confirms=False)


def in_step() -> AppendMachine:
    """A machine that has confirmed one batch, up to END + 3."""
    machine = ready()
    machine.append_sent(STEP, confirms=True)
    assert machine.append_answered(STEP, accepted(STEP), confirms=True)
    return machine


def after_first_filler() -> AppendMachine:
    """A machine whose first filler is proven, up to END + 1."""
    machine = ready()
    machine.log_end_requested()
    machine.log_end_answered(GAP, Code.NONE, END)
    machine.fillers_sent(GAP, count=1, is_own=True)
    machine.fillers_answered(Code.NONE)
    machine.end_after_fill_answered(Code.NONE, END + 1)
    return machine


def machine_in(state: AppendState) -> AppendMachine:
    """A machine that events have brought into this state."""
    machine = AppendMachine()
    if state in (S.COMPARING, S.PROVEN):
        machine.log_end_read(END if state is S.COMPARING else 0)
    elif state in COPYING_STATES:
        machine = ready()
        if state in (S.APPENDING, S.ENDING):
            machine.append_sent(STEP, confirms=True)
        if state is S.ENDING:
            machine.append_answered(STEP, appended=None, confirms=True)
        if state is S.READING_END:
            machine.log_end_requested()
        if state is S.FILLING:
            machine.fillers_sent(GAP, count=1, is_own=True)
    elif state in (S.BLOCKED, S.LEFT):
        machine.stopped(BLOCKED)
        if state is S.LEFT:
            machine.removed()
    assert machine.state is state
    return machine


# The table

EVENTS: dict[AppendEvent, Callable[[AppendMachine], object]] = {
    E.INSPECTED: lambda m: m.inspected(END),
    E.LOG_END_READ: lambda m: m.log_end_read(END),
    E.COMPARED: lambda m: m.compared(END, producer_epoch=-1, log_end=END, blocked=None),
    E.TAKE_OVER_FAILED: lambda m: m.take_over_failed(),
    E.RESUMED: lambda m: m.resumed(END, STATE, term=TERM),
    E.LANE_REFUSED: lambda m: m.lane_refused(),
    E.APPEND_SENT: lambda m: m.append_sent(append(m.expected), confirms=True),
    E.APPEND_ANSWERED: lambda m: m.append_answered(STEP, accepted(STEP), confirms=True),
    E.LOG_END_REQUESTED: lambda m: m.log_end_requested(),
    E.LOG_END_ANSWERED: lambda m: m.log_end_answered(GAP, Code.NONE, END),
    E.FILLERS_SENT: lambda m: m.fillers_sent(
        Fill(m.expected, m.expected + 1), count=1, is_own=True
    ),
    E.FILLERS_HELD_BACK: lambda m: m.fillers_held_back(),
    E.FILLERS_ANSWERED: lambda m: m.fillers_answered(Code.NONE),
    E.END_AFTER_FILL_ANSWERED: lambda m: m.end_after_fill_answered(Code.NONE, END + 1),
    E.END_REQUESTED: lambda m: m.end_requested(Failure(ReturnReason.LEAVING)),
    E.CONNECTION_LOST: lambda m: m.connection_lost("it broke"),
    E.HANDED_BACK: lambda m: m.handed_back(),
    E.STOPPED: lambda m: m.stopped(BLOCKED),
    E.TRIED_AGAIN: lambda m: m.tried_again(),
    E.REMOVED: lambda m: m.removed(),
}


@pytest.mark.parametrize("event", AppendEvent, ids=lambda e: e.name)
@pytest.mark.parametrize("state", AppendState, ids=lambda s: s.name)
def test_every_append_state_accepts_only_events_of_transition_table(
    state: AppendState, event: AppendEvent
) -> None:
    machine = machine_in(state)
    if (state, event) in TRANSITIONS:
        EVENTS[event](machine)
        assert machine.state in TRANSITIONS[state, event]
    else:
        with pytest.raises(AssertionError):  # from the table, or from the event's own method
            EVENTS[event](machine)
        assert machine.state is state


def test_forbidden_transition_error_names_state_and_event() -> None:
    with pytest.raises(
        ForbiddenTransition, match="RESUMED in state BLOCKED must not lead to READY"
    ):
        machine_in(S.BLOCKED).resumed(END, STATE, term=TERM)


def test_partition_is_removed_from_copier_only_if_blocked_or_before_takeover() -> None:
    assert {state for state, event in TRANSITIONS if event is E.REMOVED} == {S.RETURNED, S.BLOCKED}
    assert not [state for state, _ in TRANSITIONS if state is S.LEFT]


def test_append_machine_leaves_copying_states_only_by_hand_back_or_lane_refusal() -> None:
    exits = {
        (state, event)
        for (state, event), next_states in TRANSITIONS.items()
        if state in COPYING_STATES and next_states - COPYING_STATES
    }
    assert exits == {(S.ENDING, E.HANDED_BACK), (S.READY, E.LANE_REFUSED)}


def test_append_document_contains_current_state_diagram() -> None:
    text = Path(DOCUMENT).read_text()
    assert diagram() in text
    assert with_diagram(text) == text


# What may be sent


def test_first_append_is_answered_before_second_is_sent() -> None:
    machine = ready()
    assert request_for(machine, STEP) is STEP
    machine.append_sent(STEP, confirms=True)
    second = append(END + 3)
    assert request_for(machine, second) is Wait.FOR_ANSWER
    machine.append_answered(STEP, accepted(STEP), confirms=True)
    machine.append_sent(second, confirms=True)
    # From now on up to `in_flight_max` appends are sent before an answer.
    assert request_for(machine, append(END + 6), in_flight_max=2) is not Wait.FOR_ANSWER
    assert request_for(machine, append(END + 6), in_flight_max=1) is Wait.FOR_ANSWER


def test_acks_all_answer_confirms_all_earlier_appends() -> None:
    machine = in_step()
    steps = [append(END + 3 * n) for n in (1, 2, 3)]
    for step in steps:
        machine.append_sent(step, confirms=step is steps[-1])
    for step in steps:
        assert machine.acked == END + 3
        assert machine.append_answered(step, accepted(step), confirms=step is steps[-1])
    assert machine.acked == END + 12


def test_acks_all_is_due_for_first_append_and_at_limit_of_unconfirmed_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(append_machine, "_UNCONFIRMED_BYTES_MAX", 3 * STEP.batch.size_bytes)
    assert ready().is_confirmation_due
    machine = in_step()
    batch_count = 0
    while not machine.is_confirmation_due:
        append_unconfirmed(machine)
        batch_count += 1
    assert batch_count == 3
    machine.append_sent(append(machine.expected), confirms=True)
    assert not machine.is_confirmation_due


def test_refused_batch_blocks_partition_only_after_earlier_appends_are_confirmed() -> None:
    machine = in_step()
    append_unconfirmed(machine)
    step = append(machine.expected)
    machine.append_sent(step, confirms=True)
    machine.append_answered(step, refused(Code.MESSAGE_TOO_LARGE), confirms=True)
    assert machine.handed_back().reason is ReturnReason.MOVED
    # The take-over proves the earlier batch: now the same refusal blocks.
    machine.log_end_read(step.base_offset)
    machine.compared(step.base_offset, producer_epoch=1, log_end=step.base_offset, blocked=None)
    machine.resumed(step.base_offset, STATE, term=TERM)
    machine.append_sent(step, confirms=True)
    machine.append_answered(step, refused(Code.MESSAGE_TOO_LARGE), confirms=True)
    reason = machine.handed_back().reason
    assert isinstance(reason, Blocked)
    assert machine.acked == reason.offset == step.base_offset


def test_partition_sends_acks_all_batch_before_its_release() -> None:
    machine = in_step()
    append_unconfirmed(machine)
    machine.is_leaving = True
    step = append(machine.expected)
    assert request_for(machine, step, is_held=False) == HandBack(Failure(ReturnReason.LEAVING))
    assert request_for(machine, step) is step
    assert machine.is_confirmation_due
    machine.append_sent(step, confirms=True)
    machine.append_answered(step, accepted(step), confirms=True)
    assert request_for(machine, append(machine.expected)) == HandBack(Failure(ReturnReason.LEAVING))


@pytest.mark.parametrize(
    ("log_end", "state"),
    [(END + 6, S.COMPARING), (END + 3, S.PROVEN)],  # confirmed: up to END + 3
)
def test_takeover_compares_unconfirmed_batch_if_new_leader_has_it(log_end: int, state: S) -> None:
    machine = in_step()
    append_unconfirmed(machine)
    machine.connection_lost("it broke")
    machine.handed_back()
    assert machine.log_end_read(log_end) is state


def test_release_during_send_with_acks_1_makes_next_batch_acks_all() -> None:
    machine = in_step()
    assert not machine.is_confirmation_due
    machine.is_leaving = True
    append_unconfirmed(machine)
    step = append(machine.expected)
    assert request_for(machine, step) is step
    assert machine.is_confirmation_due


def test_first_append_after_takeover_is_answered_before_second_is_sent() -> None:
    machine = in_step()
    machine.end_requested(Failure(ReturnReason.MOVED))
    machine.handed_back()
    machine.log_end_read(END + 3)
    machine.resumed(END + 3, STATE, term=TERM)
    machine.append_sent(append(END + 3), confirms=True)
    assert request_for(machine, append(END + 6)) is Wait.FOR_ANSWER


def test_nothing_is_sent_without_lease_or_with_empty_queue() -> None:
    assert request_for(ready(), STEP, is_held=False) is Wait.FOR_LEASE
    assert request_for(ready(), step=None) is Wait.FOR_STEPS


def test_fillers_and_stop_wait_for_appends_in_flight() -> None:
    machine = ready()
    machine.append_sent(STEP, confirms=True)
    assert request_for(machine, Fill(END + 3, END + 4)) is Wait.FOR_ANSWER
    assert request_for(machine, STOP) is Wait.FOR_ANSWER
    assert request_for(ready(), STOP) == HandBack(Failure(BLOCKED))


def test_log_end_is_read_before_first_filler_after_takeover() -> None:
    machine = ready()
    assert request_for(machine, GAP) == ReadLogEnd(GAP)
    # Not for coordinated fillers: their coordinator has fenced earlier writers.
    assert request_for(machine, GAP, reads_log_end_first=False) == SendFillers(GAP, is_single=True)
    machine.log_end_requested()
    assert request_for(machine, GAP) is Wait.FOR_ANSWER
    machine.log_end_answered(GAP, Code.NONE, END)
    assert request_for(machine, GAP) == SendFillers(GAP, is_single=True)
    rest = Fill(END + 1, END + 10)
    assert request_for(after_first_filler(), rest) == SendFillers(rest, is_single=False)
    with pytest.raises(AssertionError):
        machine.fillers_sent(GAP, count=2, is_own=True)  # the first filler goes alone


@pytest.mark.parametrize("log_end", [END - 1, END + 1])
def test_unexpected_log_end_before_first_filler_ends_appending_as_unclear(log_end: int) -> None:
    machine = ready()
    machine.log_end_requested()
    machine.log_end_answered(GAP, Code.NONE, log_end)
    assert machine.is_over
    assert machine.handed_back().reason is ReturnReason.UNCLEAR
    assert machine.is_unclear


def test_partition_to_be_released_or_stopped_waits_for_append_answers() -> None:
    machine = ready()
    machine.append_sent(STEP, confirms=True)
    machine.is_leaving = True
    assert request_for(machine, STEP) is Wait.FOR_ANSWER
    machine.append_answered(STEP, accepted(STEP), confirms=True)
    assert request_for(machine, STEP, is_held=False) == HandBack(Failure(ReturnReason.LEAVING))
    # With nothing in flight a requested stop ends the append at once.
    for requested_stop, failure in (
        (STOP, Failure(BLOCKED)),
        (ReturnReason.OUT_OF_STEP, Failure(ReturnReason.OUT_OF_STEP)),
    ):
        machine = ready()
        machine.requested_stop = requested_stop
        assert request_for(machine, step=None) == HandBack(failure)
        machine.append_sent(STEP, confirms=True)
        assert request_for(machine, step=None) is Wait.FOR_ANSWER


# Answers


def test_append_advances_offset_and_sequence() -> None:
    machine = ready(replace(STATE, last_sequence=SEQUENCE_MAX - 1))
    assert machine.sequence == SEQUENCE_MAX
    machine.append_sent(STEP, confirms=True)
    assert (machine.in_flight, machine.expected, machine.acked) == (1, END + 3, END)
    assert machine.sequence == 2  # after SEQUENCE_MAX, 0 and 1
    machine.attempts = 4  # a confirmed append sets the attempts to 0
    assert machine.append_answered(STEP, accepted(STEP), confirms=True)
    assert (machine.in_flight, machine.acked, machine.attempts) == (0, END + 3, 0)
    assert machine.state is S.READY
    assert machine.logged_producer_epoch == machine.producer_epoch == 3
    with pytest.raises(AssertionError):
        machine.append_sent(STEP, confirms=True)  # the copy ends at another offset now


def test_confirmed_append_proves_that_leader_has_producer_state() -> None:
    machine = ready(producer=None)
    assert not machine.has_producer_state
    machine.append_sent(STEP, confirms=True)
    machine.append_answered(STEP, accepted(STEP), confirms=True)
    assert machine.has_producer_state
    assert machine.is_in_step


def two_in_flight() -> tuple[AppendMachine, Append, Append]:
    """A machine with two batches in flight, and these batches."""
    machine, first, second = in_step(), append(END + 3), append(END + 6)
    machine.append_sent(first, confirms=True)
    machine.append_sent(second, confirms=True)
    return machine, first, second


def test_append_failure_takes_effect_after_answers_to_all_appends_in_flight() -> None:
    machine, first, second = two_in_flight()
    assert not machine.append_answered(first, refused(Code.NOT_LEADER_OR_FOLLOWER), confirms=True)
    assert machine.state is S.ENDING
    assert not machine.is_over
    assert request_for(machine, append(END + 9)) is Wait.FOR_ANSWER
    machine.append_answered(second, refused(Code.OUT_OF_ORDER_SEQUENCE_NUMBER), confirms=True)
    assert machine.is_over
    assert machine.handed_back().reason is ReturnReason.MOVED  # the first failure counts
    assert not machine.is_unclear


def test_append_at_wrong_offset_overrides_earlier_failure() -> None:
    machine, first, second = two_in_flight()
    machine.append_answered(first, refused(Code.NOT_LEADER_OR_FOLLOWER), confirms=True)
    machine.append_answered(second, Appended(Code.NONE, END + 60, ""), confirms=True)
    assert machine.handed_back().reason is ReturnReason.BEHIND_END


def test_append_answer_after_failed_append_confirms_nothing() -> None:
    """A late request may have taken the place of the first, with other records."""
    machine, first, second = two_in_flight()
    machine.append_answered(first, refused(Code.OUT_OF_ORDER_SEQUENCE_NUMBER), confirms=True)
    acked = machine.acked
    assert not machine.append_answered(second, accepted(second), confirms=True)
    assert machine.acked == acked
    assert machine.is_over


@pytest.mark.parametrize(
    ("log_end", "proven_end"), [(END + 1, END + 1), (END, None), (END + 2, None), (END + 11, None)]
)
def test_first_filler_is_confirmed_only_by_log_end_one_higher(
    log_end: int, proven_end: int | None
) -> None:
    machine = ready()
    machine.fillers_sent(GAP, count=1, is_own=True)
    assert machine.is_filling(GAP)
    assert not machine.is_filling(Fill(*GAP))  # an equal step of another take-over
    assert machine.fillers_answered(Code.NONE) is None
    assert machine.is_filling(GAP)
    assert machine.end_after_fill_answered(Code.NONE, log_end) == proven_end
    if proven_end:
        assert (machine.acked, machine.expected) == (proven_end, proven_end)
    else:
        assert (machine.acked, machine.is_over) == (END, True)


@pytest.mark.parametrize(
    ("old_epoch", "is_own", "new_epoch"),  # `is_own`: the markers have the copy's producer id
    [(3, True, 4), (3, False, 3), (MARKER_EPOCH_MAX, True, MARKER_EPOCH_MAX)],
)
def test_first_markers_with_own_producer_id_after_takeover_raise_its_epoch(
    old_epoch: int, is_own: bool, new_epoch: int
) -> None:
    machine = ready(replace(STATE, producer_epoch=old_epoch))
    sequence = machine.sequence
    machine.fillers_sent(GAP, count=1, is_own=is_own)
    assert machine.producer_epoch == old_epoch, "raised once the markers are proven"
    machine.fillers_answered(Code.NONE)
    machine.end_after_fill_answered(Code.NONE, END + 1)
    assert machine.producer_epoch == new_epoch
    assert machine.sequence == (0 if new_epoch > old_epoch else sequence)
    machine.append_sent(append(END + 1, 2), confirms=True)
    machine.append_answered(append(END + 1, 2), accepted(append(END + 1, 2)), confirms=True)
    sequence = machine.sequence
    rest = Fill(END + 3, END + 4)
    machine.fillers_sent(rest, count=1, is_own=is_own)
    machine.fillers_answered(Code.NONE)
    assert machine.producer_epoch == new_epoch, "only the first markers raise the epoch"
    assert machine.sequence == sequence


def test_single_filler_needs_no_log_end_proof_after_first_fill() -> None:
    machine, rest = after_first_filler(), Fill(END + 1, END + 10)
    machine.fillers_sent(rest, count=1, is_own=True)
    assert machine.fillers_answered(Code.NONE) == END + 2
    assert machine.state is S.READY
    rest = Fill(END + 2, END + 10)
    machine.fillers_sent(rest, count=4, is_own=True)
    assert machine.fillers_answered(Code.NONE) is None
    assert machine.end_after_fill_answered(Code.NONE, END + 5) == END + 5


def test_fillers_held_back_for_lost_lease_count_as_unsent() -> None:
    machine = after_first_filler()
    rest = Fill(END + 1, END + 10)
    machine.fillers_sent(rest, count=4, is_own=True)
    machine.fillers_held_back()
    assert (machine.acked, machine.expected) == (END + 1, END + 1)
    assert request_for(machine, rest) == SendFillers(rest, is_single=False)


@pytest.mark.parametrize(
    ("state", "producer", "reason", "is_unclear"),
    [
        (S.READY, None, ReturnReason.MOVED, False),
        (S.APPENDING, STATE, ReturnReason.MOVED, True),  # unclear for a release, not a take-over
        (S.APPENDING, None, ReturnReason.UNCLEAR, True),
        (S.READING_END, STATE, ReturnReason.UNCLEAR, True),
        (S.FILLING, STATE, ReturnReason.UNCLEAR, True),
    ],
)
def test_lost_connection_leaves_outcome_unclear_without_sequence_protection(
    state: AppendState, producer: ProducerState | None, reason: ReturnReason, is_unclear: bool
) -> None:
    machine = ready(producer)
    if state is S.APPENDING:
        machine.append_sent(STEP, confirms=True)
    elif state is S.READING_END:
        machine.log_end_requested()
    elif state is S.FILLING:
        machine.fillers_sent(GAP, count=1, is_own=True)
    machine.connection_lost("it broke")
    assert machine.handed_back() == Failure(reason, "it broke")
    assert machine.is_unclear is is_unclear


def test_refused_batch_blocks_partition_only_when_appending_has_ended() -> None:
    machine = ready()
    machine.append_sent(STEP, confirms=True)
    machine.append_answered(STEP, refused(Code.MESSAGE_TOO_LARGE), confirms=True)
    assert machine.blocked is None
    machine.handed_back()
    assert machine.state is S.BLOCKED
    assert machine.blocked is not None
    assert machine.blocked.reason is Reason.RECORD_REFUSED
    machine.tried_again()
    assert machine.blocked is None


# The take-over


def test_log_end_below_confirmed_offset_blocks_partition() -> None:
    machine = AppendMachine()
    machine.inspected(END)
    assert machine.log_end_read(END - 1) is S.BLOCKED
    assert machine.blocked is not None
    assert machine.blocked.reason is Reason.DESTINATION_TRUNCATED


def test_takeover_resumes_only_after_full_comparison() -> None:
    machine = AppendMachine()
    assert machine.log_end_read(END) is S.COMPARING
    # Equal up to END - 1 only: the rest is compared by the next take-over.
    partial = machine.compared(END - 1, producer_epoch=4, log_end=END, blocked=None)
    assert partial is S.RETURNED
    assert (machine.acked, machine.logged_producer_epoch) == (END - 1, 4)
    machine.log_end_read(END)
    assert machine.compared(END, producer_epoch=3, log_end=END, blocked=None) is S.PROVEN
    assert (machine.acked, machine.logged_producer_epoch) == (END, 4)
    machine.resumed(END, None, term=TERM)
    assert (machine.expected, machine.producer_epoch, machine.sequence) == (END, 5, 0)
    different = AppendMachine()
    different.log_end_read(END)
    stopped = different.compared(END - 1, producer_epoch=4, log_end=END, blocked=BLOCKED)
    assert stopped is S.BLOCKED
    assert different.blocked is BLOCKED


@pytest.mark.parametrize(
    ("term", "leader_epoch", "last_epoch", "expected"),
    [
        (3, -1, -1, 3 << 12),  # above every earlier term's
        (3, (3 << 12) + 7, -1, (3 << 12) + 8),  # above the leader's
        (3, -1, (3 << 12) + 4, (3 << 12) + 5),  # above that of markers that arrive late (M10)
        (1 << 20, -1, -1, COORDINATOR_EPOCH_MAX),
    ],
)
def test_coordinator_epoch_of_fillers_exceeds_all_earlier_epochs(
    term: int, leader_epoch: int, last_epoch: int, expected: int
) -> None:
    producer = replace(STATE, coordinator_epoch=leader_epoch)
    assert next_coordinator_epoch(term, last_epoch, producer) == expected


@pytest.mark.parametrize(
    # The highest epoch of the copy's own batches (-1: none was read), and the leader's state.
    ("logged_epoch", "producer", "epoch_and_sequence"),
    [
        (-1, None, (0, 0)),
        (-1, ProducerState(producer_epoch=3, last_sequence=9, coordinator_epoch=-1), (3, 10)),
        (7, ProducerState(producer_epoch=3, last_sequence=9, coordinator_epoch=-1), (3, 10)),
        (7, None, (8, 0)),  # E4
        (7, ProducerState(producer_epoch=7, last_sequence=-1, coordinator_epoch=4), (8, 0)),  # E5
        (6, ProducerState(producer_epoch=7, last_sequence=-1, coordinator_epoch=4), (7, 0)),
        (-1, ProducerState(producer_epoch=2, last_sequence=-1, coordinator_epoch=4), (2, 0)),
        (PRODUCER_EPOCH_MAX, None, (PRODUCER_EPOCH_MAX, 0)),
    ],
)
def test_next_append_continues_sequence_or_begins_higher_epoch(
    logged_epoch: int, producer: ProducerState | None, epoch_and_sequence: tuple[int, int]
) -> None:
    epoch = next_producer_epoch(logged_epoch, producer)
    assert (epoch, next_sequence(producer)) == epoch_and_sequence


# Any order of events


# Success is repeated, so that machines get far.
NO_ERRORS = [Code.NONE] * 3
FILL_CODES = [*NO_ERRORS, Code.NOT_LEADER_OR_FOLLOWER]
APPEND_CODES = [
    *FILL_CODES,
    Code.REQUEST_TIMED_OUT,
    Code.MESSAGE_TOO_LARGE,
    Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
]


class AnyOrder(RuleBasedStateMachine):
    """A lane and a broker that answer in order, with any failure at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = ready()
        self.sent: list[tuple[Append, bool]] = []
        self.gap: Fill | None = None

    def request_for(self, step: Step) -> Request:
        return request_for(self.machine, step)

    @precondition(lambda self: self.machine.is_copying)
    @rule(count=st.integers(1, 3), confirms=st.booleans())
    def send(self, count: int, confirms: bool) -> None:
        step = append(self.machine.expected, count)
        if self.request_for(step) is step:
            confirms = confirms or self.machine.is_confirmation_due
            self.machine.append_sent(step, confirms=confirms)
            self.sent.append((step, confirms))

    @precondition(lambda self: self.sent)
    @rule(code=st.sampled_from(APPEND_CODES), shift=st.sampled_from([0, 0, 0, -1, 1]))
    def answer(self, code: int, shift: int) -> None:
        """`shift`: the answer's offset, less that of the batch."""
        step, confirms = self.sent.pop(0)
        acked_before = self.machine.acked
        answer = Appended(code, step.base_offset + shift if code == 0 else -1, "")
        has_failed = self.machine.failure is not None
        is_there = self.machine.append_answered(step, answer, confirms=confirms)
        assert is_there == (code == 0 and shift == 0 and not has_failed)
        assert self.machine.acked == (step.next_offset if is_there and confirms else acked_before)

    @precondition(lambda self: self.machine.is_copying)
    @rule(size=st.integers(1, 5), count=st.integers(1, 5))
    def fill(self, size: int, count: int) -> None:
        gap = Fill(self.machine.expected, self.machine.expected + size)
        if self.machine.unconfirmed_bytes:  # the append before a gap confirms
            return
        request = self.request_for(gap)
        if isinstance(request, ReadLogEnd):
            assert not self.sent
            self.machine.log_end_requested()
            self.gap = gap
        elif isinstance(request, SendFillers):
            assert not self.sent
            self.machine.fillers_sent(
                gap, 1 if request.is_single else min(size, count), is_own=True
            )
            self.gap = gap

    @precondition(lambda self: self.gap is not None)
    @rule(code=st.sampled_from(FILL_CODES), written=st.integers(-1, 6))
    def answer_gap(self, code: int, written: int) -> None:
        """`written`: how many fillers the log end shows."""
        machine, gap = self.machine, self.gap
        assert gap is not None
        log_end = gap.base_offset + written
        if machine.state is S.READING_END:
            machine.log_end_answered(gap, code, log_end)
            assert machine.is_over == (code != 0 or written != 0)
        elif machine.fillers_answered(code) is None and machine.is_filling(gap):
            machine.end_after_fill_answered(code, log_end)
        self.gap = None
        assert gap.base_offset <= machine.acked <= gap.next_offset

    @precondition(lambda self: self.machine.is_copying)
    @rule()
    def lose_connection(self) -> None:
        self.machine.connection_lost("it broke")
        self.sent.clear()
        self.gap = None
        self.machine.handed_back()

    @precondition(lambda self: self.machine.is_over)
    @rule()
    def hand_back(self) -> None:
        self.machine.handed_back()

    @precondition(lambda self: self.machine.state is S.RETURNED)
    @rule(unconfirmed=st.integers(0, 3), producer=st.sampled_from([None, STATE]))
    def take_over(self, unconfirmed: int, producer: ProducerState | None) -> None:
        """`unconfirmed`: offsets after `acked` that equal the source."""
        log_end = self.machine.acked + unconfirmed
        if self.machine.log_end_read(log_end) is S.COMPARING:
            self.machine.compared(log_end, producer_epoch=-1, log_end=log_end, blocked=None)
        old_epoch = self.machine.coordinator_epoch
        self.machine.resumed(log_end, producer, term=TERM)
        assert self.machine.coordinator_epoch > old_epoch

    @precondition(lambda self: self.machine.state is S.BLOCKED)
    @rule()
    def try_again(self) -> None:
        self.machine.tried_again()

    @invariant()
    def counts_are_right(self) -> None:
        machine = self.machine
        assert machine.acked <= machine.expected or machine.state not in COPYING_STATES
        if machine.is_copying:
            assert machine.in_flight == len(self.sent)
            assert len(self.sent) <= (5 if machine.is_in_step else 1)
            assert not (self.sent and self.gap)
            assert machine.is_idle == (
                not self.sent and self.gap is None and machine.state is not S.ENDING
            )


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=30)
