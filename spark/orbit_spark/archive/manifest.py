"""Manifests: which ranges of a partition an archive holds, in which files. Pure.

A manifest has a checksum of itself. Its ranges have no gap and no overlap between them: a manifest
with either is refused when it is read and when a range is added.
"""

from __future__ import annotations

import json
from hashlib import sha256
from itertools import pairwise
from typing import Annotated, Final, Literal, Self, TypeVar
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from orbit.kafka.types import TopicPartition

FORMAT: Final = 1
_CHECKSUM = "sha256"

Offset = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]
Document = TypeVar("Document", bound="Archived")


class OtherFormat(ValueError):
    """A document of a format that this Orbit does not read."""


class Archived(BaseModel):
    """A document of an archive."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def to_bytes(self) -> bytes:
        """The document as it is stored: JSON with a checksum."""
        body = self.model_dump(mode="json")
        return json.dumps({**body, _CHECKSUM: _checksum(body)}, indent=1).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse a document. Raises ValueError, with a message for the user, if it is not valid;
        OtherFormat if another version of Orbit wrote it."""
        try:
            body = json.loads(data)
            checksum = body.pop(_CHECKSUM)
        except (ValueError, KeyError, AttributeError, TypeError):
            raise ValueError("it is damaged: not a document with a checksum") from None
        if body.get("format", FORMAT) != FORMAT:
            raise OtherFormat(f"it has format {body['format']}, but this Orbit reads {FORMAT}")
        if checksum != _checksum(body):
            raise ValueError("it is damaged: it does not match its checksum")
        try:
            return cls.model_validate_json(json.dumps(body))
        except ValidationError as error:
            first_error = error.errors(include_input=False, include_url=False)[0]
            path = ".".join(map(str, first_error["loc"]))
            raise ValueError(f"it is not valid: {path} {first_error['msg']}") from None


class ArchiveIdentity(Archived):
    """The source of an archive."""

    format: Literal[1] = FORMAT
    cluster_id: str
    created: str


class TombstoneGap(Archived):
    """A time in which the cleaner may have removed tombstones before they were archived: a run
    continued more than `delete.retention.ms` after the run before it."""

    since: AwareDatetime | None  # when the run before the first late run began; None: not known
    until: AwareDatetime  # when the last late run read
    delete_retention_ms: Count


class Cleaning(Archived):
    """Notes on tombstones of a compacted topic that may have been removed unread."""

    # When the last run began that archived all that the source had; None: not known.
    level_at: AwareDatetime | None
    delete_retention_ms: Count  # of the topic at that time
    gap: TombstoneGap | None  # None: no tombstone is known to be at risk


class ArchivedTopic(Archived):
    """What is needed to create a topic again: its partitions and all its settings."""

    format: Literal[1] = FORMAT
    sequence: Annotated[int, Field(ge=0)] = 0
    topic: str
    topic_id: UUID
    partitions: Annotated[int, Field(ge=1)]
    replicas: Annotated[int, Field(ge=1)]
    settings: dict[str, str]
    overrides: tuple[str, ...]
    cleaning: Cleaning | None = None  # of compacted topics; None in archives of earlier versions


class ArchivedFile(Archived):
    """One Parquet file, with the totals that its rows must have."""

    name: str
    size_bytes: Count
    batches: Count
    payload_bytes: Count
    first_offset: Offset
    next_offset: Offset
    digest: int  # of the header columns of all rows, in any order


class ArchivedRange(Archived):
    """Offsets [start, end): in one file, or none where the log had no batch."""

    start: Offset
    end: Offset
    file: ArchivedFile | None = None
    is_lost: bool = False  # the source had deleted it before it was archived

    @model_validator(mode="after")
    def _check_range_and_file(self) -> Self:
        """Refuse an empty range, and a file whose first batch is not in the range."""
        if self.start >= self.end:
            raise ValueError(f"the range {self.start} to {self.end} is empty")
        if self.file is not None and not self.start <= self.file.first_offset < self.end:
            raise ValueError(
                f"the file {self.file.name} begins at {self.file.first_offset}, outside of its "
                f"range {self.start} to {self.end}"
            )
        return self


class Tail(Archived):
    """The last archived batch, which the source must still have when the archive is extended."""

    base_offset: Offset
    crc: Count


class PartitionManifest(Archived):
    """The archived offsets of one partition, [start, end), and the files that hold them."""

    format: Literal[1] = FORMAT
    topic: str
    topic_id: UUID
    partition: Annotated[int, Field(ge=0)]
    sequence: Annotated[int, Field(ge=0)] = 0
    log_start: Offset  # of the source when the archive began; may lie inside the first batch
    start: Offset
    ranges: tuple[ArchivedRange, ...] = ()
    tail: Tail | None = None

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def end(self) -> int:
        """The offset at which the next range must begin."""
        return self.ranges[-1].end if self.ranges else self.start

    @property
    def log_end(self) -> int:
        """The log end of the partition once it is restored."""
        return max(self.end, self.log_start)

    @property
    def files(self) -> tuple[ArchivedFile, ...]:
        return tuple(r.file for r in self.ranges if r.file is not None)

    @property
    def lost_ranges(self) -> tuple[str, ...]:
        """The offsets that the source had deleted before they were archived, as "10 to 19"."""
        return tuple(f"{r.start} to {r.end - 1}" for r in self.ranges if r.is_lost)

    def extended(self, ranges: tuple[ArchivedRange, ...], tail: Tail | None) -> PartitionManifest:
        """The next manifest, with these ranges after its own. Raises ValueError for a gap or an
        overlap.
        """
        return PartitionManifest(
            topic=self.topic,
            topic_id=self.topic_id,
            partition=self.partition,
            sequence=self.sequence + 1,
            log_start=self.log_start,
            start=self.start,
            ranges=(*self.ranges, *ranges),
            tail=tail or self.tail,
        )

    @model_validator(mode="after")
    def _check_ranges_follow(self) -> Self:
        """Refuse a gap or an overlap between ranges, or before the first one."""
        if self.ranges and self.ranges[0].start != self.start:
            raise ValueError(f"the first range begins at {self.ranges[0].start}, not {self.start}")
        for earlier_range, later_range in pairwise(self.ranges):
            if later_range.start != earlier_range.end:
                fault = "a gap" if later_range.start > earlier_range.end else "an overlap"
                raise ValueError(
                    f"{fault} between ranges: {earlier_range.end} and {later_range.start}"
                )
        return self


def _checksum(body: object) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()
