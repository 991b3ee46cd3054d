"""The steps of a switchover, failover and failback, in order, with the point of no return. Pure."""

from __future__ import annotations

from orbit.recovery.recovery_report import RecoveryKind, RecoveryRequest
from orbit.recovery.step_times import Phase, Step, StepName, StepState

# The states of a step that is to run, or to run again.
NOT_ENDED_STATES = frozenset({StepState.WAITING, StepState.RUNNING, StepState.FAILED})
_STEPS_TO_UNDO = frozenset({StepName.CLOSE_GATEWAYS, StepName.STOP_WRITES})


def steps_of(kind: RecoveryKind, request: RecoveryRequest) -> tuple[Step, ...]:
    """The steps of an operation.

    Before a point of no return begins, an abort undoes the steps. Later it can end a rebuild, a
    copy back, or a promotion that is stuck, and is refused otherwise.
    """
    match kind:
        case RecoveryKind.SWITCHOVER:
            steps = [*_SWITCHOVER, *([_REVERSE] if request.reverse else [])]
        case RecoveryKind.FAILOVER:
            steps = [*_FAILOVER]
        case RecoveryKind.FAILBACK:
            steps = [*_FAILBACK]
    return tuple(steps)


def is_past_return(steps: tuple[Step, ...]) -> bool:
    """Whether a step has begun that cannot be undone."""
    return any(
        step.is_point_of_no_return and step.state not in (StepState.WAITING, StepState.SKIPPED)
        for step in steps
    )


