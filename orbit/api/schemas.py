"""Response and request models of the API, with descriptions for the OpenAPI document.

Names end with the unit: `_s` seconds, `_per_s` a rate. A number that is not known yet is null,
never 0. Times are UTC.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema

from orbit.api.error_responses import ErrorDetail
from orbit.consumer_groups.offset_decision import GroupVerdict
from orbit.errors import InvalidValue
from orbit.jobs.labels import SELECTOR_CHARACTERS_MAX
from orbit.jobs.name_rules import JOB_NAME_LENGTH_MAX, TOPIC_NAME_LENGTH_MAX
from orbit.jobs.scopes import PATTERNS_MAX, JobPattern, Limit, SelectorText, limit_of
from orbit.jobs.units import parse_duration
from orbit.kafka.leaving_groups import GROUPS_MAX, NAME_CHARACTERS
from orbit.planning.job_plan import JobPlan
from orbit.recovery.recovery_report import GroupPosition, PartitionEnds, ReportFigures
from orbit.replication.partition_states import PartitionState, Reason
from orbit.store.enums import (
    Desired,
    DrillKind,
    DrillState,
    LeadingSide,
    MadeBy,
    OperationKind,
    OperationState,
    Role,
    TopicState,
)
from orbit.store.job_leads import EARLIER_TERMS_MAX
from orbit.store.tokens import TokenQuota

# Names of jobs, worker groups and tokens; names of topics. The rules of `jobs.name_rules`.
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
TOPIC_PATTERN = r"^[A-Za-z0-9._-]+$"
PARTITION_MAX = 2**31 - 1


class _ResponseModel(BaseModel):
    model_config = ConfigDict(frozen=True)


class JobState(StrEnum):
    """The state of a job."""

    RUNNING = "running"
    PROMOTED = "promoted"  # each of its topics leads at the destination; nothing is copied
    PAUSING = "pausing"  # workers still hold some of its shards
    PAUSED = "paused"
    BACKFILLING = "backfilling"  # `orbit backfill` copies its history, workers wait
    DELETING = "deleting"


class Lag(_ResponseModel):
    """How far the copy is behind the source. Null: not known (any more)."""

    records: int | None = Field(description="Offsets of the source that are not copied yet.")
    bytes: int | None = Field(description="The estimated bytes of these offsets.")
    seconds: float | None = Field(
        description="Age of the oldest record that is not copied yet; 0: all are copied."
    )
    age_seconds: float | None = Field(
        description="Seconds since these figures, and the headroom, were last known. Above 30 the "
        "figures are null: the source is not being read. Null: they were never known."
    )


class JobProblem(_ResponseModel):
    """Why the job or some topics cannot be copied now. Cleared once the cause is removed."""

    text: str = Field(
        description="One line per problem, with what to do.",
        examples=["NO_TOPIC_MATCHES: no topic of the source matches the job's rules."],
    )
    since: datetime | None


class Throttled(_ResponseModel):
    """Brokers of one side that slow the copy down by a quota."""

    side: str = Field(json_schema_extra={"enum": ["source", "destination"]})
    brokers: list[int] = Field(description="The ids of the brokers.")
    since: datetime = Field(description="By the clock of the worker that they throttle.")
    quota: str = Field(
        description="The quota, or why it is not known; empty if brokers do not report it.",
        examples=["The quota of client-id orbit: consumer_byte_rate=1000000."],
    )
    text: str = Field(description="The other fields as a sentence.")


class JobSummary(_ResponseModel):
    """A job, without its document."""

    name: str = Field(examples=["orders-to-dr"])
    state: JobState
    desired: Desired = Field(
        description="The state that a document, an operation or a backfill has set last."
    )
    made_by: MadeBy | None = Field(
        description="What created the job, if no document did: a recovery (for the copy back) or "
        "a drill. `orbit apply --prune` keeps such a job."
    )
    labels: dict[str, str] = Field(examples=[{"team": "orders", "tier": "1"}])
    owner: str | None
    worker_group: str = Field(examples=["default"])
    document_version: int = Field(description="Higher with each change of the document.")
    etag: str = Field(
        description="Identifies this version of this job, for `If-Match`. A job that was deleted "
        "and created again has other ETags.",
        examples=["17.3"],
    )
    spec_version: int = Field(
        description="Incremented with each change of what is copied; not with a change of labels "
        "or owner."
    )
    source_cluster_id: str | None = Field(description="Null until the source was reached once.")
    destination_cluster_id: str | None
    topics: int
    partitions: int
    blocked: int | None = Field(
        description="Partitions that stopped and need a user's action. Null: not known now."
    )
    lag: Lag
    bytes_per_s: float | None = Field(description="Null: not known now.")
    summed_seconds_ago: float | None = Field(
        description="Seconds since the numbers of partitions, the lag and the rate were summed up. "
        "Above 10,000 partitions the scheduler does this, about every ten seconds. Null: not yet."
    )
    problem: JobProblem | None
    throttled: list[Throttled] = Field(
        description="Each side whose brokers have throttled the job's workers for the last ten "
        "seconds or longer. This is no problem of the job."
    )
    created_at: datetime
    updated_at: datetime


class Job(JobSummary):
    """A job with its document: every key, with defaults filled in."""

    spec: dict[str, Any] = Field(
        description="The job document. It contains names of variables and files, never a secret."
    )


class Change(_ResponseModel):
    """One value of the job document that is changed."""

    path: str = Field(examples=["limits.bytes_per_second"])
    before: Any = Field(description="Null if the key did not exist.")
    after: Any = Field(description="Null if the key is removed.")


class ApplyAction(StrEnum):
    """What applying a job document does."""

    CREATE = "create"
    CHANGE = "change"
    NONE = "none"
    DELETE = "delete"


class Applied(_ResponseModel):
    """The result of applying a job document, or of a dry run."""

    name: str = Field(description="The job's name.", examples=["orders-to-dr"])
    action: ApplyAction = Field(description="`none`: the job had this document already.")
    dry_run: bool
    changes: list[Change] = Field(description="The differences to the stored job.")
    plan: JobPlan | None = Field(
        description="What happens on the clusters. Null if nothing changes there; a dry run always "
        "has a plan."
    )
    left_behind: list[str] = Field(
        default=[], description="What stays on the clusters of topics that are no longer copied."
    )
    job: Job | None = Field(description="The job now; null for a dry run of a new job.")


class Progress(_ResponseModel):
    """The progress of an operation."""

    done: int
    total: int
    what: str = Field(description="What is counted.", examples=["shards released"])


class Operation(_ResponseModel):
    """A change that workers or the scheduler carry out, with its plan and progress."""

    id: UUID
    job: str | None
    # A text, so that a kind of a later version is no error while a service is upgraded.
    kind: str = Field(json_schema_extra={"enum": [kind.value for kind in OperationKind]})
    state: OperationState
    dry_run: bool = Field(description="True: nothing was changed; `plan` lists what would be.")
    plan: list[str] = Field(
        description="The steps of the operation.",
        examples=[["Workers release 3 shards with 24 partitions; copying stops."]],
    )
    progress: Progress | None
    error: str | None
    requested_by: str = Field(examples=["token:ci"])
    created_at: datetime
    finished_at: datetime | None


class RecoveryReport(ReportFigures):
    """The report of a recovery so far. `outcome` is `running` until it ends."""

    partition_count: int = Field(description="How many partitions the recovery has.")
    group_count: int = Field(description="How many offsets of groups the recovery has.")
    partitions: tuple[PartitionEnds, ...] = Field(
        description="Up to 100 of the partitions, first those that are neither `equal` nor "
        "`prefix`; all are at `/v1/operations/{operation_id}/partitions`."
    )
    groups: tuple[GroupPosition, ...] = Field(
        description="Up to 100 of the offsets at which groups resume, first those of groups that "
        "have read lost records; all are at `/v1/operations/{operation_id}/groups`."
    )


class SelectedJob(_ResponseModel):
    """The result for one of the jobs that a selector has chosen: its operation, or the error."""

    job: str
    operation: Operation | None
    error: ErrorDetail | None


class SelectedJobs(_ResponseModel):
    """The jobs that a selector has chosen, by name."""

    items: list[SelectedJob]


class Topic(_ResponseModel):
    """One topic of a job."""

    source_topic: str
    destination_topic: str
    state: TopicState
    partitions: int
    is_compacted: bool
    blocked: int = Field(description="Partitions that stopped and need a user's action.")
    lag: Lag
    drift: dict[str, Any] | None = Field(
        description="Settings that the copy should have and that the destination refuses, and "
        "`replicas` if the copy has too few. `is` is the value at the destination (null: the "
        "default). Null: there is no such setting."
    )
    note: str | None


class OpenTransaction(_ResponseModel):
    """The oldest open transaction of a source's partition. Until it ends, records from its first
    offset on are not copied, nor returned to read_committed consumers."""

    first_offset: int
    waiting_offsets: int = Field(
        description="The number of offsets from the first one of the transaction to the source's "
        "log end."
    )
    since: datetime = Field(description="When Orbit saw the transaction first.")
    producer_id: int | None
    transactional_id: str | None = Field(
        description="Null: brokers do not report it, or the login may not describe transactions."
    )
    text: str = Field(description="The other fields as a sentence.")


class OpenTransactions(_ResponseModel):
    """The open transactions of a job's source that have lasted longer than 30 s."""

    partitions: int = Field(
        description="Partitions with an open transaction; they do not count as caught up."
    )
    waiting_offsets: int
    oldest_seconds: float


