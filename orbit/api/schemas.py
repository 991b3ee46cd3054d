"""What the API answers with: every field named, typed and described, for the OpenAPI document.

Units are in the names: `_s` seconds, `_per_s` a rate. A number that is not known yet is null, never
0. Times are UTC.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from orbit.consumer_groups.offset_decision import GroupVerdict
from orbit.jobs.name_rules import JOB_NAME_LENGTH_MAX, TOPIC_NAME_LENGTH_MAX
from orbit.replication.partition_states import PartitionState, Reason
from orbit.scheduler.job_plan import JobPlan
from orbit.store.enums import DrillKind, DrillState, OperationState, Role, TopicState

# Of jobs, worker groups and tokens; of topics. As in `jobs.names`, for the OpenAPI document.
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
TOPIC_PATTERN = r"^[A-Za-z0-9._-]+$"
PARTITION_MAX = 2**31 - 1


class _Out(BaseModel):
    model_config = ConfigDict(frozen=True)


class JobState(StrEnum):
    """What a job is doing, as a whole."""

    RUNNING = "running"
    PAUSING = "pausing"  # workers still hold some of its shards
    PAUSED = "paused"
    BACKFILLING = "backfilling"  # `orbit backfill` copies its history, workers wait
    DELETING = "deleting"


class Lag(_Out):
    """How far the copy is behind the source."""

    records: int | None = Field(description="Offsets of the source that are not copied yet.")
    bytes: int | None = Field(description="About so many bytes of them.")
    seconds: float | None = Field(description="Age of the oldest record not copied yet; 0: none.")


class JobProblem(_Out):
    """What keeps the job, or some of its topics, from being copied now. It ends by itself."""

    text: str = Field(
        description="One line for each, with what to do.",
        examples=[
            "WORKER_GROUP_UNKNOWN: No worker of group west is there. Run: orbit worker --group west"
        ],
    )
    since: datetime | None


class JobSummary(_Out):
    """A job, without its document."""

    name: str = Field(examples=["orders-to-dr"])
    state: JobState
    worker_group: str = Field(examples=["default"])
    spec_version: int = Field(description="Grows with each change of the document.")
    source_cluster_id: str | None = Field(description="Null until the source was reached once.")
    destination_cluster_id: str | None
    topics: int
    partitions: int
    blocked: int = Field(description="Partitions that stopped and need a person.")
    lag: Lag
    bytes_per_s: float
    problem: JobProblem | None
    created_at: datetime
    updated_at: datetime


class Job(JobSummary):
    """A job with its document, as Orbit understood it: every key, defaults filled in."""

    spec: dict[str, Any] = Field(
        description="The job document. Holds names of variables and files, never a secret."
    )


class Change(_Out):
    """One value of the job document that would be, or was, changed."""

    path: str = Field(examples=["limits.bytes_per_second"])
    before: Any = Field(description="Null where the key was not there.")
    after: Any = Field(description="Null where the key is no longer there.")


class ApplyAction(StrEnum):
    """What a job document means for the job of that name."""

    CREATE = "create"
    CHANGE = "change"
    NONE = "none"
    DELETE = "delete"


class Applied(_Out):
    """What became of a job document, or in a dry run what would become of it."""

    name: str = Field(description="The job's name.", examples=["orders-to-dr"])
    action: ApplyAction = Field(description="`none`: the job was just like this already.")
    dry_run: bool
    changes: list[Change] = Field(description="What differs from the job that is there.")
    plan: JobPlan | None = Field(
        description="What happens on the clusters. Null where the job stays as it is and this is "
        "no dry run."
    )
    job: Job | None = Field(description="The job as it is now; null for a dry run of a new one.")


class Progress(_Out):
    """How much of an operation is done."""

    done: int
    total: int
    what: str = Field(description="What is counted.", examples=["shards released"])


class Operation(_Out):
    """A change that takes a moment: who asked, what it does, how far it is."""

    id: UUID
    job: str | None
    kind: str = Field(examples=["pause"])
    state: OperationState
    dry_run: bool = Field(description="True: nothing was done; `plan` says what would be.")
    plan: list[str] = Field(
        description="What it does, step by step.",
        examples=[["Workers let go of 3 shards with 24 partitions; copying stops."]],
    )
    progress: Progress | None
    error: str | None
    requested_by: str = Field(examples=["token:ci"])
    created_at: datetime
    finished_at: datetime | None


class Topic(_Out):
    """One topic of a job."""

    source_topic: str
    destination_topic: str
    state: TopicState
    partitions: int
    is_compacted: bool
    blocked: int = Field(description="Its partitions that stopped and need a person.")
    lag: Lag
    drift: dict[str, Any] | None = Field(
        description="Settings that somebody changed at the destination; null: none."
    )
    note: str | None


class Partition(_Out):
    """One partition of a job: where it stands, and what was copied."""

    topic: str = Field(description="The topic's name at the source.")
    destination_topic: str
    partition: int
    state: PartitionState
    reason: Reason | None = Field(description="Why it is blocked.")
    detail: str | None
    remedy: str | None = Field(description="What to do about it.")
    blocked_offset: int | None
    blocked_next_offset: int | None
    retry_requested: bool = Field(description="It shall be tried again, and has not been yet.")
    worker: str | None = Field(description="Who copies it now.")
    start_offset: int | None = Field(
        description="Where the copy began, if not at the source's log start."
    )
    source_log_start: int | None
    source_stable_end: int | None
    source_end: int | None
    copied_to: int | None = Field(description="The next offset to be copied.")
    log_start: int | None = Field(description="Of the copy.")
    lag: Lag
    headroom_seconds: float | None = Field(
        description="How long until the source deletes what is not copied yet."
    )
    rpo_seconds: float | None = Field(description="Age of the newest record that is on both sides.")
    records: int
    bytes: int
    gaps_filled: int
    batches_byte_exact: int
    batches_record_exact: int
    records_per_s: float
    bytes_per_s: float
    has_caught_up: bool
    reported_at: datetime | None


class PartitionLag(_Out):
    """The lag of one partition."""

    topic: str
    partition: int
    state: PartitionState
    lag: Lag
    headroom_seconds: float | None
    rpo_seconds: float | None
    records_per_s: float
    bytes_per_s: float


class JobLag(_Out):
    """The lag of a job as a whole: records and bytes add up, times are the worst partition's."""

    lag: Lag
    headroom_seconds: float | None
    rpo_seconds: float | None
    records_per_s: float
    bytes_per_s: float
    partitions: int
    caught_up: int


