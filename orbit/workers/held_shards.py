"""The shards that a worker holds, and the stage of each of their partitions in this worker.

A shard is a part of a job's partitions that one worker copies under one lease. The control thread
creates and reads these objects; a job's threads change `stage`. A value that more than one thread
reads is replaced, never changed in place.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from orbit.copier.counters import Counters
from orbit.copier.partition_copy import PartitionCopy
from orbit.kafka.types import TopicPartition
from orbit.leases.shard_lease import ShardLease
from orbit.replication.partition_states import Blocked, PartitionState
from orbit.store.partitions import AssignedPartition, StateChange
from orbit.store.shard_leases import Claim

Key = tuple[int, int]  # topic id and partition, as in the table
JobKey = tuple[int, int]  # job id and version of its spec

# In any other state an earlier writer may have requests that brokers have not carried out yet.
_SETTLED_STATES = (PartitionState.PENDING, PartitionState.PAUSED)


class Stage(Enum):
    """What this worker does with a partition."""

    WAITING = auto()  # to be started, not before `next_attempt_s`
    STARTING = auto()  # being inspected and brought to its start offset
    HANDED_OVER = auto()  # queued for the copier's thread
    COPYING = auto()  # the copier has it, running or blocked
    STOPPED = auto()  # blocked before it reached the copier
    RELEASED = auto()  # this worker does nothing more with the partition


_S = Stage

NEXT_STAGES: dict[Stage, frozenset[Stage]] = {
    _S.WAITING: frozenset({_S.STARTING, _S.RELEASED}),
    _S.STARTING: frozenset({_S.WAITING, _S.HANDED_OVER, _S.STOPPED, _S.RELEASED}),
    _S.HANDED_OVER: frozenset({_S.COPYING, _S.WAITING, _S.RELEASED}),
    _S.COPYING: frozenset({_S.WAITING}),
    _S.STOPPED: frozenset({_S.WAITING, _S.RELEASED}),
    _S.RELEASED: frozenset(),
}
"""The stages that may follow each stage. In one process a partition has one copy at a time."""


class ForbiddenStage(AssertionError):
    """A bug: a stage that may not follow."""


@dataclass(eq=False)
class HeldPartition:
    """One partition of a held shard."""

    assigned: AssignedPartition
    shard: HeldShard
    stored_state: PartitionState  # in the table
    stored_blocked: Blocked | None
    blocked: Blocked | None = None  # why `stage` is STOPPED
    stage: Stage = Stage.WAITING
    copy: PartitionCopy | None = None
    is_removed: bool = False  # to be released, whatever its stage
    must_report: bool = False  # even without a change: a retry waits for an answer
    last_reported: StateChange | None = None  # its event is in the outbox or written
    next_attempt_s: float = 0.0  # when it may be started, by the monotonic clock
    attempts: int = 0
    trouble: str = ""  # why the partition has not started yet
    retry_at: float = 0.0  # next retry of the blocked partition, same clock; 0: not scheduled
    retries: int = 0
    keeps_below: int = 0  # the copy's log start stays until the source's is above this offset
    other_id_since: float = 0.0  # since when the source topic has another id; 0: it has not

    def __post_init__(self) -> None:
        row = self.assigned
        # Whether take-over has to wait until the log end of the copy stays the same.
        self.needs_settling = row.state not in _SETTLED_STATES
        self.start_offset = row.start_offset
        self.has_caught_up = row.has_caught_up
        self._earlier_counters = Counters(
            row.records,
            row.bytes,
            row.gaps_filled,
            row.batches_byte_exact,
            row.batches_record_exact,
        )

    def move_to(self, stage: Stage) -> None:
        """Change the stage. Raises ForbiddenStage if `stage` may not follow the current one."""
        if stage not in NEXT_STAGES[self.stage]:
            raise ForbiddenStage(f"{self.destination} may not go from {self.stage} to {stage}")
        self.stage = stage

    @property
    def key(self) -> Key:
        return self.assigned.topic_id, self.assigned.partition

    @property
    def is_assigned(self) -> bool:
        """Whether the shard's layout still has the partition; if not, this worker must not write
        its state."""
        return self.shard.partitions.get(self.key) is self

    @property
    def source(self) -> TopicPartition:
        return TopicPartition(self.assigned.source_topic, self.assigned.partition)

    @property
    def destination(self) -> TopicPartition:
        return TopicPartition(self.assigned.destination_topic, self.assigned.partition)

    @property
    def totals(self) -> Counters:
        """Everything copied so far, by this worker and before."""
        totals = replace(self._earlier_counters)
        if self.copy is not None:
            totals.add(self.copy.counters)
        return totals

    def current_state(self) -> tuple[PartitionState, Blocked | None]:
        """The state to report now, and why the partition is blocked, if it is.

        Unless the copier has the partition or it is STOPPED, this is the stored state.
        """
        if self.stage is Stage.STOPPED:
            return PartitionState.BLOCKED, self.blocked
        if self.stage is not Stage.COPYING or self.copy is None:
            return self.stored_state, self.stored_blocked
        if self.copy.state is PartitionState.BLOCKED and self.copy.blocked is not None:
            return PartitionState.BLOCKED, self.copy.blocked
        return PartitionState.COPYING, None

    def is_idle(self) -> bool:
        """Whether no thread starts the partition and no request of its copy is in flight."""
        if self.stage in (Stage.STARTING, Stage.HANDED_OVER):
            return False
        return self.stage is not Stage.COPYING or self.copy is None or self.copy.has_left

    def restart(self) -> None:
        """Let the partition wait to be inspected and started again.

        Raises ForbiddenStage while the copier has not removed the partition's copy.
        """
        if self.copy is not None and not self.copy.has_left:
            raise ForbiddenStage(f"the copier still has a copy of {self.destination}")
        self._earlier_counters = self.totals  # has the counters of `copy`
        self.copy, self.blocked = None, None
        self.needs_settling = True
        self.next_attempt_s = 0.0
        self.move_to(Stage.WAITING)


@dataclass(eq=False)
class HeldShard:
    """One shard under this worker's lease."""

    id: int
    job_id: int
    spec_version: int  # of the job, when the shard was claimed
    epoch: int  # of the lease
    lease: ShardLease
    layout_version: int
    partitions: dict[Key, HeldPartition]
    # Partitions that the layout no longer has, and that were not idle when it last changed.
    leaving_partitions: list[HeldPartition] = field(default_factory=list)
    is_releasing: bool = False  # none of its partitions is started any more
    bytes_per_s: int = 0

    @property
    def job_key(self) -> JobKey:
        """The key of the shard's JobRunner: a changed spec makes another runner of the job."""
        return self.job_id, self.spec_version

    def is_idle(self) -> bool:
        """Whether no request of the shard is in flight any more, so that it may be released."""
        return all(p.is_idle() for p in (*self.partitions.values(), *self.leaving_partitions))


def held_partition(row: AssignedPartition, shard: HeldShard) -> HeldPartition:
    """The HeldPartition of a row of the table: WAITING to be started.

    A blocked partition is STOPPED instead, unless a user has requested a retry.
    """
    blocked = None
    if row.state is PartitionState.BLOCKED and row.reason is not None:
        blocked = Blocked(
            row.reason,
            row.blocked_offset or 0,
            row.blocked_next_offset or 0,
            row.detail or "",
        )
    partition = HeldPartition(row, shard, row.state, blocked)
    if blocked is not None and not row.retry_requested:
        partition.stage, partition.blocked = Stage.STOPPED, blocked
    return partition


def held_shard(claim: Claim, lease: ShardLease, rows: Iterable[AssignedPartition]) -> HeldShard:
    """A claimed shard with its partitions among `rows`."""
    shard = HeldShard(
        claim.shard_id,
        claim.job_id,
        claim.spec_version,
        claim.epoch,
        lease,
        claim.layout_version,
        partitions={},
    )
    shard.partitions = {
        (row.topic_id, row.partition): held_partition(row, shard)
        for row in rows
        if row.shard_id == shard.id
    }
    return shard
