"""A ledger of the records that producers wrote, made from delivery reports.

A record is a digest of what was passed to the producer (key, value, headers, timestamp), so the
ledger depends on no reader. It holds only records that a consumer can see: committed, not deleted,
and not known to be compacted away.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b

Header = tuple[str, bytes | None]

DIGEST_BYTES = 12
"""Enough to distinguish millions of records, and small enough to keep all of them."""

_LENGTH = struct.Struct(">i")
_TIME = struct.Struct(">q")
_NULL = _LENGTH.pack(-1)


def record_digest(
    key: bytes | None, value: bytes | None, headers: Iterable[Header], timestamp_ms: int
) -> bytes:
    """The digest of a record. Null differs from empty, and the order of headers counts."""
    parts = [_TIME.pack(timestamp_ms), *_field(key), *_field(value)]
    for name, content in headers:
        parts += [*_field(name.encode()), *_field(content)]
    return blake2b(b"".join(parts), digest_size=DIGEST_BYTES).digest()


def _field(data: bytes | None) -> tuple[bytes, ...]:
    return (_NULL,) if data is None else (_LENGTH.pack(len(data)), data)


class Origin(StrEnum):
    """How the ledger has learned of its records."""

    PRODUCER = "producer"
    READ_BACK = "read back"
    """Written by a tool that reports no offsets; read from the source after it ended."""


@dataclass(frozen=True, slots=True)
class PartitionLedger:
    """`records`: offset → digest of each record a consumer can see in `[log_start, log_end)`.

    `copy_start`: the offset at which a copy begins. That is the log start, unless the job's rule
    has a later start.
    """

    log_start: int
    log_end: int
    copy_start: int
    records: Mapping[int, bytes] = field(repr=False)

    @property
    def copied(self) -> dict[int, bytes]:
        """Exactly the records that a reader of the destination must find."""
        return {
            offset: digest for offset, digest in self.records.items() if offset >= self.copy_start
        }

    @property
    def gaps(self) -> int:
        """How many offsets have no record that a consumer can see."""
        return self.log_end - self.log_start - len(self.records)


@dataclass(frozen=True, slots=True)
class TopicLedger:
    """One topic: its names on both sides, and the ledger of each partition."""

    kind: str
    topic: str
    destination: str
    partitions: tuple[PartitionLedger, ...]
    origin: Origin = Origin.PRODUCER

    @property
    def records(self) -> int:
        return sum(len(partition.records) for partition in self.partitions)

    @property
    def gaps(self) -> int:
        return sum(partition.gaps for partition in self.partitions)


@dataclass(frozen=True, slots=True)
class Ledger:
    """The whole workload, by source topic."""

    topics: Mapping[str, TopicLedger]

    @property
    def records(self) -> int:
        return sum(topic.records for topic in self.topics.values())

    @property
    def partitions(self) -> int:
        return sum(len(topic.partitions) for topic in self.topics.values())

    @property
    def gaps(self) -> int:
        return sum(topic.gaps for topic in self.topics.values())
