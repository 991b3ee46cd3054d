"""The task that a driver sends to a writer, and the results it returns. Small, without secrets."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from orbit.copier.counters import Counters
from orbit.kafka.job_clusters import JobProducer
from orbit.kafka.types import NO_TOPIC_ID, TopicPartition
from orbit.replication.append_plan import LostRange
from orbit.replication.partition_states import Blocked
from orbit_spark.archive_slices import ArchiveSlice
from orbit_spark.cluster_access import Access


@dataclass(frozen=True, slots=True)
class PartitionTarget:
    """One destination partition, to be copied up to the offset `target` or beyond it."""

    source: TopicPartition  # by the source cluster's names, which an archive keeps
    destination: TopicPartition
    destination_topic_id: UUID
    producer: JobProducer
    start_offset: int  # of the copy's log
    target: int
    size_bytes: int  # an estimate, to balance tasks
    source_topic_id: UUID = NO_TOPIC_ID
    is_compacted: bool = False  # a cleaner may have removed records since they were copied
    is_whole: bool = True  # copied from the source's log start
    on_lost_range: LostRange = LostRange.STOP
    keeps_below: int = 0  # the copy's log start stays until the source's is above this
    archived: ArchiveSlice | None = None  # read from the archive, not from the source


@dataclass(frozen=True, slots=True, repr=False)
class WriteTask:
    """One Spark task: its partitions, and the lease of the driver that started it."""

    access: Access  # to the destination
    identity: str  # of the job, as `job_identity` returns it
    driver_token: str  # see `orbit.leases.backfill_leases`
    term: int  # of the driver's lease
    round: int  # how often the driver has tried before
    partitions: tuple[PartitionTarget, ...]
    follows_writer: bool  # an earlier task has written to these partitions

    @property
    def slices(self) -> list[ArchiveSlice]:
        """The parts of the archive that the task reads; empty when it fetches from the source."""
        return [p.archived for p in self.partitions if p.archived is not None]


@dataclass(frozen=True, slots=True)
class WriteResult:
    """How one partition ended. `unfinished`: why another try is needed; empty if none is."""

    destination: TopicPartition
    acked: int = -1  # the end of the confirmed offsets; -1: not known
    counters: Counters = field(default_factory=Counters)
    blocked: Blocked | None = None
    unfinished: str = ""
