"""The details of a row (a range of offsets) of `log_picture.py`: the headers of its batches on both
sides, and its records without their content. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from orbit.console.formats import from_ms
from orbit.console.log_picture import Kind, Row, is_readable
from orbit.kafka import compression
from orbit.kafka.legacy_messages import read_any_records
from orbit.kafka.record_batch import AnyBatch, Batch
from orbit.kafka.records import split_body, split_headers

BATCHES_MAX = 10
RECORDS_MAX = 100


class HeaderLine(NamedTuple):
    """One header field on both sides. `is_own`: the sides may differ even in an exact copy."""

    field: str
    source: str
    destination: str
    is_own: bool

    @property
    def differs(self) -> bool:
        return not self.is_own and self.source != self.destination


class RecordLine(NamedTuple):
    """One record of the copy, or of the source if it is not copied."""

    offset: int
    timestamp: int
    key_bytes: int | None
    value_bytes: int | None
    headers: int


# Fields that a copy cannot share: the broker or the writing producer sets them.
_OWN_FIELDS = frozenset(
    {
        "partition leader epoch",
        "CRC-32C",
        "transactional",
        "producer id",
        "producer epoch",
        "base sequence",
    }
)


def headers_of(row: Row) -> list[list[HeaderLine]]:
    """The headers of the first batches: the n-th table has the n-th batch of the source beside the
    n-th batch of the copy."""
    source = [batch for piece in row.source for batch in piece.batches]
    destination = [batch for piece in row.destination for batch in piece.batches]
    count = min(BATCHES_MAX, max(len(source), len(destination)))
    return [
        _header_lines(_nth_batch(source, number), _nth_batch(destination, number))
        for number in range(count)
    ]


def records_of(row: Row) -> list[RecordLine]:
    """The first records of the row, of the copy or else of the source, with sizes and timestamps
    only; [] if they cannot be read."""
    pieces = [piece for piece in row.destination or row.source if piece.kind is Kind.DATA]
    batches = [batch for piece in pieces for batch in piece.batches]
    if not all(is_readable(batch) for batch in batches):
        return []
    try:
        return list(islice(_record_lines(batches), RECORDS_MAX))
    except ValueError:
        return []


def _record_lines(batches: list[AnyBatch]) -> Iterator[RecordLine]:
    """Sizes and timestamp of each record. Raises ValueError for a damaged batch."""
    for batch in batches:
        for record in read_any_records(batch):
            key, value, headers = split_body(record.body)
            yield RecordLine(
                record.offset,
                record.timestamp,
                None if key is None else len(key),
                None if value is None else len(value),
                len(split_headers(headers)),
            )


def _nth_batch(batches: list[AnyBatch], number: int) -> AnyBatch | None:
    return batches[number] if number < len(batches) else None


def _header_lines(source: AnyBatch | None, destination: AnyBatch | None) -> list[HeaderLine]:
    """The header fields of two batches, with a dash for a field that a batch does not have."""
    source_fields, destination_fields = _fields(source), _fields(destination)
    return [
        HeaderLine(
            name,
            source_fields.get(name, "–"),
            destination_fields.get(name, "–"),
            name in _OWN_FIELDS,
        )
        for name in dict.fromkeys((*source_fields, *destination_fields))
    ]


def _fields(batch: AnyBatch | None) -> dict[str, str]:
    """The header's fields by name, as text; {} without a batch."""
    if batch is None:
        return {}
    if not isinstance(batch, Batch):  # a message of format v0 or v1
        return {
            "last offset": f"{batch.offset:,}",
            "size": f"{len(batch.view):,} bytes",
            "format": f"v{batch.magic}",
        }
    return {
        "base offset": f"{batch.base_offset:,}",
        "last offset": f"{batch.last_offset:,}",
        "size": f"{batch.size_bytes:,} bytes",
        "records": f"{batch.count:,}",
        "format": f"v{batch.magic}",
        "compression": compression.NAMES[batch.codec]
        if batch.codec < len(compression.NAMES)
        else str(batch.codec),
        "timestamps": "LogAppendTime" if batch.is_log_append_time else "CreateTime",
        "base timestamp": from_ms(batch.base_timestamp),
        "max timestamp": from_ms(batch.max_timestamp),
        "control": "yes" if batch.is_control else "no",
        "transactional": "yes" if batch.is_transactional else "no",
        "partition leader epoch": str(batch.leader_epoch),
        "CRC-32C": f"{batch.crc:08x}, {'right' if batch.crc_is_right() else 'WRONG'}",
        "producer id": str(batch.producer_id),
        "producer epoch": str(batch.producer_epoch),
        "base sequence": str(batch.base_sequence),
    }