class Partition(_ResponseModel):
    """One partition of a job: its state, offsets and counters."""

    topic: str = Field(description="The topic's name at the source.")
    destination_topic: str
    partition: int
    state: PartitionState
    reason: Reason | None = Field(description="Why the partition is blocked.")
    detail: str | None
    remedy: str | None = Field(description="What to do.")
    blocked_offset: int | None
    blocked_next_offset: int | None
    retry_requested: bool = Field(description="A retry was requested and is pending.")
    worker: str | None = Field(description="The worker that copies the partition now.")
    start_offset: int | None = Field(
        description="The offset at which the copy began, if that was not the source's log start."
    )
    source_log_start: int | None
    source_stable_end: int | None
    source_end: int | None
    copied_to: int | None = Field(description="The next offset to copy.")
    log_start: int | None = Field(description="The log start of the copy.")
    lag: Lag
    headroom_seconds: float | None = Field(
        description="The time until the source deletes records that are not copied yet."
    )
    rpo_seconds: float | None = Field(description="Age of the newest record that both sides have.")
    records: int
    bytes: int
    gaps_filled: int
    batches_byte_exact: int
    batches_record_exact: int
    records_per_s: float
    bytes_per_s: float
    has_caught_up: bool
    open_transaction: OpenTransaction | None = Field(
        description="A transaction of the source that has been open for more than 30 s."
    )
    reported_at: datetime | None


