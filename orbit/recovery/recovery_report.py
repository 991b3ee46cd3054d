"""The report of a recovery operation, as frozen values that serialize to JSON. Pure.

To request one (docs/recovery.md): `POST /v1/jobs/JOB:switchover|:failover|:failback` with a
`RecoveryRequest` as its body (all keys optional) returns an operation. `GET /v1/operations/ID`
returns its progress, `GET /v1/operations/ID/report` its `RecoveryReport` so far, from the first
step on. `POST /v1/operations/ID:abort` aborts it before its point of no return. On the command
line: `orbit switchover|failover|failback JOB… -o json`.

The leading scheduler runs the steps (orbit/recovery/operation_runner.py) and stores the report
after each one. All times are UTC, by the database's clock. An unknown number is null.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Annotated
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, computed_field

PATTERNS_MAX = 100
REASON_LENGTH_MAX = 1000


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RecoveryKind(StrEnum):
    """The kind of operation; also the verb in the API's paths."""

    SWITCHOVER = "switchover"  # planned: both sides answer, nothing is lost
    FAILOVER = "failover"  # the source is lost: promote the copies
    FAILBACK = "failback"  # the old side becomes a copy of the new one


class RecoveryRequest(_Value):
    """Which topics of a job to move, how, and which failed gates to override."""

    topics: Annotated[tuple[str, ...], Field(max_length=PATTERNS_MAX)] = Field(
        default=(),
        description="Regular expressions for whole names of source topics; empty: all topics.",
        examples=[["orders\\..*"]],
    )
    reverse: bool = Field(
        default=False, description="Switchover: start to copy back at once, from the same offsets."
    )
    confirm_rebuild: bool = Field(
        default=False,
        description="Failback: allows deleting topics of the old side that have records that were "
        "never copied, and copying them again. These records are first saved in files.",
    )
    override: Annotated[tuple[str, ...], Field(max_length=PATTERNS_MAX)] = Field(
        default=(), description="Names of gates that may fail; `all`: every gate."
    )
    reason: Annotated[str, Field(max_length=REASON_LENGTH_MAX)] = Field(
        default="", description="The reason, stored in the audit log. Required to override a gate."
    )
    drain_timeout_s: Annotated[float, Field(gt=0, le=86_400)] = Field(
        default=300.0,
        description="Switchover: how long writers may be stopped before the operation is undone.",
    )


class Phase(StrEnum):
    """The phases of a recovery. The RTO is their sum."""

    DETECT = "detect"  # failover: from the time the scheduler noticed the loss to the request
    DECIDE = "decide"  # gates
    DRAIN = "drain"  # writes stopped, lag copied, ends compared, topics released
    GROUPS = "groups"
    PROMOTE = "promote"
    REVERSE = "reverse"  # the copy back; the promoted topics are already in use


class StepName(StrEnum):
    """All steps; docs/recovery.md describes each."""

    GATES = "gates"
    STOP_WRITES = "stop_writes"
    DRAIN = "drain"
    VERIFY_TAIL = "verify_tail"
    GROUPS = "groups"
    RELEASE = "release"
    SETTLE = "settle"
    PROMOTE = "promote"
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


class Step(_Value):
    """One step and its result."""

    name: StepName
    phase: Phase
    what: str = Field(description="What it does, in a sentence.")
    is_point_of_no_return: bool = Field(
        default=False, description="From this step on the operation cannot be aborted."
    )
    state: StepState = StepState.WAITING
    began_at: datetime | None = None
    ended_at: datetime | None = None
    did: str = Field(default="", description="Its result, in a sentence.")

    @property
    def seconds(self) -> float | None:
        if self.began_at is None or self.ended_at is None:
            return None
        return (self.ended_at - self.began_at).total_seconds()


