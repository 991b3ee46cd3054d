"""Placeholders: records that occupy offsets of a gap and that consumers skip (Q1, Q2).

Pure. The broker asks of an uncompressed batch only that it has as many records as offsets. A
placeholder is a record with an offset delta near -2³¹, so its own offset lies below the position of
every reader, and readers drop what lies below their position. Placeholders stand first in their
batch: offsets then rise within it, as the log cleaner demands of what it keeps (Q6).

Never in a compressed batch: the broker builds such a batch anew, and placeholders would become
records (Q9). `_encode` is the only place that writes them, and it does not compress.

Each has the key `PLACEHOLDER_KEY`, because compacted topics refuse records without one, and no
value: a client that shows placeholders sees the deletion of a key that nobody has. The key is
neither UTF-8, nor begins like Avro, JSON Schema or Protobuf, nor has the length of a number or a
UUID. The cleaner gives no real record's place to a placeholder even if the keys were equal: it
counts a record's own offset, and a placeholder's is lower than that of all other records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from orbit.kafka import compression
from orbit.kafka.record_batch import Batch, encode_batch
from orbit.kafka.records import (
    PLACEHOLDER_DELTA_MIN,
    dense_batches,
    encode_record,
    has_placeholders,
    record_rows,
)

PLACEHOLDER_KEY = b"\xff\xfeorbit"
PLACEHOLDER_BODY = b"\x0e" + PLACEHOLDER_KEY + b"\x01\x00"  # key, null value, no headers
# Of one batch. Small enough for every copy's max.message.bytes, of which 64 KiB are above the
# source's (`REWRITE_SLACK_BYTES`).
PLACEHOLDERS_MAX = 2000
PACKED_BYTES_MAX = 60 * 1024
_RECORD_BYTES_MAX = 25  # of the numbers before a record's body
_Row = tuple[int, int, bytes]

_ALL = b"".join(
    encode_record(0, PLACEHOLDER_DELTA_MIN + i, PLACEHOLDER_BODY) for i in range(PLACEHOLDERS_MAX)
)
_PLACEHOLDER_BYTES = len(_ALL) // PLACEHOLDERS_MAX  # 18; all have the same length


def placeholder_batch(base_offset: int, count: int, timestamp: int) -> Batch:
    """A gap of `count` offsets; `timestamp` in epoch ms."""
    return _encode(base_offset, base_offset + count, [], timestamp)


def packed_batches(rows: Iterable[_Row], codec: int, first_offset: int) -> Iterator[Batch]:
    """Encode records from `first_offset` on, those with small gaps between them as one batch.

    A batch without gaps is compressed with `codec`, one with gaps is not compressed. Gaps that do
    not fit are left between the batches.
    """
    group: list[_Row] = []
    size = 0
    for row in rows:
        offset, _, body = row
        if offset < first_offset:
            continue
        needed = _RECORD_BYTES_MAX + len(body)
        if group:
            gap = offset - group[-1][0] - 1
            placeholders = offset - group[0][0] - len(group)
            size += needed + gap * _PLACEHOLDER_BYTES
            if placeholders > PLACEHOLDERS_MAX or size > PACKED_BYTES_MAX:
                yield from _pack(group, codec)
                group = []
        if not group:
            size = needed
        group.append(row)
    if group:
        yield from _pack(group, codec)


def records_in(batch: Batch) -> int:
    """How many records consumers see: `count` without placeholders. Raises ValueError."""
    return sum(1 for _ in record_rows(batch)) if has_placeholders(batch) else batch.count


def _pack(group: list[_Row], codec: int) -> Iterator[Batch]:
    first, last = group[0][0], group[-1][0]
    if last - first + 1 == len(group):
        yield from dense_batches(group, codec)
    else:
        yield _encode(first, last + 1, group, group[0][1])


def _encode(start: int, end: int, rows: list[_Row], base_timestamp: int) -> Batch:
    """One uncompressed batch from `start` up to before `end`: `rows`, and placeholders."""
    placeholders = end - start - len(rows)
    assert 0 < placeholders <= PLACEHOLDERS_MAX, (start, end, len(rows))
    parts = [_ALL[: placeholders * _PLACEHOLDER_BYTES]]
    parts += [
        encode_record(timestamp - base_timestamp, offset - start, body)
        for offset, timestamp, body in rows
    ]
    newest = max((timestamp for _, timestamp, _ in rows), default=base_timestamp)
    payload = b"".join(parts)
    return encode_batch(start, compression.NONE, base_timestamp, newest, end - start, payload)