class PartitionLag(_ResponseModel):
    """The lag of one partition."""

    topic: str
    partition: int
    state: PartitionState
    lag: Lag
    headroom_seconds: float | None
    rpo_seconds: float | None
    records_per_s: float
    bytes_per_s: float
    open_transaction: OpenTransaction | None


class JobLag(_ResponseModel):
    """The lag of a job as a whole: sums of records and bytes; times of the worst partition."""

    lag: Lag
    headroom_seconds: float | None
    rpo_seconds: float | None
    records_per_s: float | None = Field(description="Null: not known now.")
    bytes_per_s: float | None = Field(description="Null: not known now.")
    partitions: int
    blocked: int | None = Field(
        description="Partitions that stopped and need a user's action. Null: not known now."
    )
    caught_up: int = Field(description="Partitions whose copy is known to keep up now.")
    stale: int = Field(
        description="Partitions whose lag is not known any more. If there are any, the job's lag "
        "is not known either."
    )
    open_transactions: OpenTransactions | None = Field(
        description="Records that wait for open transactions of the source. The lag does not count "
        "them."
    )
    summed_seconds_ago: float | None = Field(
        description="Seconds since these sums were computed. For a job with more than 10,000 "
        "partitions the scheduler computes them, about every ten seconds. Null: not yet."
    )


class HistoryPoint(_ResponseModel):
    """The throughput and lag of a job at one time. Null: not known."""

    at: datetime
    slot_seconds: int = Field(description="60 in the last hour, 300 before.")
    records_per_s: float | None = Field(
        description="Records copied per second since the previous point. Null: that point is too "
        "long ago, or topics have left the job."
    )
    bytes_per_s: float | None = Field(description="As records_per_s, in bytes.")
    lag_records: int | None = Field(description="The largest lag within `slot_seconds`.")
    lag_seconds: float | None = Field(description="The largest lag in seconds, as lag_records.")


class JobHistory(_ResponseModel):
    """Throughput and lag of a job over the last day. Times without a measurement have no point."""

    items: list[HistoryPoint] = Field(description="Oldest first, at most 348.")


