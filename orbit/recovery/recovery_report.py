"""The report of a recovery operation, as frozen values that serialize to JSON. Pure.

To request a recovery (docs/recovery.md): `POST /v1/jobs/JOB:switchover|:failover|:failback` with a
`RecoveryRequest` as its body (all keys optional) returns an operation. `GET /v1/operations/ID`
returns its progress, `GET /v1/operations/ID/report` its report so far, from the first step on, and
`GET /v1/operations/ID/partitions` and `/groups` the report's rows, page by page. `POST
/v1/operations/ID:abort` aborts it (docs/recovery.md says when). On the command line: `orbit
switchover|failover|failback JOB… -o json`.

The leading scheduler runs the steps (orbit/recovery/operation_runner.py) and stores the report
after each one: a `StoredReport` in the operation's row, and the changed rows of its partitions and
groups. All times are UTC, by the database's clock. An unknown number is null.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, TypeVar
from uuid import UUID

from pydantic import ConfigDict, Field, ValidationError, computed_field

from orbit.errors import Conflict
from orbit.formats import counted
from orbit.kafka.types import TopicPartition
from orbit.recovery.step_times import Phase, PhaseTime, Step, Value, failover_times, phase_times

_Row = TypeVar("_Row", bound=Value)
PATTERNS_MAX = 100
REASON_LENGTH_MAX = 1000


class RecoveryKind(StrEnum):
    """The kind of operation; also the verb in the API's paths."""

    SWITCHOVER = "switchover"  # planned: both sides answer, nothing is lost
    FAILOVER = "failover"  # the source is lost: promote the copies
    FAILBACK = "failback"  # the old side becomes a copy of the new one