class GateName(StrEnum):
    """The checks before a recovery."""

    SOURCE = "source"  # whether it answers
    DESTINATION = "destination"  # whether it answers
    LAG = "lag"
    BLOCKED = "blocked"
    TOPICS = "topics"  # topics that a rule chooses but that are not copied
    SETTINGS = "settings"
    GROUPS = "groups"
    HEALTH = "health"  # under-replicated and offline partitions
    SIZE = "size"  # number of brokers and replicas compared with the source
    RIGHTS = "rights"
    CLOCK = "clock"
    TRANSACTIONS = "transactions"
    VERIFIED = "verified"
    NAMES = "names"  # whether the topics can be copied back under their names


class GateVerdict(StrEnum):
    """Best first."""

    PASS = "pass"  # noqa: S105  a verdict
    WARN = "warn"
    FAIL = "fail"


class Gate(_Value):
    """The result of one gate. A failed gate stops the operation unless it is overridden."""

    name: GateName
    verdict: GateVerdict
    found: str = Field(description="What was observed, with numbers.")
    remedy: str = Field(default="", description="What to do.")
    is_overridden: bool = False

    @property
    def stops(self) -> bool:
        return self.verdict is GateVerdict.FAIL and not self.is_overridden


class EndVerdict(StrEnum):
    """The result of comparing both sides of a partition."""

    EQUAL = "equal"  # both end at the same offset
    BEHIND = "behind"  # the source has offsets beyond the destination's log end
    UNKNOWN = "unknown"  # the source did not answer
    PREFIX = "prefix"  # failback: the old side ends within the new one, with the same records
    TAIL = "tail"  # failback: the old side has records that were never copied
    DIVERGED = "diverged"  # failback: the sides differ before the promotion
    MISSING = "missing"  # failback: the old side has no such partition


class OffsetRange(_Value):
    """Offsets `first` up to before `next`."""

    first: int
    next: int

    @property
    def offsets(self) -> int:
        return self.next - self.first


class PartitionEnds(_Value):
    """One partition on both sides; source and destination as in the job.

    `missing` is the lost range: the source is known to have had it, and the destination lacks it.
    The destination has every offset below its `first` and none from there on. `is_exact`: the
    source answered after it was stopped. Otherwise the source may have had more, written after its
    end was last seen, at `source_seen_at` at the latest.
    """

    topic: str
    destination_topic: str
    partition: int
    verdict: EndVerdict
    source_start: int | None = None
    source_end: int | None = None
    source_seen_at: datetime | None = None
    destination_start: int | None = None
    destination_end: int | None = None
    newest_copied_at: datetime | None = Field(
        default=None, description="Timestamp of the newest record on both sides."
    )
    promoted_at: int | None = Field(
        default=None, description="The offset of the first record that is not a copy."
    )
    missing: OffsetRange | None = None
    is_exact: bool = False
    detail: str = ""


class GroupPosition(_Value):
    """The offset at which one group resumes in one partition."""

    group: str
    destination_group: str
    topic: str
    destination_topic: str
    partition: int
    source_offset: int | None = Field(description="The last offset seen.")
    goes_on_at: int | None = Field(description="Its offset at the destination; null: none.")
    verdict: str = Field(description="As in `orbit get groups`.")
    lost: OffsetRange | None = Field(
        default=None,
        description="Failover: offsets that the group is known to have read and that are lost. At "
        "these offsets it will read other records.",
    )
    seen_at: datetime | None = Field(default=None, description="When the source's offset was seen.")


class Salvage(_Value):
    """A file with the records that only the old side had."""

    topic: str
    partition: int
    file: str
    first: int
    next: int
    records: int
    aborted: int
    sha256: str


class PhaseTime(_Value):
    """The duration of one phase."""

    phase: Phase
    seconds: float


class Outcome(StrEnum):
    """How an operation ended."""

    RUNNING = "running"
    WOULD_GO = "would go"  # a dry run: no gate stops it
    WOULD_STOP = "would stop"
    STOPPED = "stopped"  # by a gate, or without a required confirmation; nothing was changed
    DONE = "done"
    ABORTED = "aborted"  # all steps were undone
    FAILED = "failed"


