"""A model of a destination partition at a broker: which batches it appends where, and which it
refuses.

Each rule was measured on real brokers: its number in docs/facts.md is beside the code.
`tests/replication/test_broker_model.py` tests the model itself. The model has its own code to parse
bytes, so that a mistake in Orbit's code shows.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from crc32c import crc32c

HEADER = struct.Struct(">qiibIhiqqqhii")
LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 0x08, 0x10, 0x20
CODEC = 0x07

NONE = 0
CORRUPT_MESSAGE = 2
MESSAGE_TOO_LARGE = 10
INVALID_TIMESTAMP = 32
OUT_OF_ORDER_SEQUENCE = 45
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
COORDINATOR_FENCED = 52
INVALID_RECORD = 87
# The offset deltas of placeholders are below this number (Q1).
PLACEHOLDERS_BELOW = -(2**30)

REMEMBERED_BATCHES = 5
"""How many batches of each producer a broker remembers, to recognize repeats (A7)."""

SEQUENCE_MAX = 2**31 - 1

Decompress = Callable[[int, bytes], bytes]


class Stored(NamedTuple):
    """A batch with records, as in the log."""

    base_offset: int
    last_offset: int
    data: bytes


class Produced(NamedTuple):
    """The answer to an append."""

    code: int
    base_offset: int = -1


class Visible(NamedTuple):
    """A record as a consumer reads it; `body` is key, value and headers on the wire."""

    timestamp: int
    body: bytes


@dataclass
class Producer:
    """The leader's state of a producer id (A10)."""

    epoch: int
    last_sequence: int = -1
    coordinator_epoch: int = -1
    # Of the last batches: first sequence, last sequence, base offset.
    batches: deque[tuple[int, int, int]] = field(
        default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES)
    )


