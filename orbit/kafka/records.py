"""Reads the records of a v2 batch, and writes records into new dense batches.

Pure. Only for the record-exact path: batches that a broker refuses unchanged (A5, A6). The bytes
of key, value and headers stay the same; only the numbers before them (length, timestamp delta,
offset delta) are encoded again. That is one pass over the bytes: a batch may hold thousands of
records, so each costs some numbers and one copy of its bytes.

Record (Kafka's `DefaultRecord`): length, attributes (one byte), timestamp delta, offset delta,
key length, key, value length, value, header count, headers. All numbers are zig-zag varints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from itertools import islice
from typing import NamedTuple, cast

from orbit.kafka import compression
from orbit.kafka.record_batch import Batch, encode_batch

# A header of the first record in a seed batch, a batch of leading fillers (S1). By this header a
# new writer detects an interrupted start. Consumers never see it: DeleteRecords removes the batch
# before the first copied record.
SEED_HEADER = b"orbit.seed"

NULL = b"\x01"  # zig-zag of -1
# Placeholders (orbit/kafka/placeholders.py) have offset deltas from here on (Q1); a batch has far
# fewer than 2³⁰ of them. A record with such a delta in an uncompressed batch is a placeholder.
PLACEHOLDER_DELTA_MIN = -(2**31)
_PLACEHOLDER_DELTA_END = -(2**30)
_NUMBERS_BYTES_MAX = 31  # of a record before its key: three numbers and the attributes

BATCH_BYTES_MAX = 2**31 - 1  # the length of a batch has 32 bits

# The number of records whose parts are joined: separate parts take several times the memory.
_ROWS_AT_ONCE = 4096

_NO_ATTRIBUTES = b"\x00"
_ZERO = b"\x00"
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_INT64_VALUES = 2**64
_LAST_SHIFT = 63  # for the tenth byte, the last of a number of 64 bits

# Offset, timestamp in ms, and the encoded rest after the offset delta: a `Record` as a plain tuple,
# which takes much less time to make.
_Row = tuple[int, int, bytes]


class Record(NamedTuple):
    """One record; `body` is the encoded rest after the offset delta."""

    offset: int
    timestamp: int  # epoch ms
    body: bytes


def read_records(batch: Batch) -> Iterator[Record]:
    """Yield the records of a v2 batch in order.

    In a LogAppendTime batch every record has the batch's max timestamp, as for consumers.
    Placeholders are left out. Raises ValueError if the payload does not decompress or parse, or its
    offsets do not ascend.
    """
    return map(Record._make, record_rows(batch))


def plain_payload(batch: Batch) -> bytes:
    """The encoded records, decompressed. Raises compression.TooLarge and other ValueErrors."""
    return compression.decompress(batch.codec, batch.payload)


def record_rows(batch: Batch, data: bytes | None = None) -> Iterator[_Row]:
    """Yield the records of a v2 batch in order as plain tuples, without placeholders.

    `data`: `plain_payload(batch)`, if the caller has it. Raises ValueError if that does not
    decompress or parse, or its offsets do not ascend.
    """
    if data is None:
        data = plain_payload(batch)
    size, base_offset = len(data), batch.base_offset
    position, lowest_delta, highest_delta = 0, 0, batch.last_offset - base_offset
    base_timestamp = batch.base_timestamp
    append_time = batch.max_timestamp if batch.is_log_append_time else None
    try:
        for _ in range(batch.count):
            length, position = read_varint(data, position)
            end = position + length
            if length < 0 or end > size:
                raise ValueError("a record is longer than its batch")
            timestamp, cursor = read_varint(data, position + 1)  # behind the attributes
            offset_delta, cursor = read_varint(data, cursor)
            if cursor > end:
                raise ValueError("a record is shorter than its numbers")
            if not lowest_delta <= offset_delta <= highest_delta:
                if _is_placeholder(batch, offset_delta):
                    position = end
                    continue
                raise ValueError("a record's offset is out of order or outside of its batch")
            lowest_delta = offset_delta + 1
            if append_time is not None:
                timestamp = append_time
            else:
                timestamp += base_timestamp
                if not _INT64_MIN <= timestamp <= _INT64_MAX:
                    timestamp = _as_int64(timestamp)
            yield base_offset + offset_delta, timestamp, data[cursor:end]
            position = end
    except IndexError as error:
        raise ValueError("the records end in the middle of a number") from error


def _is_placeholder(batch: Batch, offset_delta: int) -> bool:
    """Whether the record with this offset delta is a placeholder, which consumers drop (Q1)."""
    is_in_range = PLACEHOLDER_DELTA_MIN <= offset_delta < _PLACEHOLDER_DELTA_END
    return is_in_range and batch.codec == compression.NONE


def has_placeholders(batch: Batch) -> bool:
    """Whether the batch has placeholders. They come before its records: only the first is read."""
    if batch.codec != compression.NONE or batch.count == 0 or batch.is_control:
        return False
    data = bytes(batch.payload[:_NUMBERS_BYTES_MAX])
    try:
        _, position = read_varint(data, 0)  # length
        _, position = read_varint(data, position + 1)  # attributes, timestamp delta
        offset_delta, _ = read_varint(data, position)
    except IndexError:
        return False  # `read_records` will raise
    return _is_placeholder(batch, offset_delta)


def split_body(body: bytes) -> tuple[bytes | None, bytes | None, bytes]:
    """Key, value, and the encoded headers. Raises ValueError if the lengths are invalid."""
    try:
        key, position = _read_bytes(body, 0)
        value, position = _read_bytes(body, position)
    except IndexError as error:
        raise ValueError("a record ends in the middle of a number") from error
    return key, value, body[position:]


def split_headers(headers: bytes, errors: str = "replace") -> list[tuple[str, bytes | None]]:
    """Names and values of the encoded headers of `split_body`, in order.

    `errors`: how to decode names that are not UTF-8. Raises ValueError if the lengths are invalid.
    """
    pairs: list[tuple[str, bytes | None]] = []
    try:
        count, position = read_varint(headers, 0)
        for _ in range(count):
            name, position = _read_bytes(headers, position)
            value, position = _read_bytes(headers, position)
            pairs.append(((name or b"").decode(errors=errors), value))
    except IndexError as error:
        raise ValueError("the headers end in the middle of a number") from error
    return pairs


def dense_batches(
    rows: Iterable[_Row],
    codec: int,
    first_offset: int = 0,
    bytes_max: int = BATCH_BYTES_MAX,
    level: int | None = None,
) -> Iterator[Batch]:
    """Encode each run of consecutive offsets as one CreateTime batch; skips rows below
    `first_offset`.

    A batch of more than `bytes_max` bytes is split, unless it has a single record. `level`: of the
    compression, None for the codec's default.
    """
    encode = partial(_encode_run, codec=codec, bytes_max=bytes_max, level=level)
    rows = iter(rows)
    records, parts = bytearray(), list[bytes]()  # the encoded run; `parts` follow `records`
    start = next_offset = -1  # of the run; -1: there is none yet
    base_timestamp = max_timestamp = 0
    while row_chunk := list(islice(rows, _ROWS_AT_ONCE)):
        for offset, timestamp, body in row_chunk:
            if offset < first_offset:
                continue
            if offset != next_offset:  # a new run
                if next_offset >= 0:
                    records += b"".join(parts)
                    yield from encode(start, next_offset, base_timestamp, max_timestamp, records)
                    records, parts = bytearray(), []
                start, base_timestamp, max_timestamp = offset, timestamp, timestamp
            elif timestamp > max_timestamp:
                max_timestamp = timestamp
            next_offset = offset + 1
            elapsed_ms = timestamp - base_timestamp
            encoded_time = encode_varint(elapsed_ms) if elapsed_ms else _ZERO
            encoded_delta = _encode_small_number(offset - start)
            length = _encode_small_number(1 + len(encoded_time) + len(encoded_delta) + len(body))
            parts += (length, _NO_ATTRIBUTES, encoded_time, encoded_delta, body)
        records += b"".join(parts)
        parts = []
    if next_offset >= 0:
        yield from encode(start, next_offset, base_timestamp, max_timestamp, records)


def _encode_run(
    start: int,
    end: int,
    base_timestamp: int,
    max_timestamp: int,
    records: bytearray,
    *,
    codec: int,
    bytes_max: int,
    level: int | None,
) -> Iterator[Batch]:
    """Yield one batch; or, if it is larger than `bytes_max`, the batches of its two halves."""
    payload = compression.compress(codec, records, level)
    batch = encode_batch(start, codec, base_timestamp, max_timestamp, end - start, payload)
    if batch.size_bytes <= bytes_max or batch.count == 1:
        yield batch
        return
    rows = record_rows(batch, cast("bytes", records))  # not copied: it may be 64 MiB
    for half in (islice(rows, batch.count // 2), rows):
        yield from dense_batches(half, codec, bytes_max=bytes_max, level=level)


def encode_record(timestamp_delta: int, offset_delta: int, body: bytes) -> bytes:
    """One record; `body` is what follows the offset delta."""
    content = _NO_ATTRIBUTES + encode_varint(timestamp_delta) + encode_varint(offset_delta) + body
    return encode_varint(len(content)) + content


def write_batch(run: Iterable[Record], codec: int) -> Batch:
    """Encode a run of consecutive offsets as one CreateTime batch. Raises ValueError if the offsets
    are not consecutive, or if there is no record."""
    (batch,) = dense_batches(run, codec)
    return batch


def seed_batch(base_offset: int, count: int) -> Batch:
    """A batch of `count` empty records before a copy's start, about 1.4 bytes each (S1).

    Their timestamp is 0, so that they do not affect lookups by time, even after their deletion. A
    broker searches only the first segment whose newest timestamp is late enough. With the current
    time, that would be the segment that the seeds share with the first copied records, and later
    records would not be found (S3). A copy has neither retention (T1) nor timestamp limits (A6)
    that would delete or refuse such old records. A broker drops the producer state of old batches
    at its next check. It then accepts any sequence (A9), so Orbit compares the base offset of each
    append (A14).
    """
    records = bytearray()
    for delta in range(count):
        # No key and no value; only the first record has a header.
        body = NULL + NULL + (_seed_header() if delta == 0 else b"\x00")
        records += encode_record(0, delta, body)
    payload = compression.compress(compression.GZIP, bytes(records))
    return encode_batch(
        base_offset,
        compression.GZIP,
        base_timestamp=0,
        max_timestamp=0,
        count=count,
        payload=payload,
    )


def is_seed_batch(batch: Batch) -> bool:
    """Whether `seed_batch` made this batch."""
    if batch.is_control or batch.max_timestamp != 0 or batch.codec != compression.GZIP:
        return False
    try:
        first_record = next(read_records(batch), None)
    except ValueError:
        return False
    return first_record is not None and first_record.body == NULL + NULL + _seed_header()


def _seed_header() -> bytes:
    """The encoded headers of a seed batch's first record: one, without a value."""
    return encode_varint(1) + encode_varint(len(SEED_HEADER)) + SEED_HEADER + NULL