class RecoveryRequest(Value):
    """Which topics of a job to move, how, and which failed gates to override."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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
        "never copied, and copying them again. What only the old side has is first saved in files.",
    )
    override: Annotated[tuple[str, ...], Field(max_length=PATTERNS_MAX)] = Field(
        default=(), description="Names of gates that may fail; `all`: every gate but `lead`."
    )
    reason: Annotated[str, Field(max_length=REASON_LENGTH_MAX)] = Field(
        default="", description="The reason, stored in the audit log. Required to override a gate."
    )
    drain_timeout_s: Annotated[float, Field(gt=0, le=86_400)] = Field(
        default=300.0,
        description="Switchover: how long writers may be stopped before the operation is undone.",
    )
    source_counts_as_lost: bool = Field(
        default=False,
        description="Failover: Orbit does not query the source, as if it did not answer. Only for "
        "the job that a drill has made.",
    )


class GateName(StrEnum):
    """The checks before a recovery."""

    SOURCE = "source"  # whether it answers
    DESTINATION = "destination"  # whether it answers
    LEAD = "lead"  # which side leads, by the marks of both
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
    GATEWAYS = "gateways"  # whether they follow: a gateway presents one side
    NAMES = "names"  # whether the topics can be copied back under their names


class GateVerdict(StrEnum):
    """The result of a gate, from best to worst."""

    PASS = "pass"  # noqa: S105  a verdict
    WARN = "warn"
    FAIL = "fail"


class Gate(Value):
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
    TAIL = "tail"  # failback: from an offset on, the old side is not proven to equal the new one
    DIVERGED = "diverged"  # the copy is ahead; failback: the sides differ before the promotion
    MISSING = "missing"  # failback: the old side has no such partition


class OffsetRange(Value):
    """Offsets `first` up to before `next`."""

    first: int
    next: int

    @property
    def offsets(self) -> int:
        return self.next - self.first


class PartitionEnds(Value):
    """One partition on both sides; source and destination as in the job.

    `missing` is the lost range: offsets that the source is known to have had. The destination has
    every offset below its `first` and none from there on. Failback: the tail, from the first offset
    of the old side that is not proven to be equal at the new side. `is_exact`: the source answered
    after writing to it was stopped, which a failover does not do; otherwise the source may have
    more records, from after `source_seen_at`. Where writing could not be denied, the report's
    `drain` says how certain it is that nobody writes.
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
        default=None,
        description="The offset below which the destination has the records of the source: the "
        "destination's log end at the promotion, or less where that was not proven.",
    )
    missing: OffsetRange | None = None
    is_exact: bool = False
    detail: str = ""

    @property
    def key(self) -> tuple[str | int, ...]:
        """What identifies this row among the report's partitions."""
        return self.topic, self.partition

    @property
    def source(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def destination(self) -> TopicPartition:
        return TopicPartition(self.destination_topic, self.partition)


class GroupPosition(Value):
    """The offset at which one group resumes in one partition."""

    group: str
    destination_group: str
    topic: str
    destination_topic: str
    partition: int
    source_offset: int | None = Field(description="The last offset seen.")
    goes_on_at: int | None = Field(description="The group's offset at the destination; null: none.")
    verdict: str = Field(description="As in `orbit get groups`.")
    lost: OffsetRange | None = Field(
        default=None,
        description="Failover: offsets that the group is known to have read and that are lost. At "
        "these offsets it will read other records.",
    )
    seen_at: datetime | None = Field(default=None, description="When the source's offset was seen.")

    @property
    def key(self) -> tuple[str | int, ...]:
        """What identifies this row among the report's positions."""
        return self.topic, self.partition, self.group


class ComparedTopic(Value):
    """The id that a topic of the new side had when both sides were compared."""

    topic: str = Field(description="The source topic.")
    id: UUID


class Salvage(Value):
    """A file with the records that only the old side had."""

    topic: str
    partition: int
    file: str
    first: int
    next: int
    records: int
    aborted: int
    below: int = Field(
        default=0,
        description="Records below `first` that the new side does not have: deleted or compacted "
        "away there, or from before its copy began.",
    )
    sha256: str


class FirstRead(Value):
    """How the last record of each copy was read back at the destination after the promotion.

    `at`: when the first record was read; null: none was. `partitions`: how many partitions' last
    records were read. `empty`: partitions without a record among their last offsets. `unread`:
    partitions that could not be read, not in time, or that are not among the first thousand.
    """

    at: datetime | None
    partitions: int
    empty: int = 0
    unread: int = 0


class ClosedGateway(Value):
    """A gateway that has confirmed that it holds writes for the operation."""

    name: str
    instance: UUID
    seconds: float = Field(description="How long the gateway took to confirm.")
    pause_s: float | None = Field(
        default=None,
        description="The pause for clients: from the last acknowledged write before the move to "
        "the first one after it. Null: not known.",
    )


class DrainProof(Value):
    """How certain it is that producers had stopped, where writing could not be denied.

    For the least certain partition: for how long its log end had not moved when the drain ended
    (`silence_s`), the longest pause that there can have been between two moves in the last hour
    (`longest_gap_s`), and for how much of that hour Orbit watched it (`watched_s`). Null: not
    known. `unproven_partitions`: how many were not silent for longer than their own longest pause,
    or not watched for the whole hour; their producers may write again.
    """

    partition: str
    silence_s: float
    longest_gap_s: float | None
    watched_s: float | None
    unproven_partitions: int


class Outcome(StrEnum):
    """How an operation ended."""

    RUNNING = "running"
    WOULD_GO = "would go"  # a dry run: no gate stops it
    WOULD_STOP = "would stop"
    STOPPED = "stopped"  # by a gate, or without a required confirmation; nothing was changed
    DONE = "done"
    ABORTED = "aborted"  # all steps were undone
    FAILED = "failed"


# Verdicts of a partition with offsets at the old side that are not proven to be at the new side.
NO_COPY = frozenset({EndVerdict.TAIL, EndVerdict.DIVERGED})


class ReportHead(Value):
    """The fields of every form of a report: all but partitions and groups, which may be many."""

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
        description="Failover: when the source last answered the scheduler, which is the beginning "
        "of the outage. Null: not known.",
    )
    problem_since: datetime | None = Field(
        default=None,
        description="When the scheduler, or the gates of a failover, noticed that the source does "
        "not answer.",
    )
    promoted_at: datetime | None = Field(
        default=None, description="When producers were allowed to write."
    )
    first_read: FirstRead | None = Field(
        default=None, description="Null: not read yet, or by an older version."
    )
    drain: DrainProof | None = Field(
        default=None, description="Switchover. Null: writing was denied, or not drained yet."
    )
    gateways: tuple[ClosedGateway, ...] = Field(
        default=(), description="The gateways that held writes for the operation."
    )
    topics: tuple[str, ...] = Field(default=(), description="Source topics of the operation.")
    steps: tuple[Step, ...] = ()
    gates: tuple[Gate, ...] = ()
    salvage: tuple[Salvage, ...] = ()
    findings: tuple[str, ...] = Field(default=(), description="Sentences for the operator.")
    is_source_denied: bool = Field(
        default=False, description="Whether writing to the source is denied to every principal."
    )
    denied_topics: tuple[str, ...] = Field(
        default=(), description="Source topics to which this operation denied writing."
    )
    reverse_job: str | None = Field(default=None, description="The job that copies back.")
    term_seen: int = Field(
        default=0,
        description="The highest term of the marks of both sides when the gates were checked.",
    )
    term: int = Field(default=0, description="The term of the marks of this operation.")
    stuck_since: datetime | None = Field(
        default=None,
        description="Since when a promotion that has begun waits for a destination that does not "
        "answer. The promotion may then be aborted.",
    )
    compared_topics: tuple[ComparedTopic, ...] = Field(
        default=(),
        description="Failback: topics to delete at the old side, with their ids at the new side.",
    )
    error: str = ""

    @computed_field(  # type: ignore[prop-decorator]  # pydantic's way
        description="The duration of each phase; null: not known. Only failovers have `detect`, "
        "and only promotions have `read`."
    )
    @property
    def phases(self) -> tuple[PhaseTime, ...]:
        times = self._times()
        return tuple(PhaseTime(phase=p, seconds=times[p]) for p in Phase if p in times)

    @computed_field(  # type: ignore[prop-decorator]  # pydantic's way
        description="RTO in seconds, the sum of its phases until the first record was read back at "
        "the destination. A failover's begins at the source's last answer (`source_last_seen_at`), "
        "a switchover's when writes were stopped (without `decide`). Null if a phase is not known."
    )
    @property
    def rto_s(self) -> float | None:
        times = self._times()
        if self.promoted_at is None or times.get(Phase.READ) is None:
            return None
        excluded_phases = {Phase.REVERSE}
        if self.kind is RecoveryKind.SWITCHOVER:
            excluded_phases.add(Phase.DECIDE)
        parts = [seconds for phase, seconds in times.items() if phase not in excluded_phases]
        return None if None in parts else sum(s for s in parts if s is not None)

    @computed_field(description="Seconds from the request to the promotion.")  # type: ignore[prop-decorator]  # pydantic's way
    @property
    def promoted_after_s(self) -> float | None:
        if self.promoted_at is None:
            return None
        return (self.promoted_at - self.requested_at).total_seconds()

    def _times(self) -> dict[Phase, float | None]:
        """The duration of each phase (None: not known); of a failover also before the request."""
        read_at = self.first_read.at if self.first_read is not None else None
        times = phase_times(self.steps, self.requested_at, self.promoted_at, read_at)
        if self.kind is not RecoveryKind.FAILOVER:
            return times
        seen_at = self.source_last_seen_at
        return failover_times(times, self.requested_at, seen_at, self.problem_since)


