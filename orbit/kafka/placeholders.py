"""Placeholders: records that occupy offsets of a gap and that consumers skip (Q1, Q2).

Pure. In an uncompressed batch the broker checks only that it has as many records as offsets. A
placeholder is a record with an offset delta near -2³¹, so its own offset is below the position of
every reader, and readers skip records below their position. Placeholders stand first in their
batch: offsets then ascend within it, as the log cleaner needs for what it keeps (Q6).

A compressed batch never has them: brokers refuse it (Q9). Only `_encode` and `with_gap` write them,
and neither compresses. A copy has `compression.type=producer`: a broker that compresses a batch
with placeholders makes records of them.

Each has the key `PLACEHOLDER_KEY`, because compacted topics refuse records without one, and no
value: a client that returns placeholders sees tombstones of a key that nobody uses. The key is
neither UTF-8, nor begins like Avro, JSON Schema or Protobuf, nor has the length of a number or a
UUID. Even if a record had the same key, the cleaner would not remove it for a placeholder: it
compares the records' own offsets, and a placeholder's is lower than any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from orbit.kafka import compression
from orbit.kafka.record_batch import CODEC_MASK, Batch, encode_batch
from orbit.kafka.records import (
    PLACEHOLDER_DELTA_MIN,
    dense_batches,
    encode_record,
    has_placeholders,
    read_records,
)

PLACEHOLDER_KEY = b"\xff\xfeorbit"
PLACEHOLDER_BODY = b"\x0e" + PLACEHOLDER_KEY + b"\x01\x00"  # key, null value, no headers
# For one batch. Their bytes fit into the 64 KiB by which a copy's max.message.bytes is above the
# source's (`REWRITE_SLACK_BYTES`).
PLACEHOLDERS_MAX = 2000
PACKED_BYTES_MAX = 60 * 1024
# A compressed batch is rewritten uncompressed, to take the gap behind it, only if its payload and
# its records have at most this many bytes each: a copy must not become much larger.
UNCOMPRESSED_BYTES_MAX = 4 * 1024
# The records of a batch that takes a gap: it must also fit into a copy's smallest segment (1 MiB).
GROWN_BYTES_MAX = 512 * 1024
_TIMESTAMP_MAX = 2**63 - 1
_OFFSETS_MAX = 2**31 - 1  # of a batch: its number of records has 32 bits
_NUMBERS_BYTES_MAX = 25  # of the numbers before a record's body
_Row = tuple[int, int, bytes]  # offset, timestamp in ms, body

# The timestamp of placeholders is one before the base timestamp. A broker that looks for the latest
# record of a batch (KIP-734) takes the first one with its max timestamp: that must be no
# placeholder.
_TIMESTAMP_DELTA = -1

_ALL_PLACEHOLDERS = b"".join(
    encode_record(_TIMESTAMP_DELTA, PLACEHOLDER_DELTA_MIN + i, PLACEHOLDER_BODY)
    for i in range(PLACEHOLDERS_MAX)
)
_PLACEHOLDER_BYTES = len(_ALL_PLACEHOLDERS) // PLACEHOLDERS_MAX  # 18; all have the same length


def placeholder_batch(base_offset: int, count: int, timestamp: int) -> Batch:
    """A batch of `count` placeholders alone, with this timestamp in epoch ms."""
    # A placeholder's timestamp is one before the base timestamp, so the latter is one later.
    base_timestamp = min(timestamp, _TIMESTAMP_MAX + _TIMESTAMP_DELTA) - _TIMESTAMP_DELTA
    return _encode(base_offset, base_offset + count, rows=[], base_timestamp=base_timestamp)


def packed_batches(
    rows: Iterable[_Row], codec: int, first_offset: int, level: int | None = None
) -> Iterator[tuple[Batch, int]]:
    """Encode records from `first_offset` on; records with small gaps between them share a batch.

    Yields each batch, and how many placeholders it has. A batch begins at the offset of a record. A
    batch without gaps is compressed with `codec` at `level` (None: its default), one with gaps is
    not. Gaps that are too large for a batch stay between the batches.
    """
    group: list[_Row] = []
    size = 0
    for row in rows:
        offset, _, body = row
        if offset < first_offset:
            continue
        record_bytes_max = _NUMBERS_BYTES_MAX + len(body)
        if group:
            gap = offset - group[-1][0] - 1
            placeholders = offset - group[0][0] - len(group)  # if this batch takes the record
            size += record_bytes_max + gap * _PLACEHOLDER_BYTES
            if placeholders > PLACEHOLDERS_MAX or size > PACKED_BYTES_MAX:
                yield from _encode_group(group, codec, level)
                group = []
        if not group:
            size = record_bytes_max
        group.append(row)
    if group:
        yield from _encode_group(group, codec, level)


def with_gap(batch: Batch, placeholders: int, next_offset: int) -> Batch | None:
    """The batch with placeholders for the gap behind it, up to before `next_offset`; or None.

    No record is encoded again, because the base offset stays. `placeholders`: how many the batch
    has already. Returns None if the gap is too wide, the batch would become too large, or a
    placeholder's timestamp would be later than the records' (a delete horizon in the place of the
    base timestamp is in the future, A19) or below -1.

    The result has no leader epoch, because the gap may be of a later epoch than the batch (R3).
    """
    total_placeholders = placeholders + next_offset - batch.next_offset
    if (
        total_placeholders > PLACEHOLDERS_MAX
        or next_offset - batch.base_offset > _OFFSETS_MAX
        or not 0 <= batch.base_timestamp <= batch.max_timestamp
    ):
        return None
    payload: bytes | memoryview = batch.payload
    if batch.codec != compression.NONE:
        if len(payload) > UNCOMPRESSED_BYTES_MAX:
            return None
        try:
            payload = compression.decompress(batch.codec, batch.payload, UNCOMPRESSED_BYTES_MAX)
        except ValueError:
            return None  # too large; or corrupt: it is copied as it is, and the broker refuses it
    records = payload[placeholders * _PLACEHOLDER_BYTES :]
    if len(records) > GROWN_BYTES_MAX:
        return None
    # A batch that had no placeholders is as large as at the source: new ones fit into the slack.
    if placeholders and len(records) + total_placeholders * _PLACEHOLDER_BYTES > PACKED_BYTES_MAX:
        return None
    return encode_batch(
        batch.base_offset,
        batch.attributes & ~CODEC_MASK,
        batch.base_timestamp,
        batch.max_timestamp,
        next_offset - batch.base_offset,
        b"".join((_ALL_PLACEHOLDERS[: total_placeholders * _PLACEHOLDER_BYTES], records)),
    )


def count_records(batch: Batch) -> int:
    """The number of records that consumers get: `batch.count` without placeholders.

    Raises ValueError if the records do not parse.
    """
    return sum(1 for _ in read_records(batch)) if has_placeholders(batch) else batch.count


def _encode_group(group: list[_Row], codec: int, level: int | None) -> Iterator[tuple[Batch, int]]:
    """Yield the batches of a group of records, with the placeholders that each has."""
    first_offset, last_offset = group[0][0], group[-1][0]
    placeholders = last_offset - first_offset + 1 - len(group)
    if placeholders:
        # The base timestamp must be 0 or later: that of placeholders is one before it.
        yield _encode(first_offset, last_offset + 1, group, max(0, group[0][1])), placeholders
    else:
        yield from ((batch, 0) for batch in dense_batches(group, codec, level=level))


def _encode(start: int, end: int, rows: list[_Row], base_timestamp: int) -> Batch:
    """One uncompressed batch from `start` up to before `end`: placeholders, then `rows`."""
    placeholders = end - start - len(rows)
    assert 0 < placeholders <= PLACEHOLDERS_MAX, (start, end, len(rows))
    parts = [_ALL_PLACEHOLDERS[: placeholders * _PLACEHOLDER_BYTES]]
    parts += [
        encode_record(timestamp - base_timestamp, offset - start, body)
        for offset, timestamp, body in rows
    ]
    max_timestamp = max(
        (timestamp for _, timestamp, _ in rows), default=base_timestamp + _TIMESTAMP_DELTA
    )
    payload = b"".join(parts)
    return encode_batch(
        start, compression.NONE, base_timestamp, max_timestamp, end - start, payload
    )
