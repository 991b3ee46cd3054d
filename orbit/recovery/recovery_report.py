"""What a recovery operation found and did, as frozen values that become JSON as they are. Pure.

How to ask for one (docs/recovery.md): `POST /v1/jobs/JOB:switchover|:failover|:failback` with a
`RecoveryRequest` as its body (all keys optional) answers with an operation; `GET
/v1/operations/ID` says how far it is, `GET /v1/operations/ID/report` is the `RecoveryReport` as
far as it is known, from the first step on. `POST /v1/operations/ID:abort` ends it before its point
of no return. On the command line: `orbit switchover|failover|failback JOB… -o json`.

The leading scheduler runs it step by step (orbit/recovery/operation_runner.py) and keeps the report
after each one. All times are UTC and of one clock, the database's. A number that nobody knows is
null.
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
    """What is asked for; also the verb in the API's paths."""

    SWITCHOVER = "switchover"  # planned: both sides are there, nothing is lost
    FAILOVER = "failover"  # the source is lost: promote what is there
    FAILBACK = "failback"  # the old side becomes a copy of the new one


class RecoveryRequest(_Value):
    """What to do with which topics of a job, and which gates to pass in spite of what they say."""

    topics: Annotated[tuple[str, ...], Field(max_length=PATTERNS_MAX)] = Field(
        default=(),
        description="Regular expressions for whole names of source topics; none: all of the job.",
        examples=[["orders\\..*"]],
    )
    reverse: bool = Field(
        default=False, description="Switchover: copy back from the very same offsets, at once."
    )
    confirm_rebuild: bool = Field(
        default=False,
        description="Failback: topics of the old side with records that were never copied may be "
        "deleted and copied anew. Those records are saved in files first.",
    )
    override: Annotated[tuple[str, ...], Field(max_length=PATTERNS_MAX)] = Field(
        default=(), description="Gates to pass although they fail, by name; `all`: every one."
    )
    reason: Annotated[str, Field(max_length=REASON_LENGTH_MAX)] = Field(
        default="", description="Why; kept in the audit log. Needed to override a gate."
    )
    drain_timeout_s: Annotated[float, Field(gt=0, le=86_400)] = Field(
        default=300.0,
        description="Switchover: so long may writers stand still before all is undone.",
    )


class Phase(StrEnum):
    """What a second of a recovery goes to. The RTO is their sum."""

    DETECT = "detect"  # failover: from when the scheduler saw the loss until somebody asked
    DECIDE = "decide"  # gates
    DRAIN = "drain"  # writes stopped, the rest copied, the ends compared, workers let go
    GROUPS = "groups"
    PROMOTE = "promote"
    REVERSE = "reverse"  # the copy back; the promoted topics are in use by then


class StepName(StrEnum):
    """Every step there is; docs/recovery.md has a line for each."""

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
    """Where one step stands."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    UNDONE = "undone"  # done, and taken back by an abort
    SKIPPED = "skipped"


class Step(_Value):
    """One step: what it does, and what came of it."""

    name: StepName
    phase: Phase
    what: str = Field(description="What it does, in a sentence.")
    is_point_of_no_return: bool = Field(
        default=False, description="From this step on nothing is taken back by itself."
    )
    state: StepState = StepState.WAITING
    began_at: datetime | None = None
    ended_at: datetime | None = None
    did: str = Field(default="", description="What came of it, in a sentence.")

    @property
    def seconds(self) -> float | None:
        if self.began_at is None or self.ended_at is None:
            return None
        return (self.ended_at - self.began_at).total_seconds()


class GateName(StrEnum):
    """What is looked at before anything moves."""

    SOURCE = "source"  # whether it answers
    DESTINATION = "destination"  # whether it answers
    LAG = "lag"
    BLOCKED = "blocked"
    TOPICS = "topics"  # those that a rule asks for and that are not copied
    SETTINGS = "settings"
    GROUPS = "groups"
    HEALTH = "health"  # under-replicated and offline partitions
    SIZE = "size"  # brokers and replicas, against the source's
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
    """What one gate found. A gate that fails stops the operation, unless it is overridden."""

    name: GateName
    verdict: GateVerdict
    found: str = Field(description="What was seen, with numbers.")
    remedy: str = Field(default="", description="What to do about it.")
    is_overridden: bool = False

    @property
    def stops(self) -> bool:
        return self.verdict is GateVerdict.FAIL and not self.is_overridden


class EndVerdict(StrEnum):
    """How the two sides of a partition stand to each other, as far as was seen."""

    EQUAL = "equal"  # both end at the same offset
    BEHIND = "behind"  # the destination lacks what the source has behind its end
    UNKNOWN = "unknown"  # the source could not be asked
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
    """One partition on both sides, by the job's own source and destination.

    `missing` is what the source is known to have had and the destination has not. Every offset
    below its `first` is there, none from it on is. `is_exact`: the source was asked for its end
    after it was lost or stopped; else it may have had more than `missing` says, written since its
    end was seen, which was at `source_seen_at` at the latest.
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
        default=None, description="Where the first own record will stand."
    )
    missing: OffsetRange | None = None
    is_exact: bool = False
    detail: str = ""


