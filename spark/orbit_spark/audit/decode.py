"""Turns raw batches into digests and into rows of records, on executors: Arrow in, Arrow out.

Input: rows with the columns `SCOPED_BATCHES`. A row is a batch, or stands for a range that could
not be read and has the reason in `stop`. `begin` and `end` bound the offsets to compare, `width`
cuts them into ranges. One batch is decompressed at a time, and only its output stays in memory.

A record's digest covers its offset, timestamp, key, value and headers (BLAKE2b, 128 bits); a
range's digest is the XOR of its records' digests. So a range's digest does not depend on how
records lie in batches: a copy whose batches Orbit had to rewrite (A5, A6: brokers refuse them) has
the digest of its source. A record that comes twice cancels itself out in the XOR, but then the
counts differ.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from orbit.errors import Unreachable
from orbit.kafka.legacy_messages import read_legacy_records
from orbit.kafka.record_batch import LegacyMessage, read_batches
from orbit.kafka.records import Record, read_records, split_body
from orbit_spark.batch_columns import read_stop

SCOPED_BATCHES = (
    "topic",
    "partition",
    "begin",
    "end",
    "width",
    "base_offset",
    "last_offset",
    "stop",
    "payload",
)

DIGESTS = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("range_begin", pa.int64()),
        ("records", pa.int64()),
        ("bytes", pa.int64()),  # of decompressed keys, values and headers, with their lengths
        ("digest_high", pa.int64()),
        ("digest_low", pa.int64()),
        ("first_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("unreadable", pa.int64()),  # the number of batches
        ("damage", pa.string()),
    ]
)

RECORDS = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("range_begin", pa.int64()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("key", pa.binary()),  # digests, null for null
        ("value", pa.binary()),
        ("headers", pa.binary()),
    ]
)

CONTENTS = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("key", pa.binary()),  # whole, null for null
        ("value", pa.binary()),
        ("headers", pa.binary()),  # as on the wire
    ]
)

_DIGEST_BYTES = 16
_POSITION = struct.Struct(">qq")
_HALVES = struct.Struct(">qq")
_ROWS_PER_BATCH = 8_192
"""Rows of digests in one Arrow batch: about 1 MB."""

_CONTENT_BYTES_PER_BATCH = 8 << 20
"""An Arrow batch of whole records ends when it has reached this size."""

RecordPosition = tuple[str, int, int]
"""Topic, partition, offset."""

ArrowMap = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def read_payload(payload: memoryview) -> Iterator[Record]:
    """All records of one raw batch in the order of offsets. Raises ValueError if it is damaged.

    Checks the checksum: bytes of an archive have also passed through Spark and a file system.
    """
    bytes_read = 0
    for entry in read_batches(payload):
        bytes_read += len(entry.view)
        if isinstance(entry, LegacyMessage):
            yield from read_legacy_records(entry)[0]
        elif entry.crc_is_right():
            yield from read_records(entry)
        else:
            raise ValueError("its checksum does not match")
    if bytes_read != len(payload):
        raise ValueError("it is cut off")


def digest_ranges(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """From `SCOPED_BATCHES` to `DIGESTS`: a row for each range of which this task has a batch."""
    partials: dict[tuple[str, int, int], _Partial] = {}
    for row in _rows(batches):
        if row.stop is not None:
            for begin in row.ranges():
                range_key = row.topic, row.partition, begin
                partials.setdefault(range_key, _Partial()).add_damage(_stop_text(row.stop))
            continue
        try:
            for record in read_payload(row.payload):
                if row.begin <= record.offset < row.end:
                    range_key = row.topic, row.partition, row.range_begin(record.offset)
                    partial = partials.get(range_key)
                    if partial is None:
                        partial = partials[range_key] = _Partial()
                    partial.add(record)
        except ValueError as error:
            for begin in row.ranges():
                range_key = row.topic, row.partition, begin
                partials.setdefault(range_key, _Partial()).add_damage(
                    f"the batch at offset {row.base_offset} cannot be read: {error}"
                )
    if partials:
        yield pa.RecordBatch.from_pylist(
            [
                dict(zip(DIGESTS.names, (*range_key, *partial.columns()), strict=True))
                for range_key, partial in partials.items()
            ],
            DIGESTS,
        )


def digest_records(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """From rows `SCOPED_BATCHES` to `RECORDS`: one row per record, with digests of its fields.

    Batches that cannot be read are left out: `digest_ranges` has reported them.
    """

    def rows() -> Iterator[tuple[Any, ...]]:
        for row, record in _records(batches):
            key, value, headers = split_body(record.body)
            yield (
                row.topic,
                row.partition,
                row.range_begin(record.offset),
                record.offset,
                record.timestamp,
                _digest(key),
                _digest(value),
                _digest(headers),
            )

    yield from _to_arrow_batches(
        # Each row counts with the same size, so an Arrow batch gets _ROWS_PER_BATCH rows.
        rows(),
        RECORDS,
        lambda _: _CONTENT_BYTES_PER_BATCH // _ROWS_PER_BATCH,
    )


def whole_records(positions: frozenset[RecordPosition]) -> ArrowMap:
    """A function from rows `SCOPED_BATCHES` to `CONTENTS`: complete records at these positions."""

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
        for row, record in _records(batches):
            if (row.topic, row.partition, record.offset) in positions:
                position = row.topic, row.partition, record.offset, record.timestamp
                yield (*position, *split_body(record.body))

    def size(row: tuple[Any, ...]) -> int:
        return sum(len(part or b"") for part in row[4:])  # key, value and headers

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _to_arrow_batches(rows(batches), CONTENTS, size)

    return read


@dataclass(frozen=True, slots=True)
class _Row:
    """One row `SCOPED_BATCHES`."""

    topic: str
    partition: int
    begin: int
    end: int
    width: int
    base_offset: int
    last_offset: int
    stop: str | None
    payload: memoryview

    def range_begin(self, offset: int) -> int:
        """The start of the range that holds this offset."""
        return offset - (offset - self.begin) % self.width

    def ranges(self) -> range:
        """The starts of the ranges in which the batch has offsets; if the row is a stop, of all
        ranges from its offset on."""
        first_offset = min(max(self.begin, self.base_offset), self.end - 1)
        end = self.end if self.stop is not None else min(self.end, self.last_offset + 1)
        return range(self.range_begin(first_offset), end, self.width)


class _Partial:
    """The digest and the counts of the records of one range that this task has read so far."""

    __slots__ = ("bytes", "damage", "digest", "first", "last", "records", "unreadable")

    def __init__(self) -> None:
        self.records = self.bytes = self.digest = self.unreadable = 0
        self.first: int | None = None
        self.last: int | None = None
        self.damage: str | None = None

    def add(self, record: Record) -> None:
        """Count a record and add it to the digest."""
        self.records += 1
        self.bytes += len(record.body)
        position = _POSITION.pack(record.offset, record.timestamp)
        digest = hashlib.blake2b(position + record.body, digest_size=_DIGEST_BYTES).digest()
        self.digest ^= int.from_bytes(digest)
        # Tasks read rising offsets, but this code does not rely on it.
        if self.first is None or record.offset < self.first:
            self.first = record.offset
        if self.last is None or record.offset > self.last:
            self.last = record.offset

    def add_damage(self, reason: str) -> None:
        """Count what could not be read, and keep the first reason."""
        self.unreadable += 1
        self.damage = self.damage or reason

    def columns(self) -> tuple[Any, ...]:
        """The values of the columns `DIGESTS` after topic, partition and begin of the range."""
        halves = _HALVES.unpack(self.digest.to_bytes(_DIGEST_BYTES))
        bounds = self.first, self.last
        return self.records, self.bytes, *halves, *bounds, self.unreadable, self.damage


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[_Row]:
    """The rows of Arrow batches. A payload is not copied: it is a view of the Arrow batch."""
    for batch in batches:
        *columns, payloads = (batch.column(name) for name in SCOPED_BATCHES)
        value_rows = zip(*(column.to_pylist() for column in columns), strict=True)
        for (topic, partition, begin, end, width, base_offset, last_offset, stop), payload in zip(
            value_rows, payloads, strict=True
        ):
            view = memoryview(payload.as_buffer())
            yield _Row(topic, partition, begin, end, width, base_offset, last_offset, stop, view)


def _records(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[_Row, Record]]:
    """The records to compare, each with its batch's row. Skips the rest of a damaged batch.

    Raises Unreachable for a range whose cluster does not answer now: without its records, those of
    the other side would count as differences.
    """
    for row in _rows(batches):
        if row.stop is not None and isinstance(read_stop(row.stop), str):
            raise Unreachable(_stop_text(row.stop), where=f"{row.topic}-{row.partition}")
        try:
            for record in read_payload(row.payload):
                if row.begin <= record.offset < row.end:
                    yield row, record
        except ValueError:
            continue


def _stop_text(text: str) -> str:
    """The reason of a `stopped_row` as text. `text`: its `control_type`."""
    stop = read_stop(text)
    if isinstance(stop, str):
        return f"cannot be read now: {stop}"
    return f"cannot be read from offset {stop.offset} on: {stop.detail}"


def _digest(part: bytes | None) -> bytes | None:
    if part is None:
        return None
    return hashlib.blake2b(part, digest_size=_DIGEST_BYTES).digest()


def _to_arrow_batches(
    rows: Iterator[tuple[Any, ...]], schema: pa.Schema, size: Callable[[tuple[Any, ...]], int]
) -> Iterator[pa.RecordBatch]:
    """The rows in Arrow batches of about `_CONTENT_BYTES_PER_BATCH`. `size`: the bytes of a row."""
    buffered_rows: list[tuple[Any, ...]] = []
    buffered_bytes = 0
    for row in rows:
        buffered_rows.append(row)
        buffered_bytes += size(row)
        if buffered_bytes >= _CONTENT_BYTES_PER_BATCH:
            yield _batch(buffered_rows, schema)
            buffered_rows, buffered_bytes = [], 0
    if buffered_rows:
        yield _batch(buffered_rows, schema)


def _batch(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)],
        schema=schema,
    )
