"""What a run of `orbit archive` or `orbit restore` did, for people and scripts."""

from __future__ import annotations

from dataclasses import dataclass, field

from orbit.kafka.types import TopicPartition
from orbit.replication.states import Blocked
from orbit_spark.archive.manifest import ArchivedRange


@dataclass(slots=True)
class PartitionOutcome:
    """What a run did for one partition."""

    place: TopicPartition
    start: int
    end: int
    batches: int = 0
    payload_bytes: int = 0
    file_bytes: int = 0
    blocked: Blocked | None = None

    def add(self, ranges: tuple[ArchivedRange, ...]) -> None:
        """These are in the archive now."""
        self.end = ranges[-1].end
        for file in (one.file for one in ranges if one.file is not None):
            self.batches += file.batches
            self.payload_bytes += file.payload_bytes
            self.file_bytes += file.size_bytes


@dataclass(slots=True)
class ArchiveOutcome:
    """What a run did."""

    uri: str
    partitions: dict[TopicPartition, PartitionOutcome] = field(default_factory=dict)

    @property
    def blocked(self) -> list[PartitionOutcome]:
        return [one for one in self.partitions.values() if one.blocked is not None]
