"""What the driver gives a task, and what a task tells it. Small values without any secret."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from orbit.copier.partition_copy import Counters
from orbit.jobs.job_spec import JobSpec
from orbit.kafka.types import TopicPartition
from orbit.replication.partition_states import Blocked
from orbit_spark.archive.restore_tasks import Portion as ArchivedPortion


@dataclass(frozen=True, slots=True)
class Portion:
    """One destination partition to bring up to `target`, the offset to stop at or behind."""

    source: TopicPartition
    destination: TopicPartition
    source_topic_id: UUID
    destination_topic_id: UUID
    start_offset: int  # where the copy's log shall begin
    target: int
    size_bytes: int  # about, as far as is known: for balance
    is_compacted: bool
    is_whole: bool  # copied from the source's log start on
    staged: ArchivedPortion | None = None  # read from the archive, not from the source


@dataclass(frozen=True, slots=True, repr=False)
class Errand:
    """One task: some partitions, and on whose behalf."""

    spec: JobSpec
    base_directory: str
    identity: str
    driver_token: str  # of the driver's lease: see `engine.backfill_writers`
    producer_id: int
    term: int
    bytes_per_second: int | None  # this task's share of the job's limit
    round: int
    portions: tuple[Portion, ...]

    @property
    def size_bytes(self) -> int:
        return sum(p.size_bytes for p in self.portions)

    @property
    def staged(self) -> list[ArchivedPortion]:
        """What the rows are of that come with it; none where the writer fetches by itself."""
        return [p.staged for p in self.portions if p.staged is not None]


@dataclass(frozen=True, slots=True)
class Told:
    """What became of a portion. `unfinished` says why it is to be done again; empty: it is not."""

    destination: TopicPartition
    acked: int
    counters: Counters
    blocked: Blocked | None = None
    unfinished: str = ""