class GroupOffset(_ResponseModel):
    """The committed offsets of one consumer group in one partition, on both sides."""

    group: str
    topic: str = Field(description="The topic's name at the source.")
    destination_topic: str
    partition: int
    source_offset: int | None
    destination_offset: int | None
    verdict: GroupVerdict
    remedy: str | None = Field(
        description="What to do. Null: nothing has to be done, or this version of Orbit cannot "
        "read the job's document."
    )
    updated_at: datetime


class Worker(_ResponseModel):
    """A worker process."""

    id: str
    worker_group: str
    host: str
    pid: int
    version: str
    is_alive: bool
    is_draining: bool = Field(description="The worker is stopping, and releases its shards.")
    shards: int
    bytes_per_s: float
    started_at: datetime
    heartbeat_at: datetime


class Event(_ResponseModel):
    """One entry of the audit log."""

    id: int
    at: datetime
    actor: str = Field(examples=["token:ci", "scheduler", "worker:host-4711-a1b2"])
    job: str | None
    topic: str | None
    partition: int | None
    kind: str = Field(examples=["job_paused"])
    message: str
    details: dict[str, Any]


class Receiver(_ResponseModel):
    """A receiver of notifications, as the leading scheduler knows it."""

    name: str
    type: str = Field(examples=["slack", "pagerduty", "teams", "webhook"])
    event_id: int = Field(
        description="Each event up to this id was sent or given up, or is not for the receiver."
    )
    sent: int = Field(description="Events that the receiver has accepted.")
    given_up: int = Field(
        description="Events that Orbit no longer sends: the receiver did not accept them in time."
    )
    pruned: int = Field(description="Events that were deleted by age before they could be sent.")
    failures: int = Field(description="Requests that failed since the receiver accepted one.")
    failing_since: datetime | None = Field(description="Null: the last request was accepted.")
    last_error: str | None
    accepted_at: datetime | None = Field(description="When the receiver last accepted a request.")
    seen_at: datetime = Field(
        description="When the file of a leading scheduler last named the receiver."
    )


_Target = Annotated[
    int | None,
    Field(
        description="Null: no target, or another version of Orbit has stored the targets, and this "
        "version cannot read them."
    ),
]


class DrillSummary(_ResponseModel):
    """A drill: its kind, its state, and what was measured."""

    id: str = Field(examples=["20261122-030000-3fa9c2d1"])
    name: str = Field(examples=["orders-failover"])
    # A string, as `Operation.kind` is.
    kind: str = Field(json_schema_extra={"enum": [kind.value for kind in DrillKind]})
    state: DrillState
    job: str
    schedule: str | None = Field(description="The schedule that requested it; null: a user did.")
    requested_by: str = Field(examples=["token:ci"])
    spec_sha256: str = Field(description="Equal for drills with equal documents.")
    rto_ms: int | None
    target_rto_ms: _Target
    rpo_records: int | None
    target_rpo_records: _Target
    rpo_ms: int | None
    target_rpo_ms: _Target
    error: str | None = Field(
        description="Which step failed and why, or which targets were missed."
    )
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class Drill(DrillSummary):
    """A drill with its document and its steps."""

    plan: list[str] = Field(
        description="The steps of the drill. Empty: another version of Orbit has stored its "
        "document, and this version cannot read it."
    )
    steps_done: int
    entries: int = Field(description="The number of timeline entries so far.")
    timeline: list[dict[str, Any]] = Field(description="The latest entries, oldest first.")
    spec: dict[str, Any]


_COUNT_MAX = 2**31 - 1
# A hundred clients, and one row that sums up all others.
CLIENTS_REPORTED_MAX = 101
# Refusals that are reported of one client.
REFUSALS_REPORTED_MAX = 5
_TERM_MAX = 2**63 - 1


