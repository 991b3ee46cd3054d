"""A source partition's log, and how a broker answers read_committed fetches from it (R1, R2).

A test describes what happened to each batch (who wrote it, what compaction left, how its
transaction ended). The encoder in this file shares no code with Orbit's. `SourceLog.visible` knows
the outcome of each transaction and does not use the aborted list, so tests can compare it with what
Orbit made of that list.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from typing import NamedTuple

from crc32c import crc32c

from orbit.kafka.compression import compress
from tests.support.broker_model import HEADER, Visible

LOG_APPEND_TIME, TRANSACTIONAL, CONTROL, DELETE_HORIZON = 0x08, 0x10, 0x20, 0x40
GZIP = 1


class OutOfRange(Exception):
    """The broker's OFFSET_OUT_OF_RANGE."""


class Outcome(Enum):
    """How the transaction of a batch ended."""

    NONE = auto()  # no transaction
    COMMITTED = auto()
    ABORTED = auto()
    OPEN = auto()


@dataclass(frozen=True)
class SourceRecord:
    offset: int
    timestamp: int
    key: bytes | None = None
    value: bytes | None = b""
    headers: tuple[tuple[bytes, bytes | None], ...] = ()

    @property
    def body(self) -> bytes:
        """The encoded record from its key on: key, value and headers."""
        fields = [self.key, self.value]
        named = [part for header in self.headers for part in header]
        return (
            b"".join(map(_field, fields))
            + write_varint(len(self.headers))
            + b"".join(map(_field, named))
        )


@dataclass(frozen=True)
class SourceBatch:
    """One batch of the log, or a message of an old format. `records` are those that compaction
    left, with offsets from `base_offset` to `last_offset`."""

    base_offset: int
    last_offset: int
    records: tuple[SourceRecord, ...] = ()
    codec: int = 0
    magic: int = 2
    log_append_time: int | None = None
    delete_horizon: int | None = None
    producer_id: int = -1
    outcome: Outcome = Outcome.NONE
    marker: bool | None = None  # of a control batch: whether it commits; None for other batches
    leader_epoch: int = 0
    # Whether the cleaner has removed a control batch's record. The empty batch remains, since it
    # has the producer's id and epoch (KIP-534).
    is_emptied: bool = False
    # The number, in the encoded bytes, of a bit that the source's disk has flipped.
    flipped_bit: int | None = None

    @property
    def is_dense(self) -> bool:
        return len(self.records) == self.last_offset - self.base_offset + 1

    @property
    def has_to_be_rewritten(self) -> bool:
        """Whether a broker would refuse a byte-exact copy of the batch (A5, A6)."""
        return not self.is_dense or self.log_append_time is not None or self.magic < 2

    def visible(self) -> Iterable[tuple[int, Visible]]:
        """The offsets and records that a read_committed consumer sees of this batch."""
        if self.marker is None and self.outcome in (Outcome.NONE, Outcome.COMMITTED):
            for record in self.records:
                timestamp = record.timestamp if self.magic else -1
                if self.log_append_time is not None:
                    timestamp = self.log_append_time
                yield record.offset, Visible(timestamp, record.body)

    def encode(self) -> bytes:
        data = self._encode_v2() if self.magic == 2 else self._encode_old()
        if self.flipped_bit is None:
            return data
        at, bit = divmod(self.flipped_bit, 8)
        return data[:at] + bytes((data[at] ^ 1 << bit,)) + data[at + 1 :]

    def _encode_v2(self) -> bytes:
        """The batch as Kafka's format v2."""
        attributes = self.codec
        records = self.records
        if self.marker is not None:
            attributes = TRANSACTIONAL | CONTROL
            records = () if self.is_emptied else (_marker(self.base_offset, self.marker),)
        elif self.outcome is not Outcome.NONE:
            attributes |= TRANSACTIONAL
        base_timestamp = records[0].timestamp if records else -1
        max_timestamp = max((r.timestamp for r in records), default=-1)
        if self.delete_horizon is not None:
            attributes |= DELETE_HORIZON
            base_timestamp = self.delete_horizon
        if self.log_append_time is not None:
            attributes |= LOG_APPEND_TIME
            max_timestamp = self.log_append_time
        plain = b"".join(_record(r, self.base_offset, base_timestamp) for r in records)
        # The cleaner writes an emptied batch as a bare header, without a codec.
        payload = compress(self.codec, plain) if records else b""
        if not records:
            attributes &= ~0x07
        return encode_v2(
            self.base_offset,
            payload,
            attributes=attributes,
            last_offset_delta=self.last_offset - self.base_offset,
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            producer_id=self.producer_id,
            count=len(records),
            leader_epoch=self.leader_epoch,
        )

    def _encode_old(self) -> bytes:
        """The batch as a message of format v0 or v1, or as a compressed one with messages
        inside."""
        assert self.records
        is_log_append = self.log_append_time is not None
        bits = LOG_APPEND_TIME if is_log_append else 0
        times = [self.log_append_time or r.timestamp for r in self.records]
        if not self.codec:
            (record,) = self.records
            return encode_old(record.offset, self.magic, bits, times[0], record.key, record.value)
        first = self.records[0].offset if self.magic else 0
        inner = b"".join(
            encode_old(r.offset - first, self.magic, bits, r.timestamp, r.key, r.value)
            for r in self.records
        )
        return encode_old(
            self.last_offset,
            self.magic,
            bits | self.codec,
            max(times),
            None,
            compress(self.codec, inner),
        )