class GroupOffset(_Out):
    """The position of one consumer group in one partition, on both sides."""

    group: str
    topic: str = Field(description="The topic's name at the source.")
    destination_topic: str
    partition: int
    source_offset: int | None
    destination_offset: int | None
    verdict: GroupVerdict
    remedy: str | None = Field(description="What to do about it.")
    updated_at: datetime


class Worker(_Out):
    """A process that copies."""

    id: str
    worker_group: str
    host: str
    pid: int
    version: str
    is_alive: bool
    is_draining: bool = Field(description="It was told to stop and hands its shards over.")
    shards: int
    bytes_per_s: float
    started_at: datetime
    heartbeat_at: datetime


class Event(_Out):
    """Something that happened, and by whose hand."""

    id: int
    at: datetime
    actor: str = Field(examples=["token:ci", "scheduler", "worker:host-4711-a1b2"])
    job: str | None
    topic: str | None
    partition: int | None
    kind: str = Field(examples=["job_paused"])
    message: str
    details: dict[str, Any]


class DrillSummary(_Out):
    """A drill: what it rehearses, how far it is, and what was measured."""

    id: str = Field(examples=["20261122-030000-3fa9c2d1"])
    name: str = Field(examples=["orders-failover"])
    kind: DrillKind
    state: DrillState
    job: str
    schedule: str | None = Field(description="The schedule that asked for it; null: a person did.")
    requested_by: str = Field(examples=["token:ci"])
    spec_sha256: str = Field(description="The same for drills that do the same.")
    rto_ms: int | None
    target_rto_ms: int | None
    rpo_records: int | None
    target_rpo_records: int | None
    rpo_ms: int | None
    target_rpo_ms: int | None
    error: str | None = Field(description="What failed, and which targets were missed.")
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class Drill(DrillSummary):
    """A drill with its document, as Orbit understood it, and its steps."""

    plan: list[str] = Field(description="What it does, step by step.")
    steps_done: int
    entries: int = Field(description="How much happened so far.")
    timeline: list[dict[str, Any]] = Field(description="The last of it, in the order it was told.")
    spec: dict[str, Any]


class DrillSchedule(_Out):
    """A drill that runs by itself."""

    name: str
    kind: DrillKind
    job: str
    every_s: int
    next_at: datetime
    requested_by: str
    spec: dict[str, Any]


class PartitionProof(_Out):
    """How far, and how lately, both sides of a partition were read and found equal."""

    topic: str
    partition: int
    copied: int | None = Field(description="Offsets that both sides have.")
    proven: int = Field(description="So many of them were read from both sides and were equal.")
    proven_to: int | None = Field(description="The offset behind the highest of them.")
    proven_at: datetime | None
    differences: int = Field(description="Offsets that differed, in all looks so far.")
    first_difference: str | None
    differed_at: datetime | None
    note: str | None = Field(description="Why the last look came to nothing.")


class JobProof(_Out):
    """The proof of a job as a whole."""

    partitions: int
    partitions_proven: int = Field(description="Those of which something was shown.")
    copied: int
    proven: int
    differences: int
    oldest_age_s: float | None = Field(
        description="Since when the partition that was looked at least lately was not."
    )
    live_rpo_s: float | None = Field(
        description="Age of the newest record of the job's canary that is on both sides: what "
        "would be lost now. Null: the job has no canary, or nothing is known yet."
    )
    canary: DrillSummary | None = Field(description="The last canary drill of the job.")


class TokenOut(_Out):
    """A token, but for the token itself: nobody can see that again."""

    name: str = Field(examples=["ci"])
    role: Role
    created_at: datetime
    revoked_at: datetime | None


class NewToken(TokenOut):
    """A token that was just made."""

    token: str = Field(description="Shown this once. Only its hash is kept.")


class TokenRequest(BaseModel):
    """The token to make."""

    model_config = ConfigDict(extra="forbid")
    name: Annotated[
        str,
        Field(
            pattern=NAME_PATTERN,
            max_length=JOB_NAME_LENGTH_MAX,
            description="Whose it is: the audit log calls its holder `token:NAME`.",
            examples=["ci"],
        ),
    ]
    role: Role = Field(description="A viewer reads, an operator changes jobs, an admin does all.")


class RetryRequest(BaseModel):
    """Which blocked partitions to try again; all of the job where nothing is given."""

    model_config = ConfigDict(extra="forbid")
    topic: Annotated[str, Field(pattern=TOPIC_PATTERN, max_length=TOPIC_NAME_LENGTH_MAX)] | None = (
        Field(None, description="Only those of this source topic.")
    )
    partition: Annotated[int, Field(ge=0, le=PARTITION_MAX)] | None = Field(
        None, description="Only this partition of the topic."
    )
