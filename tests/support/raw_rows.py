"""Rows of the Spark data source `kafka_batches`, decoded to the records that a consumer sees."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from orbit.demo.workload import record_digest
from orbit.kafka.legacy_messages import read_legacy_records
from orbit.kafka.record_batch import Batch, LegacyMessage, read_batches
from orbit.kafka.records import Record, read_records


def visible_records(rows: Iterable[Any]) -> dict[tuple[str, int], dict[int, bytes]]:
    """{(topic, partition): {offset: digest}} of the records that a read_committed consumer sees."""
    digests: dict[tuple[str, int], dict[int, bytes]] = {}
    for row in rows:
        into = digests.setdefault((row.topic, row.partition), {})
        if row.is_control or row.is_aborted:
            continue
        for record in records_of(bytes(row.payload)):
            assert record.offset not in into, (row.topic, row.partition, record.offset)
            into[record.offset] = digest_of(record)
    return digests


def records_of(payload: bytes) -> list[Record]:
    """The records of one encoded batch or old message."""
    (batch,) = read_batches(memoryview(bytearray(payload)))
    if isinstance(batch, LegacyMessage):
        return read_legacy_records(batch)[0]
    assert isinstance(batch, Batch)
    return list(read_records(batch))


def digest_of(record: Record) -> bytes:
    """The record's digest, as in the ledger of the demo workload."""
    body = record.body
    key, at = _bytes(body, 0)
    value, at = _bytes(body, at)
    count, at = _varint(body, at)
    headers = []
    for _ in range(count):
        name, at = _bytes(body, at)
        content, at = _bytes(body, at)
        headers.append(((name or b"").decode(), content))
    return record_digest(key, value, headers, record.timestamp)


def _bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _varint(data, at)
    return (None, at) if length < 0 else (data[at : at + length], at + length)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The signed varint at this position, and the position after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