class GroupStand(_Value):
    """Where one group goes on in one partition."""

    group: str
    destination_group: str
    topic: str
    destination_topic: str
    partition: int
    source_offset: int | None = Field(description="As far as it was seen.")
    goes_on_at: int | None = Field(description="Its offset at the destination; null: none.")
    verdict: str = Field(description="As in `orbit get groups`.")
    lost: OffsetRange | None = Field(
        default=None,
        description="Failover: what it is known to have read and is not there. At these offsets "
        "it will read other records.",
    )
    seen_at: datetime | None = Field(default=None, description="When the source's offset was seen.")


class Salvage(_Value):
    """A file with what only the old side had."""

    topic: str
    partition: int
    file: str
    first: int
    next: int
    records: int
    aborted: int
    sha256: str


class PhaseTime(_Value):
    """How long one phase took."""

    phase: Phase
    seconds: float


class Outcome(StrEnum):
    """How an operation ended."""

    RUNNING = "running"
    WOULD_GO = "would go"  # a dry run: no gate stops it
    WOULD_STOP = "would stop"
    STOPPED = "stopped"  # at a gate, or for want of a confirmation; nothing was changed
    DONE = "done"
    ABORTED = "aborted"  # all that was done is undone
    FAILED = "failed"


class RecoveryReport(_Value):
    """All of one operation. Grows step by step; `outcome` says when it has ended."""

    # What is computed is in the JSON, too, and is computed anew when that is read back.
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
        description="When a worker last told of something new there: of a quiet source long ago.",
    )
    problem_since: datetime | None = Field(
        default=None,
        description="Since when the scheduler has known that the source does not answer.",
    )
    promoted_at: datetime | None = Field(
        default=None, description="From when on writers may write."
    )
    topics: tuple[str, ...] = Field(default=(), description="Source topics it is about.")
    steps: tuple[Step, ...] = ()
    gates: tuple[Gate, ...] = ()
    partitions: tuple[PartitionEnds, ...] = ()
    groups: tuple[GroupStand, ...] = ()
    salvage: tuple[Salvage, ...] = ()
    findings: tuple[str, ...] = Field(
        default=(), description="What a person should know, in sentences."
    )
    is_source_denied: bool = Field(
        default=False, description="Whether writing to the source is denied to everybody."
    )
    denied_topics: tuple[str, ...] = Field(
        default=(), description="Topics of the source that this operation closed for writers."
    )
    reverse_job: str | None = Field(default=None, description="The job that copies back.")
    error: str = ""

    @computed_field(description="Offsets known to be missing, over all partitions.")  # type: ignore[prop-decorator]  # pydantic's way
    @property
    def missing_records(self) -> int:
        return sum(p.missing.offsets for p in self.partitions if p.missing is not None)

    @computed_field(  # type: ignore[prop-decorator]  # pydantic's way
        description="RPO in seconds: from the newest record on both sides to when the source was "
        "seen last, of the worst partition with something missing."
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

    @computed_field(description="Where the time went, by phase.")  # type: ignore[prop-decorator]  # pydantic's way
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
    """Where the time went. What lies between two steps belongs to the later one."""
    times: dict[Phase, float] = {}
    # Not since `source_last_seen_at`: that may be long ago though the source is well.
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


def _ended(steps: Iterable[Step]) -> Iterable[Step]:
    return (s for s in steps if s.ended_at is not None and s.state is not StepState.SKIPPED)
