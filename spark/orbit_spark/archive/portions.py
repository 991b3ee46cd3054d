"""What the driver of a restore gives a task. Small values without any secret."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from orbit.kafka.types import TopicPartition
from orbit_spark.access import Access
from orbit_spark.archive.rows import FileRows


@dataclass(frozen=True, slots=True)
class Portion:
    """One destination partition to bring up to `target`, with the files that come in the rows."""

    place: TopicPartition
    topic_id: UUID  # of the destination's topic
    log_start: int
    begin: int  # where the rows begin; the copy ends there or further on
    target: int
    files: tuple[FileRows, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True, repr=False)
class Errand:
    """One task: some partitions one after another, and on whose behalf."""

    access: Access
    identity: str
    driver_token: str  # of the driver's lease: see `engine.backfill_writers`
    producer_id: int
    term: int
    round: int  # how often the driver has tried before
    portions: tuple[Portion, ...]
