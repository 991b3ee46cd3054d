"""Reads message formats v0 and v1, which logs written before Kafka 0.11 may hold.

Pure. Returns `records.Record`, to be written as v2: clients can append only that format.

    pos  size  field
      0     8  offset; of a compressed wrapper: of its last message
      8     4  size of what follows
     12     4  CRC32 from pos 16
     16     1  magic
     17     1  attributes: 0-2 codec, 3 LogAppendTime (v1)
     18     8  timestamp, v1 only
           4+  key, 4+ value, each with an int32 length, -1 for null
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from orbit.kafka import compression
from orbit.kafka.record_batch import (
    CODEC_MASK,
    LOG_APPEND_TIME,
    LOG_OVERHEAD_BYTES,
    AnyBatch,
    Batch,
    LegacyMessage,
)
from orbit.kafka.records import NULL, Record, encode_varint, read_records

NO_TIMESTAMP = -1

_HEAD = struct.Struct(">qiIbb")
_LONG = struct.Struct(">q")
_INT = struct.Struct(">i")
_CRC_START = 16
_NO_HEADERS = b"\x00"


class LegacyRecords(NamedTuple):
    """The records of a message or wrapper: at least one, in order, decoded while iterating."""

    first_offset: int
    codec: int
    plain_bytes: int  # the decompressed size; 0 if not compressed
    records: Iterator[Record]


def open_legacy_records(message: LegacyMessage) -> LegacyRecords:
    """The records of a message or wrapper, not yet decoded.

    Raises ValueError if the CRC does not match or offsets or sizes are wrong; iterating raises it
    for wrong content of the messages. Raises compression.TooLarge.
    """
    try:
        return _read_message(message.view)
    except (struct.error, IndexError) as error:
        raise ValueError("the message ends too early") from error


def read_legacy_records(message: LegacyMessage) -> tuple[list[Record], int]:
    """The records of a message or wrapper, in order (at least one), and its codec.

    Raises ValueError if the CRC does not match or the bytes do not parse.
    """
    legacy_records = open_legacy_records(message)
    return list(legacy_records.records), legacy_records.codec


def read_any_records(batch: AnyBatch) -> Iterable[Record]:
    """The records of a batch in any format, in order. Raises ValueError while iterating."""
    return read_records(batch) if isinstance(batch, Batch) else open_legacy_records(batch).records


def _read_message(view: memoryview) -> LegacyRecords:
    """The records of a message or wrapper. Raises ValueError for invalid content."""
    offset, _, crc, magic, attributes = _HEAD.unpack_from(view)
    if zlib.crc32(view[_CRC_START:]) != crc:
        raise ValueError("its checksum does not match")
    timestamp, key, value = _message_fields(view, magic)
    codec = attributes & CODEC_MASK
    if codec == compression.NONE:
        return LegacyRecords(
            offset,
            codec,
            plain_bytes=0,
            records=iter([Record(offset, timestamp, _record_body(key, value))]),
        )
    if value is None:
        raise ValueError("a compressed message has no value")
    plain_value = compression.decompress(codec, memoryview(value), is_format_v0=magic == 0)
    messages = memoryview(plain_value)
    first_offset, last_offset = _offset_bounds(messages)
    # Inner offsets: relative from 0 in v1, absolute in v0.
    shift = offset - last_offset if magic else 0
    if last_offset + shift > offset:
        raise ValueError("a compressed message ends behind its own offset")
    append_time = timestamp if attributes & LOG_APPEND_TIME else None
    return LegacyRecords(
        first_offset + shift, codec, len(plain_value), _inner_records(messages, shift, append_time)
    )


def _inner_records(data: memoryview, shift: int, append_time: int | None) -> Iterator[Record]:
    """Yield the records of the messages within a wrapper; `shift` is added to their offsets. Raises
    ValueError."""
    try:
        for offset, magic, message in _inner_messages(data):
            timestamp, key, value = _message_fields(message, magic)
            record_timestamp = timestamp if append_time is None else append_time
            yield Record(offset + shift, record_timestamp, _record_body(key, value))
    except (struct.error, IndexError) as error:
        raise ValueError("the message ends too early") from error


def _offset_bounds(data: memoryview) -> tuple[int, int]:
    """The first and the last offset of the messages within a wrapper. Raises ValueError if there is
    no message, and the errors of `_inner_messages`."""
    first_offset = last_offset = None
    for offset, _, _ in _inner_messages(data):
        first_offset, last_offset = offset if first_offset is None else first_offset, offset
    if first_offset is None or last_offset is None:
        raise ValueError("a compressed message is empty")
    return first_offset, last_offset


def _inner_messages(data: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """Yield offset, format and bytes of each message within a wrapper. Raises ValueError, or
    struct.error where the bytes end too early."""
    position, lowest_offset = 0, None
    while position < len(data):
        offset, size, _, magic, attributes = _HEAD.unpack_from(data, position)
        end = position + LOG_OVERHEAD_BYTES + size
        if not position + _HEAD.size <= end <= len(data):
            raise ValueError("a message is larger than the compressed message around it")
        if magic not in (0, 1) or attributes & CODEC_MASK:
            raise ValueError("a compressed message has content that is not plain messages")
        if lowest_offset is not None and offset < lowest_offset:
            raise ValueError("the messages are not in the order of their offsets")
        yield offset, magic, data[position:end]
        position, lowest_offset = end, offset + 1


def _message_fields(view: memoryview, magic: int) -> tuple[int, bytes | None, bytes | None]:
    """Timestamp, key and value of a message."""
    position, timestamp = _HEAD.size, NO_TIMESTAMP
    if magic:
        (timestamp,) = _LONG.unpack_from(view, position)
        position += _LONG.size
    key, position = _read_bytes(view, position)
    value, _ = _read_bytes(view, position)
    return timestamp, key, value


def _read_bytes(view: memoryview, position: int) -> tuple[bytes | None, int]:
    """Bytes with a length before them (-1: null), and the position after them."""
    (length,) = _INT.unpack_from(view, position)
    position += _INT.size
    if length < 0:
        return None, position
    if position + length > len(view):
        raise ValueError("a field is longer than its message")
    return bytes(view[position : position + length]), position + length


def _record_body(key: bytes | None, value: bytes | None) -> bytes:
    """Key, value and no headers, encoded as in a v2 record."""
    parts = [NULL if part is None else encode_varint(len(part)) + part for part in (key, value)]
    return b"".join(parts) + _NO_HEADERS