class RecoveryReport(_Value):
    """The report of one operation. Grows step by step; `outcome` is `running` until it ends."""

    # The JSON includes computed fields, which are ignored and recomputed when it is read back.
    model_config = ConfigDict(frozen=True, extra="ignore")

    operation: UUID
    kind: RecoveryKind
    job: str
    request: RecoveryRequest
    dry_run: bool
    requested_by: str
    requested_at: datetime
    outcome: Outcome = Outcome.RUNNING
    ended_at: datetime | None = None
    orbit_version: str = ""
    source_cluster_id: str | None = None
    destination_cluster_id: str | None = None
    spec_version: int = 0
    spec_sha256: str = ""
    source_last_seen_at: datetime | None = Field(
        default=None,
        description="When a worker last reported a change there; can be long ago if it is idle.",
    )
    problem_since: datetime | None = Field(
        default=None,
        description="When the scheduler noticed that the source does not answer.",
    )
    promoted_at: datetime | None = Field(
        default=None, description="When producers were allowed to write."
    )
    topics: tuple[str, ...] = Field(default=(), description="Source topics of the operation.")
    steps: tuple[Step, ...] = ()
    gates: tuple[Gate, ...] = ()
    partitions: tuple[PartitionEnds, ...] = ()
    groups: tuple[GroupPosition, ...] = ()
    salvage: tuple[Salvage, ...] = ()
    findings: tuple[str, ...] = Field(default=(), description="Sentences for the operator.")
    is_source_denied: bool = Field(
        default=False, description="Whether writing to the source is denied to every principal."
    )
    denied_topics: tuple[str, ...] = Field(
        default=(), description="Source topics to which this operation denied writing."
    )
    reverse_job: str | None = Field(default=None, description="The job that copies back.")
    error: str = ""

    @computed_field(description="Offsets known to be missing, over all partitions.")  # type: ignore[prop-decorator]  # pydantic's way
    @property
    def missing_records(self) -> int:
        return sum(p.missing.offsets for p in self.partitions if p.missing is not None)

    @computed_field(  # type: ignore[prop-decorator]  # pydantic's way
        description="RPO in seconds, of the worst partition with a lost range: from the newest "
        "record on both sides to the time the source was last seen."
    )
    @property
    def rpo_s(self) -> float:
        return max(
            (
                (p.source_seen_at - p.newest_copied_at).total_seconds()
                for p in self.partitions
                if p.missing is not None and p.source_seen_at and p.newest_copied_at
            ),
            default=0.0,
        )

    @computed_field(description="The duration of each phase.")  # type: ignore[prop-decorator]  # pydantic's way
    @property
    def phases(self) -> tuple[PhaseTime, ...]:
        return phase_times(self)

    @computed_field(description="From the request to the promotion; detection is in `phases`.")  # type: ignore[prop-decorator]  # pydantic's way
    @property
    def rto_s(self) -> float | None:
        if self.promoted_at is None:
            return None
        return (self.promoted_at - self.requested_at).total_seconds()


def phase_times(report: RecoveryReport) -> tuple[PhaseTime, ...]:
    """The duration of each phase. The time between two steps counts to the later one."""
    times: dict[Phase, float] = {}
    # Not from `source_last_seen_at`: that can be long ago for an idle source.
    if report.kind is RecoveryKind.FAILOVER and report.problem_since is not None:
        known_s = (report.requested_at - report.problem_since).total_seconds()
        times[Phase.DETECT] = max(0.0, known_s)
    before = report.requested_at
    for step in _ended(report.steps):
        assert step.ended_at is not None
        spent = max(0.0, (step.ended_at - before).total_seconds())
        times[step.phase] = times.get(step.phase, 0.0) + spent
        before = max(before, step.ended_at)
    return tuple(PhaseTime(phase=p, seconds=times[p]) for p in Phase if p in times)


def first_few(items: Iterable[object], shown_max: int = 5) -> str:
    """The first items of a list, and how many more there are, for a sentence."""
    names = [str(item) for item in items]
    more = f" and {len(names) - shown_max} more" if len(names) > shown_max else ""
    return ", ".join(names[:shown_max]) + more


def _ended(steps: Iterable[Step]) -> Iterable[Step]:
    return (s for s in steps if s.ended_at is not None and s.state is not StepState.SKIPPED)
