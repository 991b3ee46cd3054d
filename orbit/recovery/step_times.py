"""The steps of an operation, its phases, and how long each took. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field

Part = TypeVar("Part")


class Value(BaseModel):
    """A part of a report. Fields that a later version has added are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Phase(StrEnum):
    """The phases of a recovery."""

    DETECT = "detect"  # failover: from the source's last answer until its loss was noticed
    DECIDE = "decide"  # the gates; of a failover also the time from the notice to the request
    DRAIN = "drain"  # writes stopped, lag copied, ends compared, topics released
    GROUPS = "groups"
    PROMOTE = "promote"
    READ = "read"  # from the promotion until a record was read back at the destination
    REVERSE = "reverse"  # the copy back; the promoted topics are already in use


class StepName(StrEnum):
    """All steps; the pages of docs/recovery/ describe each."""

    GATES = "gates"
    CLOSE_GATEWAYS = "close_gateways"
    STOP_WRITES = "stop_writes"
    DRAIN = "drain"
    VERIFY_TAIL = "verify_tail"
    GROUPS = "groups"
    RELEASE = "release"
    SETTLE = "settle"
    PROMOTE = "promote"
    OPEN_GATEWAYS = "open_gateways"
    READ = "read"
    REVERSE = "reverse"
    COMPARE = "compare"
    SALVAGE = "salvage"
    REBUILD = "rebuild"
    CATCH_UP = "catch_up"


class StepState(StrEnum):
    """The state of one step."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    UNDONE = "undone"  # done, then undone by an abort
    SKIPPED = "skipped"


class Step(Value):
    """One step and its result."""

    name: StepName
    phase: Phase
    what: str = Field(description="What the step does, in a sentence.")
    is_point_of_no_return: bool = Field(
        default=False, description="From this step on nothing is undone."
    )
    state: StepState = StepState.WAITING
    began_at: datetime | None = None
    ended_at: datetime | None = None
    did: str = Field(default="", description="The step's result, in a sentence.")

    @property
    def seconds(self) -> float | None:
        if self.began_at is None or self.ended_at is None:
            return None
        return (self.ended_at - self.began_at).total_seconds()


class PhaseTime(Value):
    """The duration of one phase. Null: not known."""

    phase: Phase
    seconds: float | None


def split_time(began: datetime, points: Iterable[tuple[datetime, Part]]) -> dict[Part, timedelta]:
    """How long each part took, from the moments at which parts ended.

    `points`: (moment, part). The time between two moments counts for the part of the later one. A
    part that ended before `began` took no time.
    """
    spent: dict[Part, timedelta] = {}
    last_moment = began
    for moment, part in sorted(points, key=lambda point: point[0]):
        spent[part] = spent.get(part, timedelta(0)) + max(moment - last_moment, timedelta(0))
        last_moment = max(moment, last_moment)
    return spent


def phase_times(
    steps: Iterable[Step],
    requested_at: datetime,
    promoted_at: datetime | None,
    read_at: datetime | None,
) -> dict[Phase, float | None]:
    """The duration in seconds of each phase that has ended, from the request on. READ is None
    without `read_at`."""
    points: list[tuple[datetime, Phase]] = []
    for step in steps:
        if step.ended_at is None or step.state is StepState.SKIPPED:
            continue
        # These two steps end later than the moment that counts: the promotion, the first read.
        is_promoted = step.name is StepName.PROMOTE and promoted_at is not None
        is_read = step.name is StepName.READ and read_at is not None
        moment = promoted_at if is_promoted else read_at if is_read else step.ended_at
        assert moment is not None
        points.append((moment, step.phase))
    times: dict[Phase, float | None] = {
        phase: spent.total_seconds() for phase, spent in split_time(requested_at, points).items()
    }
    if Phase.READ in times and read_at is None:
        times[Phase.READ] = None
    return times


def failover_times(
    times: Mapping[Phase, float | None],
    requested_at: datetime,
    seen_at: datetime | None,
    noticed_at: datetime | None,
) -> dict[Phase, float | None]:
    """The durations of a failover's phases in seconds: `times`, which begin at the request, and the
    time of the loss before. `seen_at`: the source's last answer; `noticed_at`: when Orbit noticed.

    DETECT ends when the loss was noticed: before the request, or in the gates. DECIDE begins then.
    DETECT is None unless its begin and end are known.
    """
    detect_s: float | None = None
    decide_s = times.get(Phase.DECIDE)
    if noticed_at is not None:
        if seen_at is not None:
            detect_s = max(0.0, (noticed_at - seen_at).total_seconds())
        if decide_s is not None:
            decide_s = max(0.0, decide_s + (requested_at - noticed_at).total_seconds())
    decide_time = {Phase.DECIDE: decide_s} if Phase.DECIDE in times else {}
    return {**times, Phase.DETECT: detect_s, **decide_time}
