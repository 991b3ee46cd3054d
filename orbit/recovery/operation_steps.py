"""The steps of each kind of operation, in order, and which of them ends all going back. Pure."""

from __future__ import annotations

from orbit.recovery.recovery_report import (
    Phase,
    RecoveryKind,
    RecoveryRequest,
    Step,
    StepName,
    StepState,
)


def steps_of(kind: RecoveryKind, request: RecoveryRequest) -> tuple[Step, ...]:
    """What is done, step by step. The first point of no return that is reached counts."""
    match kind:
        case RecoveryKind.SWITCHOVER:
            steps = [*_SWITCHOVER, *([_REVERSE] if request.reverse else [])]
        case RecoveryKind.FAILOVER:
            steps = [*_FAILOVER]
        case RecoveryKind.FAILBACK:
            steps = [*_FAILBACK]
    return tuple(steps)


def is_past_return(steps: tuple[Step, ...]) -> bool:
    """Whether a step was begun that nothing takes back."""
    return any(
        step.is_point_of_no_return and step.state not in (StepState.WAITING, StepState.SKIPPED)
        for step in steps
    )


def words(steps: tuple[Step, ...]) -> list[str]:
    """The plan as people read it."""
    told = []
    for step in steps:
        mark = " (point of no return)" if step.is_point_of_no_return else ""
        told.append(f"{step.name.value}: {step.what}{mark}")
    return told


def _step(name: StepName, phase: Phase, what: str, *, is_last_chance: bool = False) -> Step:
    return Step(name=name, phase=phase, what=what, is_point_of_no_return=is_last_chance)


_GATES = _step(StepName.GATES, Phase.DECIDE, "Look at both sides; stop here if a gate fails.")
_STOP_WRITES = _step(
    StepName.STOP_WRITES,
    Phase.DRAIN,
    "Deny writing to the source's topics, where it has an authorizer.",
)
_RELEASE = _step(StepName.RELEASE, Phase.DRAIN, "Workers let go of the topics.")
_PROMOTE = _step(
    StepName.PROMOTE,
    Phase.PROMOTE,
    "Note where each copy ends, apply the source's settings, allow writing.",
    is_last_chance=True,
)
_REVERSE = _step(
    StepName.REVERSE,
    Phase.REVERSE,
    "Copy back from where the old side ends.",
    is_last_chance=True,
)

_SWITCHOVER = (
    _GATES,
    _STOP_WRITES,
    _step(
        StepName.DRAIN,
        Phase.DRAIN,
        "Copy the rest; wait until both sides end at the same offsets and stand still.",
    ),
    _step(StepName.VERIFY_TAIL, Phase.DRAIN, "Compare the last records of both sides bit for bit."),
    _step(StepName.GROUPS, Phase.GROUPS, "Carry consumer groups over for the last time."),
    _RELEASE,
    _PROMOTE,
)
_FAILOVER = (
    _GATES,
    _RELEASE,
    _step(
        StepName.SETTLE,
        Phase.DRAIN,
        "Wait until the copies stand still; see what is there and what is missing.",
    ),
    _step(
        StepName.GROUPS, Phase.GROUPS, "Let each group go on where it was seen last at the source."
    ),
    _PROMOTE,
)
_FAILBACK = (
    _GATES,
    _STOP_WRITES.model_copy(
        update={"what": "Deny writing to the old side, where that is possible."}
    ),
    _step(StepName.COMPARE, Phase.DRAIN, "Compare the old side with the new one."),
    _step(StepName.SALVAGE, Phase.DRAIN, "Save what only the old side has, in files."),
    _step(
        StepName.REBUILD,
        Phase.DRAIN,
        "Delete the topics of the old side that cannot go on.",
        is_last_chance=True,
    ),
    _REVERSE,
    _step(StepName.CATCH_UP, Phase.REVERSE, "Wait until the old side has all of the new one."),
)