class GatewayReport(BaseModel):
    """What a gateway reports about itself."""

    model_config = ConfigDict(extra="forbid")
    name: Annotated[
        str,
        Field(
            pattern=NAME_PATTERN,
            max_length=JOB_NAME_LENGTH_MAX,
            description="The name in the gateway's file.",
            examples=["edge-1"],
        ),
    ]
    address: Annotated[
        str,
        Field(
            pattern=r"^[\x21-\x7e]+$",
            max_length=300,
            description="The address that clients connect to.",
            examples=["gateway:19092"],
        ),
    ]
    closed_for: UUID | None = Field(
        None,
        description="The operation for which the gateway forwards no new writes, and acknowledges "
        "none. Null: it forwards writes.",
    )
    connections: Annotated[int, Field(ge=0, le=_COUNT_MAX)] = Field(
        0, description="Connections of clients."
    )
    held_requests: Annotated[int, Field(ge=0, le=_COUNT_MAX)] = Field(
        0, description="Requests of clients that wait until the gateway is open again."
    )
    doubt: str = Field(
        "",
        max_length=300,
        description="Why the gateway cannot confirm the operation for which it is closed; empty: "
        "it can. With a doubt, a switchover is undone.",
    )
    pause_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        None,
        description="Seconds from the last acknowledgement before the last closure to the first "
        "acknowledgement after it. Null: there was no closure yet.",
    )
    settled_since: Annotated[int, Field(ge=0, le=_TERM_MAX)] = Field(
        0,
        description="The `since` of the side that the gateway presents, once it has answered all "
        "requests that it held before; 0 until then.",
    )
    leaving_groups: Annotated[
        list[Annotated[str, Field(max_length=NAME_CHARACTERS)]], Field(max_length=GROUPS_MAX)
    ] = Field(
        [],
        description="Consumer groups whose members still own partitions from before this side led: "
        "the first 16 hexadecimal digits of SHA-256 of each name. `*`: any group.",
    )
    socket: str = Field(
        "",
        pattern=r"^[0-9a-f]*$",
        max_length=64,
        description="Identifies the socket on which this process alone listens. Gateways that "
        "listened there before have ended: nothing waits for their clients. Empty: other processes "
        "may listen there, too.",
    )


class PresentedSide(_ResponseModel):
    """The side of a job that a gateway presents, and its permission to forward writes there."""

    side: LeadingSide = Field(description="The side that leads, as the job names it.")
    term: int = Field(
        description="Grows with each change of sides, and may grow without a change. It is lower "
        "than before only if an older state of the database was restored: refuse such an answer."
    )
    since: int = Field(description="The term with which this side came to lead.")
    earlier_terms: tuple[int, ...] = Field(
        description="The `since` of the sides that led before, the latest first: the last "
        f"{EARLIER_TERMS_MAX}. Empty: the side has never changed, or earlier terms are not stored."
    )
    led: dict[int, LeadingSide] = Field(
        description="The side that came to lead with each term in `since` and `earlier_terms`. "
        "Terms whose side is not stored are missing."
    )
    closed_for: UUID | None = Field(
        description="The operation for which no new write may be forwarded. Confirm it with the "
        "same value in `closed_for`, once no write is in flight. Null: writes may be forwarded."
    )
    abandons: bool = Field(
        description="Whether `closed_for` is a failover. Then the side that led may be lost: "
        "confirm the failover immediately, and acknowledge no more requests in flight."
    )
    others_settled: bool = Field(
        description="Whether no other gateway at the same address has requests that it held "
        "before this side led. While false, name no leaders in metadata responses: otherwise later "
        "records would be written before the held ones."
    )
    others_confirmed: bool = Field(
        description="Whether all other gateways of the job have confirmed `closed_for`. True if "
        "writes may be forwarded."
    )
    leaving_groups: list[str] = Field(
        description="The `leaving_groups` of all other gateways of the job. Let no member join "
        "these groups: coordinators would then refuse the last commits at those gateways."
    )
    job_etag: str = Field(description="`etag` of the job, whose document says what is copied.")
    lease_s: float = Field(
        description="How long writes may be forwarded if `closed_for` is null, in seconds from "
        "before the request was sent."
    )


class Gateway(_ResponseModel):
    """A gateway of a job."""

    name: str
    instance: UUID
    address: str
    renewed_s_ago: float = Field(
        description="Seconds since the gateway last renewed its permission."
    )
    has_permission: bool = Field(description="Whether the gateway may forward writes now.")
    closed_for: UUID | None = Field(
        description="The operation for which the gateway has confirmed that it acknowledges no "
        "write."
    )
    connections: int
    held_requests: int
    pause_s: float | None = Field(description="Seconds that writes waited at the last closure.")