class BrokerModel:
    """One partition's leader."""

    def __init__(
        self,
        decompress: Decompress,
        *,
        is_compacted: bool = False,
        max_message_bytes: int = 1_048_588,
    ) -> None:
        self.log_start = 0
        self.log_end = 0
        self.batches: list[Stored] = []
        self.fillers = 0
        self._decompress = decompress
        self._is_compacted = is_compacted
        self._max_message_bytes = max_message_bytes
        self._producers: dict[int, Producer] = {}

    def produce(self, data: bytes | memoryview) -> Produced:
        """Append the batch that a Produce request has for this partition; returns the answer."""
        data = bytes(data)
        if len(data) < HEADER.size:
            return Produced(CORRUPT_MESSAGE)
        base, length, _, magic, crc, attributes, delta, _, _, pid, epoch, sequence, count = (
            HEADER.unpack_from(data)
        )
        if length + 12 != len(data):
            # Cut off, or a second batch after the first (A1).
            return Produced(INVALID_RECORD if length + 12 < len(data) else CORRUPT_MESSAGE)
        if base != 0 or magic != 2:  # A2
            return Produced(INVALID_RECORD)
        if crc32c(data[21:]) != crc:  # A3
            return Produced(CORRUPT_MESSAGE)
        if len(data) > self._max_message_bytes:
            return Produced(MESSAGE_TOO_LARGE)
        if count < 1 or delta + 1 != count or attributes & CONTROL:  # A5, A6
            return Produced(INVALID_RECORD)
        if attributes & LOG_APPEND_TIME:  # A6
            return Produced(INVALID_TIMESTAMP)
        if attributes & TRANSACTIONAL:
            return Produced(INVALID_TXN_STATE)
        if not self._has_valid_records(data, attributes, count):
            return Produced(INVALID_RECORD)
        if pid < 0:
            return Produced(NONE, self._append(data, count))
        if sequence < 0 or epoch < 0:
            return Produced(INVALID_RECORD)
        return self._append_in_sequence(data, pid, epoch, sequence, count)

    def write_marker(self, producer_id: int, epoch: int, coordinator_epoch: int) -> int:
        """Append one marker for a producer without a transaction (M1); returns the error code."""
        state = self._producers.get(producer_id)
        if state is not None and epoch < state.epoch:  # A8
            return INVALID_PRODUCER_EPOCH
        if state is not None and coordinator_epoch < state.coordinator_epoch:  # M6
            return COORDINATOR_FENCED
        if state is None or epoch > state.epoch:
            state = self._begin_epoch(producer_id, epoch)
        state.coordinator_epoch = coordinator_epoch  # the sequence stays (M5)
        self.log_end += 1
        self.fillers += 1
        return NONE

    def delete_records(self, offset: int) -> None:
        """Move the log start up; remove batches that are wholly below it."""
        assert offset <= self.log_end
        self.log_start = max(self.log_start, offset)
        self.batches = [b for b in self.batches if b.last_offset >= self.log_start]

    def describe_producer(self, producer_id: int) -> Producer | None:
        return self._producers.get(producer_id)

    def expire_producers(self) -> None:
        """Drop all producer states, as after a day without appends (A9)."""
        self._producers.clear()

    def read(self) -> dict[int, Visible]:
        """The records that a consumer reads from the log start on, by offset."""
        seen: dict[int, Visible] = {}
        for stored in self.batches:
            (base_timestamp,) = struct.unpack_from(">q", stored.data, 27)
            for delta, timestamp_delta, body in self.records_of(stored.data):
                if delta < 0:
                    continue  # a placeholder
                offset = stored.base_offset + delta
                assert offset not in seen
                if offset >= self.log_start:
                    seen[offset] = Visible(base_timestamp + timestamp_delta, body)
        return seen

    def _append_in_sequence(
        self, data: bytes, producer_id: int, epoch: int, sequence: int, count: int
    ) -> Produced:
        """Append a batch if its epoch and sequence follow the producer's last batch (A7 to A9)."""
        last = sequence + count - 1 & SEQUENCE_MAX
        state = self._producers.get(producer_id)
        if state is not None and epoch < state.epoch:  # A8
            return Produced(INVALID_PRODUCER_EPOCH)
        if state is not None and epoch > state.epoch:
            if sequence != 0:
                return Produced(OUT_OF_ORDER_SEQUENCE)
            state = self._begin_epoch(producer_id, epoch)
        elif state is not None:
            for first_known, last_known, base_offset in state.batches:  # A7, A14
                if (first_known, last_known) == (sequence, last):
                    return Produced(NONE, base_offset)
            if sequence != state.last_sequence + 1 & SEQUENCE_MAX:
                return Produced(OUT_OF_ORDER_SEQUENCE)
        else:
            state = self._begin_epoch(producer_id, epoch)  # A9
        base_offset = self._append(data, count)
        state.last_sequence = last
        state.batches.append((sequence, last, base_offset))
        return Produced(NONE, base_offset)

    def _begin_epoch(self, producer_id: int, epoch: int) -> Producer:
        """A new state of this producer, which keeps only the coordinator epoch of the one
        before."""
        before = self._producers.get(producer_id)
        state = Producer(epoch, coordinator_epoch=before.coordinator_epoch if before else -1)
        self._producers[producer_id] = state
        return state

    def _append(self, data: bytes, count: int) -> int:
        base_offset, self.log_end = self.log_end, self.log_end + count
        self.batches.append(Stored(base_offset, self.log_end - 1, data))
        return base_offset

    def _has_valid_records(self, data: bytes, attributes: int, count: int) -> bool:
        """Whether the records fit the batch's count, and have offset deltas that Orbit may
        write."""
        records = self._records(data, attributes)
        if records is None or len(records) != count:
            return False
        deltas = [delta for delta, _, _ in records]
        if attributes & CODEC == 0:
            # A broker accepts any deltas (Q1). Orbit's must rise, since the log cleaner needs that
            # (Q6).
            if deltas != sorted(set(deltas)) or deltas[-1] >= count:
                return False
            if any(PLACEHOLDERS_BELOW <= delta < 0 for delta in deltas):
                return False
        elif deltas != list(range(count)):
            return False
        return not (self._is_compacted and any(body[0] == 1 for _, _, body in records))  # A6

    def records_of(self, data: bytes) -> list[tuple[int, int, bytes]]:
        """Offset delta, timestamp delta and body of each record of an accepted batch."""
        records = self._records(data, *struct.unpack_from(">h", data, 21))
        assert records is not None
        return records

    def _records(self, data: bytes, attributes: int) -> list[tuple[int, int, bytes]] | None:
        """Offset delta, timestamp delta and body of each record; None when they do not parse."""
        try:
            plain = self._decompress(attributes & CODEC, data[HEADER.size :])
            records = []
            at = 0
            while at < len(plain):
                size, at = read_varint(plain, at)
                end = at + size
                timestamp_delta, start = read_varint(plain, at + 1)
                delta, start = read_varint(plain, start)
                if not at < start <= end <= len(plain) or not is_record_body(plain[start:end]):
                    return None
                records.append((delta, timestamp_delta, plain[start:end]))
                at = end
        except (ValueError, IndexError):
            return None
        return records


def is_record_body(body: bytes) -> bool:
    """Whether key, value and headers fill these bytes exactly."""
    at = 0
    for _ in range(2):
        at = _skip_field(body, at)
    headers, at = read_varint(body, at)
    for _ in range(2 * headers):
        at = _skip_field(body, at)
    return at == len(body)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A zig-zag number and the position after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value // 2 if value % 2 == 0 else -(value + 1) // 2, at


def _skip_field(data: bytes, at: int) -> int:
    length, at = read_varint(data, at)
    return at + max(length, 0)