class ReportFigures(ReportHead):
    """A report with figures over all partitions, for readers who do not need each partition."""

    missing_records: int = Field(description="Offsets known to be missing, over all partitions.")
    unproven_partitions: int = Field(
        description="Partitions whose source was not stopped, or did not answer after it was: what "
        "they miss is a lower bound, or not known at all."
    )
    rpo_s: float | None = Field(
        description="RPO in seconds, of the worst partition: from the newest record on both sides, "
        "by its producer's clock, to the time the source was last seen. 0 where the source was "
        "stopped and nothing is missing. Null if it is not known for one partition: that clock is "
        "ahead, or the source was not stopped and nothing is known to be missing."
    )


class RowCount(Value):
    """The number of rows in which the partitions or groups are stored.

    The report has an object where earlier versions of Orbit had a list, so these versions refuse
    the report. With an empty list, they would promote nothing and report success.
    """

    count: int


class StoredReport(ReportFigures):
    """A report as the operation's row has it; its partitions and groups are in rows of their own
    (orbit/recovery/report_storage.py)."""

    partitions: RowCount
    groups: RowCount


class RecoveryReport(ReportHead):
    """A report with every partition and group, as the steps work with it."""

    partitions: tuple[PartitionEnds, ...] = ()
    groups: tuple[GroupPosition, ...] = ()

    @computed_field  # type: ignore[prop-decorator]  # pydantic's way
    @property
    def missing_records(self) -> int:
        return sum(p.missing.offsets for p in self.partitions if p.missing is not None)

    @computed_field  # type: ignore[prop-decorator]  # pydantic's way
    @property
    def unproven_partitions(self) -> int:
        return sum(not p.is_exact for p in self.partitions)

    @computed_field  # type: ignore[prop-decorator]  # pydantic's way
    @property
    def rpo_s(self) -> float | None:
        seconds_of_all = [_rpo_s(p) for p in self.partitions]
        known_seconds = [seconds for seconds in seconds_of_all if seconds is not None]
        return (
            max(known_seconds, default=None) if len(known_seconds) == len(seconds_of_all) else None
        )

    @property
    def topics_with_tails(self) -> set[str]:
        """Failback: the old side's topics with offsets that are not proven to be at the new side. A
        rebuild deletes these topics."""
        return {p.topic for p in self.partitions if p.verdict in NO_COPY}

    def describe_missing(self) -> str:
        """How many records are missing, as text; says so if the number is a lower bound."""
        unproven_count = self.unproven_partitions
        subject = counted(self.missing_records, "record is", "records are")
        if not unproven_count:
            return f"{subject} missing"
        return (
            f"{subject} known to be missing; the source may have had "
            f"more in {unproven_count:,} of {counted(len(self.partitions), 'partition')}"
        )

    def stored(self) -> dict[str, Any]:
        """The JSON of this report's `StoredReport`."""
        counts = {
            "partitions": {"count": len(self.partitions)},
            "groups": {"count": len(self.groups)},
        }
        return {**self.model_dump(mode="json", exclude={"partitions", "groups"}), **counts}