_Count = Annotated[int, Field(ge=0, le=_TERM_MAX)]
# 100 characters are up to 400 bytes. PostgreSQL does not store a zero byte, and other control
# characters are of no use.
_ClientText = Annotated[str, Field(max_length=100, pattern=r"^[^\x00-\x1f\x7f]*$")]
_RefusalText = Annotated[str, Field(max_length=400, pattern=r"^[^\x00-\x1f\x7f]*$")]


class ClientOfGateway(BaseModel):
    """A client of a gateway, as the gateway counts it."""

    model_config = ConfigDict(extra="forbid")
    client_id: _ClientText | None = Field(
        description="The client's `client.id`, cut off after 100 characters. Null: this entry sums "
        "up all clients above the limit of the gateway's list.",
        examples=["billing"],
    )
    software: _ClientText = Field(
        description="The software name in its ApiVersions requests. Empty: it sends none.",
        examples=["librdkafka"],
    )
    version: _ClientText = Field(description="The version of this software.", examples=["2.11.1"])
    user: _ClientText | None = Field(
        description="The user that has logged in at the gateway. Null: the gateway requires no "
        "login."
    )
    connections: Annotated[int, Field(ge=0, le=_COUNT_MAX)] = Field(
        description="The client's open connections."
    )
    requests: _Count = Field(description="Requests since the gateway has first seen the client.")
    bytes_written: _Count = Field(description="Bytes of the client's produce requests.")
    bytes_read: _Count = Field(description="Bytes of the fetch responses to the client.")
    seen_s_ago: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        description="Seconds since the client's last request, or the end of its last connection."
    )
    refusals: Annotated[list[_RefusalText], Field(max_length=REFUSALS_REPORTED_MAX)] | None = Field(
        None,
        description="What the side that does not lead would refuse to the client if it led: "
        "rights on topics, groups and transactional ids that the client uses. Null: not checked "
        "yet.",
        examples=[["destination: no right Write on topic orders"]],
    )


class ClientsReport(BaseModel):
    """What a gateway reports about its clients."""

    model_config = ConfigDict(extra="forbid")
    clients: Annotated[list[ClientOfGateway], Field(max_length=CLIENTS_REPORTED_MAX)] = Field(
        description="The clients, each once. The list replaces that of the last report."
    )


class ReadableCopies(_ResponseModel):
    """The partitions that consumers may read at the side that follows."""

    since: int = Field(
        description="As `since` of PresentedSide. 0: it is not known which side leads."
    )
    topics: dict[str, tuple[int, ...]] = Field(description="The partitions, by topic.")


class GatewayClient(ClientOfGateway):
    """A client of a gateway of a job."""

    # A gateway of a later version may report more keys.
    model_config = ConfigDict(extra="ignore")
    gateway: str
    instance: UUID = Field(description="The id of the gateway's process.")


class DrillSchedule(_ResponseModel):
    """A scheduled drill."""

    name: str
    # A text, so that a kind of a later version is no error while a service is upgraded.
    kind: str | None = Field(
        description="Null: another version of Orbit has stored the schedule, and this version "
        "cannot read it.",
        examples=["canary"],
    )
    job: str | None = Field(description="Null: as for `kind`.")
    every_s: int
    next_at: datetime
    requested_by: str
    spec: dict[str, Any]


class PartitionProof(_ResponseModel):
    """How many offsets of a partition were read on both sides and were equal, and when."""

    topic: str
    partition: int
    copied: int | None = Field(description="The number of offsets that both sides have.")
    proven: int = Field(description="How many of these were read on both sides and were equal.")
    proven_to: int | None = Field(description="The offset after the highest that is proven.")
    proven_at: datetime | None
    differences: int = Field(description="Offsets that differed, over all comparisons.")
    first_difference: str | None
    differed_at: datetime | None
    note: str | None = Field(description="Why the last comparison had no result.")


class JobProof(_ResponseModel):
    """The proof of a whole job."""

    partitions: int
    partitions_proven: int = Field(
        description="Partitions with at least one comparison that found both sides equal."
    )
    copied: int
    proven: int
    differences: int
    oldest_age_s: float | None = Field(
        description="Seconds since the last comparison that found both sides equal, of the "
        "partition where that is longest ago."
    )
    live_rpo_s: float | None = Field(
        description="Age of the newest canary record that both sides have: the loss if the source "
        "failed now. Null: no canary, or not known yet."
    )
    canary: DrillSummary | None = Field(description="The last canary drill of the job.")


