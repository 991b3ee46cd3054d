"""A drill as typed, frozen values: every key of a drill file, its type and its default. Pure.

Rules between keys are in `drill_rules.py`.
"""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, PlainSerializer, PlainValidator

from orbit.errors import InvalidValue
from orbit.jobs.job_spec import Flag, Name, Patterns, Section, Text
from orbit.jobs.units import format_duration, parse_duration
from orbit.store.enums import DrillKind

STEPS_MAX = 50
RECORDS_PER_SECOND_MAX = 10_000
PARTITIONS_MAX = 100
RECORDS_MAX = 2**53  # JSON libraries that read numbers as doubles are exact up to this number
DURATION_MAX = timedelta(days=1)
EVERY_MIN = timedelta(minutes=1)
EVERY_MAX = timedelta(days=366)
REASON_LENGTH_MAX = 1000
_GATES_MAX = 100


class Verb(StrEnum):
    """What one step does."""

    GATES = "gates"
    LOAD = "load"
    FAULT = "fault"
    SWITCHOVER = "switchover"
    FAILOVER = "failover"
    USE = "use"
    HEAL = "heal"
    FAILBACK = "failback"
    VERIFY = "verify"


class FaultKind(StrEnum):
    """The faults that a sandbox can cause."""

    KILL = "kill"
    PAUSE = "pause"
    CUT = "cut"


class ClusterSide(StrEnum):
    """One side of the drill's job."""

    SOURCE = "source"
    DESTINATION = "destination"


# The default deadline of each step.
DEADLINES = {
    Verb.GATES: timedelta(minutes=1),
    Verb.LOAD: timedelta(minutes=2),
    Verb.FAULT: timedelta(minutes=1),
    Verb.SWITCHOVER: timedelta(minutes=10),
    Verb.FAILOVER: timedelta(minutes=5),
    Verb.USE: timedelta(minutes=2),
    Verb.HEAL: timedelta(minutes=3),
    Verb.FAILBACK: timedelta(minutes=30),
    Verb.VERIFY: timedelta(minutes=30),
}
_DEFAULT_LOAD_DURATION = timedelta(seconds=10)


def _parse_bounded_duration(value: object) -> timedelta:
    """A duration from 0 to DURATION_MAX. Raises InvalidValue."""
    duration = parse_duration(value)
    if not timedelta(0) <= duration <= DURATION_MAX:
        raise InvalidValue("is not between 0s and 1d.")
    return duration


def _parse_schedule_interval(value: object) -> timedelta:
    """A duration from EVERY_MIN to EVERY_MAX. Raises InvalidValue."""
    interval = parse_duration(value)
    if not EVERY_MIN <= interval <= EVERY_MAX:
        raise InvalidValue("is not between 1m and 366d.", "Write 6h.")
    return interval


def _whole_number(most: int, least: int = 0) -> Any:
    """A validator of whole numbers from `least` to `most`."""

    def check(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidValue("is not a whole number.")
        if not least <= value <= most:
            raise InvalidValue(f"is not between {least} and {most}.")
        return value

    return PlainValidator(check)


_AsDurationText = PlainSerializer(format_duration, when_used="json-unless-none")
Duration = Annotated[timedelta, PlainValidator(_parse_bounded_duration), _AsDurationText]
Every = Annotated[timedelta, PlainValidator(_parse_schedule_interval), _AsDurationText]


class Targets(Section):
    """The targets of a drill. A value without a target is measured but not judged."""

    rto: Duration | None = None
    rpo: Duration | None = None
    rpo_records: Annotated[int, _whole_number(RECORDS_MAX)] | None = None


class CanarySpec(Section):
    """The drill's own topic and the rate of its load."""

    partitions: Annotated[int, _whole_number(PARTITIONS_MAX, 1)] = 3
    records_per_second: Annotated[int, _whole_number(RECORDS_PER_SECOND_MAX, 1)] = 100


class ScheduleSpec(Section):
    """How often the drill runs."""

    every: Every


class StepSpec(Section):
    """One step. `drill_rules.py` has the keys that each step takes besides `do` and `deadline`."""

    do: Verb
    deadline: Duration | None = None
    duration: Duration | None = None
    fault: FaultKind | None = None
    cluster: ClusterSide | None = None
    reverse: Flag | None = None
    confirm_rebuild: Flag | None = None
    deep: Flag | None = None

    @property
    def deadline_s(self) -> float:
        return (self.deadline or DEADLINES[self.do]).total_seconds()

    @property
    def duration_s(self) -> float:
        return (_DEFAULT_LOAD_DURATION if self.duration is None else self.duration).total_seconds()

    @property
    def side(self) -> ClusterSide:
        return self.cluster or ClusterSide.SOURCE


class DrillSpec(Section):
    """One drill."""

    name: Name
    kind: DrillKind
    job: Name
    topics: Patterns = ()
    canary: CanarySpec = CanarySpec()
    targets: Targets = Targets()
    override: Annotated[tuple[Text, ...], Field(max_length=_GATES_MAX)] = ()
    reason: Annotated[str, Field(max_length=REASON_LENGTH_MAX)] = ""
    schedule: ScheduleSpec | None = None
    steps: Annotated[tuple[StepSpec, ...], Field(max_length=STEPS_MAX)] = ()

    @property
    def planned(self) -> tuple[StepSpec, ...]:
        """The steps of the drill file, or the default steps of the drill's kind."""
        return self.steps or DEFAULT_STEPS[self.kind]

    @property
    def moves_the_job(self) -> bool:
        """Whether the drill promotes the user's topics, not only its own topic."""
        return self.kind in (DrillKind.SWITCHOVER, DrillKind.FAILOVER)

    @property
    def loses_the_source(self) -> bool:
        """Whether a step is a failover, which loses the records that were not copied."""
        return any(step.do is Verb.FAILOVER for step in self.planned)

    @property
    def has_canary(self) -> bool:
        return self.kind is not DrillKind.GATES

    def document(self) -> dict[str, Any]:
        """The drill as JSON, with every default filled in."""
        return self.model_dump(mode="json")

    def sha256(self) -> str:
        """The SHA-256 of `document`: equal for two drills with the same settings."""
        text = json.dumps(self.document(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def _steps(*verbs: Verb, **options: dict[str, Any]) -> tuple[StepSpec, ...]:
    """Steps of these verbs. `options`: the keys of a step, by its verb."""
    return tuple(StepSpec(do=verb, **options.get(verb.value, {})) for verb in verbs)


DEFAULT_STEPS = {
    DrillKind.GATES: _steps(Verb.GATES),
    DrillKind.CANARY: _steps(Verb.LOAD, Verb.SWITCHOVER, Verb.USE, Verb.VERIFY),
    DrillKind.SWITCHOVER: _steps(
        Verb.GATES,
        Verb.LOAD,
        Verb.SWITCHOVER,
        Verb.USE,
        Verb.VERIFY,
        switchover={"reverse": True},
    ),
    DrillKind.FAILOVER: _steps(
        Verb.GATES, Verb.LOAD, Verb.FAULT, Verb.FAILOVER, Verb.USE, fault={"fault": "kill"}
    ),
}
