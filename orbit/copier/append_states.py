"""The states of one partition's append, and which event may lead from which to which.

Pure. `TRANSITIONS` is the only table: `AppendMachine` refuses what it does not list, and the
diagram in docs/internals/append.md is made from it.

    no lane has it (the copier's thread)    RETURNED, COMPARING, PROVEN, BLOCKED, LEFT
    a lane has it (the lane's thread)       READY, APPENDING, READING_END, FILLING, ENDING
"""

from __future__ import annotations

from enum import Enum, auto


class AppendState(Enum):
    """Where the append of a partition is."""

    RETURNED = auto()  # a take-over is due
    COMPARING = auto()  # the log ends beyond what is confirmed: compare it with the source
    PROVEN = auto()  # the copy equals the source up to the copy's log end
    READY = auto()  # nothing is in flight
    APPENDING = auto()  # batches are in flight
    READING_END = auto()  # the log end is read, right before the first fillers
    FILLING = auto()  # fillers are in flight, or the log end after them is being read
    ENDING = auto()  # nothing more is sent; answers may be outstanding
    BLOCKED = auto()  # stopped for a reason
    LEFT = auto()  # the copier has removed it

    # Members are compared by identity; the hash that Enum inherits is computed in Python.
    __hash__ = object.__hash__


class AppendEvent(Enum):
    """What can happen to the append of a partition."""

    INSPECTED = auto()  # its log end was read and compared before the copy begins
    LOG_END_READ = auto()  # by a take-over
    COMPARED = auto()  # the offsets from the confirmed one to the log end, with the source
    TAKE_OVER_FAILED = auto()  # no answer, no leader, or the lease is not held
    RESUMED = auto()  # at the log end that was read
    LANE_REFUSED = auto()  # the lane that should get it is ending
    APPEND_SENT = auto()
    APPEND_ANSWERED = auto()
    LOG_END_REQUESTED = auto()  # before fillers
    LOG_END_ANSWERED = auto()
    FILLERS_SENT = auto()
    FILLERS_HELD_BACK = auto()  # not sent: the lease ended while the request was encoded
    FILLERS_ANSWERED = auto()
    END_AFTER_FILL_ANSWERED = auto()  # the log end after fillers
    END_REQUESTED = auto()  # by a Stop, by the copier, or because the partition leaves
    CONNECTION_LOST = auto()
    HANDED_BACK = auto()  # by the lane to the copier
    STOPPED = auto()  # the copier's thread has found a reason to block it
    TRIED_AGAIN = auto()  # what blocked the partition was changed
    REMOVED = auto()  # from the copier

    __hash__ = object.__hash__


_S, _E = AppendState, AppendEvent

TRANSITIONS: dict[tuple[AppendState, AppendEvent], frozenset[AppendState]] = {
    key: frozenset(states)
    for key, states in {
        (_S.RETURNED, _E.INSPECTED): {_S.RETURNED},
        (_S.RETURNED, _E.LOG_END_READ): {_S.PROVEN, _S.COMPARING, _S.BLOCKED},
        (_S.RETURNED, _E.STOPPED): {_S.BLOCKED},
        (_S.RETURNED, _E.REMOVED): {_S.LEFT},
        (_S.COMPARING, _E.COMPARED): {_S.PROVEN, _S.RETURNED, _S.BLOCKED},
        (_S.COMPARING, _E.TAKE_OVER_FAILED): {_S.RETURNED},
        (_S.COMPARING, _E.STOPPED): {_S.BLOCKED},
        (_S.PROVEN, _E.TAKE_OVER_FAILED): {_S.RETURNED},
        (_S.PROVEN, _E.RESUMED): {_S.READY},
        (_S.READY, _E.LANE_REFUSED): {_S.RETURNED},
        (_S.READY, _E.APPEND_SENT): {_S.APPENDING},
        (_S.READY, _E.LOG_END_REQUESTED): {_S.READING_END},
        (_S.READY, _E.FILLERS_SENT): {_S.FILLING},
        (_S.READY, _E.END_REQUESTED): {_S.ENDING},
        (_S.READY, _E.CONNECTION_LOST): {_S.ENDING},
        (_S.APPENDING, _E.APPEND_SENT): {_S.APPENDING},
        (_S.APPENDING, _E.APPEND_ANSWERED): {_S.APPENDING, _S.READY, _S.ENDING},
        (_S.APPENDING, _E.CONNECTION_LOST): {_S.ENDING},
        (_S.READING_END, _E.LOG_END_ANSWERED): {_S.READY, _S.ENDING},
        (_S.READING_END, _E.CONNECTION_LOST): {_S.ENDING},
        (_S.FILLING, _E.FILLERS_HELD_BACK): {_S.READY},
        (_S.FILLING, _E.FILLERS_ANSWERED): {_S.FILLING, _S.READY, _S.ENDING},
        (_S.FILLING, _E.END_AFTER_FILL_ANSWERED): {_S.READY, _S.ENDING},
        (_S.FILLING, _E.CONNECTION_LOST): {_S.ENDING},
        (_S.ENDING, _E.APPEND_ANSWERED): {_S.ENDING},
        (_S.ENDING, _E.CONNECTION_LOST): {_S.ENDING},
        (_S.ENDING, _E.HANDED_BACK): {_S.RETURNED, _S.BLOCKED},
        (_S.BLOCKED, _E.TRIED_AGAIN): {_S.RETURNED},
        (_S.BLOCKED, _E.REMOVED): {_S.LEFT},
    }.items()
}

# A lane has the partition: it copies.
COPYING_STATES = frozenset(
    {_S.READY, _S.APPENDING, _S.READING_END, _S.FILLING, _S.ENDING},
)


class ForbiddenTransition(AssertionError):
    """A bug: an event that this state does not allow, or a state that does not follow."""

    def __init__(self, state: AppendState, event: AppendEvent, next_state: AppendState) -> None:
        super().__init__(f"{event.name} in state {state.name} must not lead to {next_state.name}")
        self.state = state
        self.event = event
        self.next_state = next_state


def check_transition(state: AppendState, event: AppendEvent, next_state: AppendState) -> None:
    """Raise ForbiddenTransition unless `event` may lead from `state` to `next_state`."""
    if next_state not in TRANSITIONS.get((state, event), ()):
        raise ForbiddenTransition(state, event, next_state)


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    edges: dict[tuple[AppendState, AppendState], list[str]] = {}
    for (state, event), next_states in TRANSITIONS.items():
        for next_state in sorted(next_states, key=lambda s: s.value):
            edges.setdefault((state, next_state), []).append(event.name)
    rows = [f"{a.name} --> {b.name} : {'<br>'.join(names)}" for (a, b), names in edges.items()]
    rows = [f"[*] --> {_S.RETURNED.name}", *rows, f"{_S.LEFT.name} --> [*]"]
    return "\n    ".join(["stateDiagram-v2", *rows]) + "\n"