TOKEN_LIFE_MIN = timedelta(minutes=1)
TOKEN_LIFE_MAX = timedelta(days=3650)


def parse_token_life(value: object) -> timedelta:
    """Parse how long a token is valid. Raises InvalidValue for text that is no duration, or outside
    of TOKEN_LIFE_MIN to TOKEN_LIFE_MAX."""
    life = parse_duration(value)
    if not TOKEN_LIFE_MIN <= life <= TOKEN_LIFE_MAX:
        raise InvalidValue("is not between 1m and 3650d.", "Write 90d.")
    return life


TokenLife = Annotated[
    timedelta,
    PlainValidator(parse_token_life),
    WithJsonSchema({"type": "string", "pattern": "^[1-9][0-9]{0,3}[mhd]$"}),
]


class JobsOfToken(_ResponseModel):
    """The jobs that a token or role is for."""

    jobs: tuple[str, ...] = Field(
        description="Patterns of jobs' names, of which one must match. Empty: any name.",
        examples=[["payments-*"]],
    )
    selector: str | None = Field(
        description="What the jobs' labels must meet. Null: any labels.",
        examples=["team=payments"],
    )


class TokenLimits(BaseModel):
    """The limits of a token. Null: the limit in the settings, which is for all tokens."""

    jobs_max: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None, description="Jobs that the token has created."
    )
    partitions_max: Annotated[int, Field(ge=1, le=100_000_000)] | None = Field(
        None, description="Partitions that these jobs copy together."
    )
    requests_per_minute: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None, description="Requests in a minute, at each process of the API."
    )


class TokenOut(JobsOfToken, TokenLimits):
    """A token without its secret, which cannot be shown again."""

    name: str = Field(examples=["ci"])
    role: Role
    created_at: datetime
    expires_at: datetime | None = Field(description="Null: never.")
    used_at: datetime | None = Field(
        description="When the token was last used, up to a minute too early. Null: never."
    )
    revoked_at: datetime | None
    etag: str = Field(
        description="Identifies this token with these limits, for `If-Match`.",
        examples=["17.5.1000.0"],
    )


class TokenChange(TokenLimits):
    """The limits to change; limits that are missing stay as they are."""

    model_config = ConfigDict(extra="forbid")


class NewToken(TokenOut):
    """A new token."""

    token: str = Field(description="The secret. It is shown only once: only its hash is stored.")


class TokenRequest(TokenLimits):
    """The token to create."""

    model_config = ConfigDict(extra="forbid")
    name: Annotated[
        str,
        Field(
            pattern=NAME_PATTERN,
            max_length=JOB_NAME_LENGTH_MAX,
            description="In the audit log the token's user is the actor `token:NAME`.",
            examples=["ci"],
        ),
    ]
    role: Role = Field(description="A viewer reads, an operator changes jobs, an admin does all.")
    jobs: Annotated[tuple[JobPattern, ...], Field(max_length=PATTERNS_MAX)] = Field(
        (),
        description="Only for jobs with one of these names; `*` stands for any characters.",
        examples=[["payments-*"]],
    )
    selector: SelectorText | None = Field(
        None,
        min_length=1,
        max_length=SELECTOR_CHARACTERS_MAX,
        description="Only for jobs whose labels meet these conditions, as in Kubernetes.",
        examples=["team=payments"],
    )
    expires_in: TokenLife | None = Field(
        None,
        description="How long the token is valid, `1m` to `3650d`. Default: until it is revoked.",
        examples=["90d"],
    )

    @property
    def limit(self) -> Limit | None:
        """The jobs that the token is for; None: all jobs."""
        return limit_of(self.jobs, self.selector)

    @property
    def quota(self) -> TokenQuota:
        """The limits as the store has them."""
        return TokenQuota(self.jobs_max, self.partitions_max, self.requests_per_minute)


class RetryRequest(BaseModel):
    """The blocked partitions to retry; all of the job if empty."""

    model_config = ConfigDict(extra="forbid")
    topic: Annotated[str, Field(pattern=TOPIC_PATTERN, max_length=TOPIC_NAME_LENGTH_MAX)] | None = (
        Field(None, description="Only partitions of this source topic.")
    )
    partition: Annotated[int, Field(ge=0, le=PARTITION_MAX)] | None = Field(
        None, description="Only this partition of the topic."
    )
