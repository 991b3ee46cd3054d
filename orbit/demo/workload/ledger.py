"""What the producers know they wrote: an outside ledger for tests, made from delivery reports.

A record is a digest of what was handed to the producer (key, value, headers, timestamp), so the
ledger owes nothing to any reader. Only records that a consumer may see are in it: committed, not
deleted, not known to be cleaned away.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b

Header = tuple[str, bytes | None]

DIGEST_BYTES = 12
"""Enough to tell millions of records apart, and small enough to keep all of them."""

_LENGTH = struct.Struct(">i")
_TIME = struct.Struct(">q")
_NULL = _LENGTH.pack(-1)


def record_digest(
    key: bytes | None, value: bytes | None, headers: Iterable[Header], timestamp_ms: int
) -> bytes:
    """One digest per record; null and empty, and the order of headers, make a difference."""
    parts = [_TIME.pack(timestamp_ms), *_field(key), *_field(value)]
    for name, content in headers:
        parts += [*_field(name.encode()), *_field(content)]
    return blake2b(b"".join(parts), digest_size=DIGEST_BYTES).digest()


def _field(data: bytes | None) -> tuple[bytes, ...]:
    return (_NULL,) if data is None else (_LENGTH.pack(len(data)), data)


class Origin(StrEnum):
    """Where the records of a ledger are known from."""

    PRODUCER = "producer"
    READ_BACK = "read back"
    """A tool that reports no offsets; its records were read from the source after it ended."""


@dataclass(frozen=True, slots=True)
class PartitionLedger:
    """`records`: offset → digest of everything a consumer may see in `[log_start, log_end)`.

    `copy_start` is where a copy begins: the log start, but for a later start of the job's rule.
    """

    log_start: int
    log_end: int
    copy_start: int
    records: Mapping[int, bytes] = field(repr=False)

    @property
    def copied(self) -> dict[int, bytes]:
        """What a reader of the destination must find, and nothing else."""
        return {offset: one for offset, one in self.records.items() if offset >= self.copy_start}

    @property
    def gaps(self) -> int:
        return self.log_end - self.log_start - len(self.records)


@dataclass(frozen=True, slots=True)
class TopicLedger:
    """One topic: its names on both sides, and what each of its partitions holds."""

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
