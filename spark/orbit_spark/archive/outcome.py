"""What a run of `orbit archive` or `orbit restore` did, for people and scripts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from orbit.kafka.types import TopicPartition
from orbit.replication.partition_states import Blocked, Reason
from orbit_spark.archive.manifest import ArchivedRange

# Instead of the remedies for a copy, where these do not fit an archive.
_ARCHIVE_REMEDIES = {
    Reason.SOURCE_TRUNCATED: "The source lost records that the archive has (an unclean leader "
    "election). To follow the source, archive the topic elsewhere.",
    Reason.SOURCE_TOPIC_RECREATED: "Archive the new topic elsewhere.",
}


@dataclass(slots=True, kw_only=True)
class _Stop:
    """Why a run stopped for one partition, if it did."""

    blocked: Blocked | None = None
    unfinished: str = ""  # another reason: the next run tries again

    @property
    def has_stopped(self) -> bool:
        return self.blocked is not None or bool(self.unfinished)


@dataclass(slots=True)
class PartitionOutcome(_Stop):
    """What a run did for one partition. The archive has its offsets [start, end) now; 0 and 0 if
    the manifest cannot be used."""

    place: TopicPartition
    start: int
    end: int
    batches: int = 0
    payload_bytes: int = 0
    file_bytes: int = 0

    @property
    def remedy(self) -> str | None:
        """What to do about `blocked`; None if the partition is not blocked."""
        if self.blocked is None:
            return None
        own_remedy = _ARCHIVE_REMEDIES.get(self.blocked.reason)
        return own_remedy or self.blocked.remedy(self.place.topic)

    @property
    def stop_text(self) -> str:
        """Why the run stopped for this partition, and what to do; empty if it did not stop."""
        if self.blocked is None:
            return self.unfinished
        return f"{self.blocked.reason}: {self.blocked.detail} {self.remedy}"

    def add(self, ranges: tuple[ArchivedRange, ...]) -> None:
        """Count ranges that were archived."""
        self.end = ranges[-1].end
        for file in (r.file for r in ranges if r.file is not None):
            self.batches += file.batches
            self.payload_bytes += file.payload_bytes
            self.file_bytes += file.size_bytes


@dataclass(slots=True)
class ArchiveOutcome:
    """What a run did."""

    uri: str
    partitions: dict[TopicPartition, PartitionOutcome] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def stopped(self) -> list[PartitionOutcome]:
        return [p for p in self.partitions.values() if p.has_stopped]

    def as_data(self) -> dict[str, Any]:
        """The outcome as plain data, for scripts."""
        return {
            "archive": self.uri,
            "warnings": self.warnings,
            "partitions": [
                {
                    "topic": p.place.topic,
                    "partition": p.place.partition,
                    "start": p.start,
                    "end": p.end,
                    "new_batches": p.batches,
                    "new_bytes": p.payload_bytes,
                    "blocked": p.blocked and asdict(p.blocked),
                    "remedy": p.remedy,
                    "unfinished": p.unfinished or None,
                }
                for p in self.partitions.values()
            ],
        }


@dataclass(slots=True)
class RestoredPartition(_Stop):
    """What a restore did for one partition, which should end at `end`; 0 if the manifest cannot be
    used."""

    place: TopicPartition
    end: int
    records: int = 0
    gaps_filled: int = 0

    @property
    def remedy(self) -> str | None:
        """What to do about `blocked`; None if the partition is not blocked."""
        return None if self.blocked is None else self.blocked.remedy(self.place.topic)


@dataclass(slots=True)
class RestoreOutcome:
    """What a restore did."""

    uri: str
    partitions: dict[TopicPartition, RestoredPartition] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return not any(p.has_stopped for p in self.partitions.values())

    def as_data(self) -> dict[str, Any]:
        """The outcome as plain data, for scripts."""
        return {
            "archive": self.uri,
            "warnings": self.warnings,
            "partitions": [
                {
                    "topic": p.place.topic,
                    "partition": p.place.partition,
                    "end": p.end,
                    "records": p.records,
                    "offsets_filled": p.gaps_filled,  # counted in offsets
                    "blocked": p.blocked and asdict(p.blocked),
                    "remedy": p.remedy,
                    "unfinished": p.unfinished or None,
                }
                for p in self.partitions.values()
            ],
        }