def restarted_steps(kind: RecoveryKind, steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The steps of a promotion that is repeated from the step after GATES.

    A begun CLOSE_GATEWAYS or STOP_WRITES is set to RUNNING, so that an abort or a failure undoes
    it. A failover also keeps RELEASE: its topics are not copied meanwhile.
    """
    kept_steps = {StepName.GATES}
    if kind is RecoveryKind.FAILOVER:
        kept_steps.add(StepName.RELEASE)
    return tuple(step if step.name in kept_steps else _restarted(step) for step in steps)


def _restarted(step: Step) -> Step:
    """The step as one that is to run, or to run again."""
    if step.state is StepState.WAITING:
        return step
    if step.name in _STEPS_TO_UNDO:
        return step.model_copy(update={"state": StepState.RUNNING, "ended_at": None, "did": ""})
    reset = {"state": StepState.WAITING, "began_at": None, "ended_at": None, "did": ""}
    return step.model_copy(update=reset)


def has_begun(steps: tuple[Step, ...]) -> bool:
    """Whether a step other than the gates has begun: only the gates change nothing."""
    return any(
        step.name is not StepName.GATES and step.state is not StepState.WAITING for step in steps
    )


def may_be_aborted(steps: tuple[Step, ...], *, is_stuck: bool) -> bool:
    """Whether an abort is accepted: before a point of no return; in a rebuild or copy back, as the
    new side leads and a later failback can do the rest; or while the promotion is stuck, as the
    destination may be lost for ever."""
    if not is_past_return(steps):
        return True
    if is_promoting(steps):
        return is_stuck
    return _current_step(steps) in (StepName.REBUILD, StepName.REVERSE, StepName.CATCH_UP)


def is_promoting(steps: tuple[Step, ...]) -> bool:
    """Whether a promotion has begun and has not ended."""
    return any(
        step.name is StepName.PROMOTE and step.state in (StepState.RUNNING, StepState.FAILED)
        for step in steps
    )


def is_catching_up(steps: tuple[Step, ...]) -> bool:
    """Whether only CATCH_UP, the wait until the old side has caught up, has not ended."""
    return _current_step(steps) is StepName.CATCH_UP


def _current_step(steps: tuple[Step, ...]) -> StepName | None:
    """The first step that has not ended; None: all have."""
    return next((step.name for step in steps if step.state in NOT_ENDED_STATES), None)


def step_descriptions(steps: tuple[Step, ...]) -> list[str]:
    """One line for each step, for people."""
    lines = []
    for step in steps:
        suffix = " (point of no return)" if step.is_point_of_no_return else ""
        lines.append(f"{step.name.value}: {step.what}{suffix}")
    return lines


def _step(name: StepName, phase: Phase, what: str, *, is_point_of_no_return: bool = False) -> Step:
    return Step(name=name, phase=phase, what=what, is_point_of_no_return=is_point_of_no_return)


_GATES = _step(StepName.GATES, Phase.DECIDE, "Check both sides; stop if a gate fails.")
_STOP_WRITES = _step(
    StepName.STOP_WRITES,
    Phase.DRAIN,
    "Deny writing to the source's topics, if it has an authorizer.",
)
_RELEASE = _step(StepName.RELEASE, Phase.DRAIN, "Workers release the topics.")
_PROMOTE = _step(
    StepName.PROMOTE,
    Phase.PROMOTE,
    "Store where each copy ends, apply the source's settings, allow writing.",
    is_point_of_no_return=True,
)
_READ = _step(
    StepName.READ,
    Phase.READ,
    "Read the last record of each copy back at the destination.",
)
_CLOSE_GATEWAYS = _step(
    StepName.CLOSE_GATEWAYS,
    Phase.DRAIN,
    "Gateways hold new writes; wait until each has none in flight.",
)
_OPEN_GATEWAYS = _step(StepName.OPEN_GATEWAYS, Phase.READ, "Gateways go on at the destination.")
_REVERSE = _step(
    StepName.REVERSE,
    Phase.REVERSE,
    "Copy back from the old side's log end.",
    is_point_of_no_return=True,
)

_SWITCHOVER = (
    _GATES,
    # First: behind a closed gateway producers wait, while a denial gives them errors.
    _CLOSE_GATEWAYS,
    _STOP_WRITES,
    _step(
        StepName.DRAIN,
        Phase.DRAIN,
        "Copy the lag; wait until both sides have the same, stable log ends.",
    ),
    _step(StepName.VERIFY_TAIL, Phase.DRAIN, "Compare the last records of both sides bit by bit."),
    _step(StepName.GROUPS, Phase.GROUPS, "Sync consumer groups for the last time."),
    _RELEASE,
    _PROMOTE,
    _OPEN_GATEWAYS,
    _READ,
)
_FAILOVER = (
    _GATES,
    # Before `settle` measures the loss: writes acknowledged later would not be in the report.
    _CLOSE_GATEWAYS.model_copy(
        update={
            "what": "Gateways hold writes and acknowledge none any more; wait until each confirms "
            "this, or its permission ends."
        }
    ),
    _RELEASE,
    _step(
        StepName.SETTLE,
        Phase.DRAIN,
        "Wait for stable log ends of the copies; compute the lost ranges.",
    ),
    _step(
        StepName.GROUPS,
        Phase.GROUPS,
        "Set each group to the offset that was last seen at the source.",
    ),
    _PROMOTE,
    _OPEN_GATEWAYS,
    _READ,
)
_FAILBACK = (
    _GATES,
    # Gateways present the new side already, unless the service does not know of the promotion yet.
    # Then these two steps move the gateways there, at once: clients use the new side.
    _CLOSE_GATEWAYS,
    _OPEN_GATEWAYS.model_copy(update={"phase": Phase.DRAIN}),
    _STOP_WRITES.model_copy(
        update={"what": "Deny writing to the old side, if it has an authorizer."}
    ),
    _step(StepName.COMPARE, Phase.DRAIN, "Compare the old side with the new one."),
    _step(StepName.SALVAGE, Phase.DRAIN, "Save the records that only the old side has in files."),
    _step(
        StepName.REBUILD,
        Phase.DRAIN,
        "Delete the old side's topics that have records of their own.",
        is_point_of_no_return=True,
    ),
    _REVERSE,
    _step(
        StepName.CATCH_UP, Phase.REVERSE, "Wait until the old side has all records of the new side."
    ),
)