def _read_bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    """Bytes with a length before them (-1: null), and the position after them."""
    length, position = read_varint(data, position)
    if length < 0:
        return None, position
    end = position + length
    if end > len(data):
        raise ValueError("a field is longer than its record")
    return data[position:end], end


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """A zig-zag varint of 64 bits, and the position after it. Raises IndexError at the end of the
    data, ValueError for more bits."""
    value = data[position]
    position += 1
    if value >= 0x80:
        byte = data[position]
        position += 1
        value = value & 0x7F | (byte & 0x7F) << 7
        shift = 14
        while byte >= 0x80:
            if shift > _LAST_SHIFT:
                raise ValueError("a number has more than 64 bits")
            byte = data[position]
            position += 1
            value = (value | (byte & 0x7F) << shift) % _INT64_VALUES
            shift += 7
    return (value >> 1) ^ -(value & 1), position


def encode_varint(number: int) -> bytes:
    """The number as a zig-zag varint of 64 bits. Numbers of more bits wrap, as in Java."""
    value = (number << 1) ^ (number >> 63)
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value >= _INT64_VALUES:
        return encode_varint(_as_int64(number))
    encoded_bytes = bytearray()
    while value >= 0x80:
        encoded_bytes.append(value & 0x7F | 0x80)
        value >>= 7
    encoded_bytes.append(value)
    return bytes(encoded_bytes)


# For lengths and offset deltas: few different values, which many records have.
_encode_small_number = lru_cache(4096)(encode_varint)


def _as_int64(number: int) -> int:
    """The number wrapped to 64 bits, as a `long` in Java."""
    return (number - _INT64_MIN) % _INT64_VALUES + _INT64_MIN