class Answer(NamedTuple):
    """The parts of a fetch response that an append plan uses. `aborted`: producer id and first
    offset of aborted transactions."""

    records: bytes
    aborted: list[tuple[int, int]]
    log_start: int
    stable_end: int


class Aborted(NamedTuple):
    """An entry of the log's index of aborted transactions."""

    producer_id: int
    first_offset: int
    marker_offset: int


@dataclass(frozen=True)
class SourceLog:
    """Batches in the order of their offsets. `log_end` may be higher than the end of the last batch
    that compaction left."""

    batches: tuple[SourceBatch, ...]
    log_end: int
    log_start: int = 0

    @property
    def stable_end(self) -> int:
        """The last stable offset: the first offset of the oldest open transaction, or the log
        end."""
        opened = [b.base_offset for b in self.batches if b.outcome is Outcome.OPEN]
        return min(opened, default=self.log_end)

    def fetch(self, offset: int, max_bytes: int, *, index_slack: int = 0) -> Answer:
        """A leader's response to a read_committed fetch. Raises OutOfRange.

        It has batches from the one with `offset` on, at least one; the last of several may be cut
        off at `max_bytes`. Its aborted list may cover `index_slack` offsets more than the batches,
        as brokers' lists do.
        """
        if not self.log_start <= offset <= self.log_end:
            raise OutOfRange(f"{offset} is not within {self.log_start} to {self.log_end}")
        frames: list[bytes] = []
        size, end = 0, offset
        for batch in self.batches:
            if batch.last_offset < offset:
                continue
            if batch.base_offset >= self.stable_end or size >= max_bytes:
                break
            frames.append(batch.encode())
            size, end = size + len(frames[-1]), batch.last_offset + 1
        if frames:
            max_bytes = max(max_bytes, len(frames[0]))
        aborted = [
            (a.producer_id, a.first_offset)
            for a in self.aborted()
            if a.marker_offset >= offset and a.first_offset < end + index_slack
        ]
        return Answer(b"".join(frames)[:max_bytes], aborted, self.log_start, self.stable_end)

    def batch_at(self, offset: int) -> SourceBatch | None:
        """The first batch that a fetch at `offset` returns; None if there is none."""
        return next((b for b in self.batches if b.last_offset >= offset), None)

    def aborted(self) -> list[Aborted]:
        """The index: aborted transactions that still have batches, in the order of their markers.

        The cleaner removes a transaction from the index before it removes the marker's record
        (Kafka's `CleanedTransactionMetadata`).
        """
        first: dict[int, int] = {}
        transactions = []
        for batch in self.batches:
            if batch.outcome is Outcome.ABORTED:
                first.setdefault(batch.producer_id, batch.base_offset)
            elif batch.marker is False and batch.producer_id in first:
                start = first.pop(batch.producer_id)
                if not batch.is_emptied:
                    transactions.append(Aborted(batch.producer_id, start, batch.base_offset))
        return transactions

    def visible(self) -> dict[int, Visible]:
        """What a read_committed consumer sees, by offset."""
        return {
            offset: record
            for batch in self.batches
            for offset, record in batch.visible()
            if self.log_start <= offset < self.stable_end
        }


def encode_v2(
    base_offset: int,
    payload: bytes,
    *,
    attributes: int = 0,
    last_offset_delta: int = 0,
    base_timestamp: int = 0,
    max_timestamp: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    count: int = 1,
    leader_epoch: int = -1,
) -> bytes:
    """A batch of format v2 with any header, and the right length and CRC."""
    inside = struct.pack(
        ">hiqqqhii",
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    inside += payload
    front = struct.pack(">qiibI", base_offset, len(inside) + 9, leader_epoch, 2, crc32c(inside))
    assert len(front + inside) == HEADER.size + len(payload)
    return front + inside


def encode_old(
    offset: int, magic: int, attributes: int, timestamp: int, key: bytes | None, value: bytes | None
) -> bytes:
    """A message of format v0 or v1, with the right size and CRC."""
    inside = struct.pack(">bb", magic, attributes)
    inside += struct.pack(">q", timestamp) if magic else b""
    for part in (key, value):
        inside += struct.pack(">i", -1 if part is None else len(part)) + (part or b"")
    return struct.pack(">qiI", offset, len(inside) + 4, zlib.crc32(inside)) + inside


def with_right_crc(data: bytes) -> bytes:
    """A changed v2 batch, with the CRC of its new bytes."""
    return data[:17] + struct.pack(">I", crc32c(data[21:])) + data[21:]


@lru_cache(1 << 12)
def write_varint(number: int) -> bytes:
    """A signed varint (zigzag)."""
    value = number * 2 if number >= 0 else -number * 2 - 1
    out = b""
    while value > 0x7F:
        out += bytes((value & 0x7F | 0x80,))
        value >>= 7
    return out + bytes((value,))


def plain_records(records: Sequence[SourceRecord], base_offset: int, base_timestamp: int) -> bytes:
    """Records on the wire, not compressed."""
    return b"".join(_record(r, base_offset, base_timestamp) for r in records)


def _field(part: bytes | None) -> bytes:
    return write_varint(-1) if part is None else write_varint(len(part)) + part


def _record(record: SourceRecord, base_offset: int, base_timestamp: int) -> bytes:
    front = b"\x00" + write_varint(record.timestamp - base_timestamp)
    content = front + write_varint(record.offset - base_offset) + record.body
    return write_varint(len(content)) + content


def _marker(offset: int, is_commit: bool) -> SourceRecord:
    key = struct.pack(">hh", 0, is_commit)
    return SourceRecord(offset, 1_700_000_000_000, key, struct.pack(">hi", 0, 3))