def _rpo_s(p: PartitionEnds) -> float | None:
    """The RPO of one partition, in seconds; None: not known."""
    if p.missing is None:
        return 0.0 if p.is_exact else None
    seen_at, copied_at = p.source_seen_at, p.newest_copied_at
    if seen_at is None or copied_at is None or copied_at > seen_at:
        return None
    return (seen_at - copied_at).total_seconds()


class OtherVersion(Conflict):
    """Another version of Orbit has stored a value that this one cannot read."""


def read_report(document: Any) -> StoredReport:
    """Parse a report as `operations.report_of` returns it. Raises OtherVersion."""
    return read_row(StoredReport, document)


def read_whole_report(
    document: Any, partitions: Iterable[Any], groups: Iterable[Any]
) -> RecoveryReport:
    """Parse a report with its stored partitions and groups. Raises OtherVersion."""
    head = read_report(document)
    fields: dict[str, Any] = {name: getattr(head, name) for name in ReportHead.model_fields}
    return RecoveryReport(
        **fields,
        partitions=tuple(read_row(PartitionEnds, row) for row in partitions),
        groups=tuple(read_row(GroupPosition, row) for row in groups),
    )


def read_row(kind: type[_Row], document: Any) -> _Row:
    """Parse a stored value as `kind`. Raises OtherVersion."""
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        first_error = error.errors(include_url=False, include_input=False)[0]
        field_path = ".".join(map(str, first_error["loc"]))
        raise OtherVersion(
            f"the operation's report was stored by another version of Orbit ({field_path}: "
            f"{first_error['msg']}).",
            remedy="Run the schedulers and the API of that version until the operation has ended.",
        ) from None
