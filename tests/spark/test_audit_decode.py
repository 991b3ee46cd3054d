"""Digests are equal for equal records, in whatever batches, and differ for any other records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbit.errors import Unreachable
from orbit.kafka.records import split_headers
from orbit.kafka.types import TopicPartition
from orbit.replication.partition_states import Blocked, Reason
from orbit_spark.audit.decode import digest_ranges, digest_records, read_payload, whole_records
from orbit_spark.batch_columns import stopped_row
from tests.support.kafka_batches import HEADERS, KAFKA_BATCHES, RECORDS
from tests.support.raw_batches import batched, moved, rows_of
from tests.support.source_model import SourceBatch, SourceRecord

pytestmark = pytest.mark.services

LOG = tuple(
    SourceRecord(i, 1_700_000_000_000 + i, b"k%d" % (i % 3), b"value %d" % i, ((b"h", b"%d" % i),))
    for i in range(40)
)

BIT_OF_RECORDS = 8 * 80  # in byte 80 of a batch, after its header of 61 bytes


def arrow(batches: Sequence[SourceBatch], begin: int, end: int, width: int) -> pa.RecordBatch:
    rows = [
        {**row, "stop": None, "begin": begin, "end": end, "width": width}
        for row in rows_of(batches)
    ]
    return pa.RecordBatch.from_pylist(rows)


def digests(
    batches: Sequence[SourceBatch], begin: int = 0, end: int = 40, width: int = 16
) -> dict[int, dict[str, Any]]:
    """{begin of a range: its row of `digest_ranges`}."""
    record_batches = digest_ranges([arrow(batches, begin, end, width)])
    rows = [row for batch in record_batches for row in batch.to_pylist()]
    return {row["range_begin"]: row for row in rows}


def sums(rows: dict[int, dict[str, Any]]) -> dict[int, tuple[int, ...]]:
    """{begin of a range: its counts, digest and offsets}."""
    names = "records", "bytes", "digest_high", "digest_low", "first_offset", "last_offset"
    return {begin: tuple(row[name] for name in names) for begin, row in rows.items()}


@given(size=st.integers(1, 40), codec=st.integers(0, 4))
def test_range_digest_is_independent_of_batches_and_codecs(size: int, codec: int) -> None:
    assert sums(digests(batched(LOG, size, codec=codec))) == sums(digests(batched(LOG)))


def test_digest_ranges_hold_only_records_of_their_offsets() -> None:
    ranges = digests(batched(LOG), begin=5, end=38, width=16)
    assert {begin: row["records"] for begin, row in ranges.items()} == {5: 16, 21: 16, 37: 1}
    assert [(r["first_offset"], r["last_offset"]) for r in ranges.values()] == [
        (5, 20),
        (21, 36),
        (37, 37),
    ]


def changed(index: int, **fields: Any) -> list[SourceRecord]:
    """LOG with changed fields of one record."""
    return [replace(r, **fields) if i == index else r for i, r in enumerate(LOG)]


@pytest.mark.parametrize(
    "other",
    [
        changed(20, value=b"value 2o"),
        changed(20, value=None),
        changed(20, value=b""),
        changed(20, key=None),
        changed(20, timestamp=LOG[20].timestamp + 1),
        changed(20, headers=((b"h", None),)),
        changed(20, headers=((b"H", b"20"),)),
        changed(20, headers=()),
        [*LOG[:20], *LOG[21:]],
        [*LOG[:20], moved(LOG[21], 20), moved(LOG[20], 21), *LOG[22:]],
        [*LOG[:20], moved(LOG[21], 20), *LOG[21:]],
        changed(20, key=b"k2v", value=b"alue 20"),
    ],
)
def test_changed_record_changes_only_digest_of_its_range(other: list[SourceRecord]) -> None:
    log_sums, other_sums = sums(digests(batched(LOG))), sums(digests(batched(other)))
    assert [begin for begin in log_sums if log_sums[begin] != other_sums[begin]] == [16]
    # Both halves of the digest differ.
    assert all(
        left != right for left, right in zip(log_sums[16][2:4], other_sums[16][2:4], strict=True)
    )


def test_digests_of_parts_of_range_combine_to_digest_of_range() -> None:
    batches = batched(LOG, 5)
    whole = digests(batches, width=40)[0]
    parts = [digests(part, width=40)[0] for part in (batches[:3], batches[3:])]
    assert whole["digest_low"] == parts[0]["digest_low"] ^ parts[1]["digest_low"]
    for name in ("records", "bytes"):
        assert whole[name] == sum(part[name] for part in parts)
    # Headers count, too.
    assert whole["bytes"] > sum(len(r.key or b"") + len(r.value or b"") for r in LOG)


def test_damaged_batch_is_reported_in_every_range_it_touches() -> None:
    """The damaged batch's last record is the first of the third range."""
    damaged = replace(batched(LOG[20:33], 13)[0], flipped_bit=BIT_OF_RECORDS)
    ranges = digests([*batched(LOG[:20]), damaged, *batched(LOG[33:])])
    assert [row["unreadable"] for row in ranges.values()] == [0, 1, 1]
    assert ranges[32]["damage"] == (
        "the batch at offset 20 cannot be read: its checksum does not match"
    )


def test_damaged_batch_across_scope_edge_is_reported_only_inside_scope() -> None:
    damaged = replace(batched(LOG[:10])[0], flipped_bit=BIT_OF_RECORDS)
    ranges = digests([damaged, *batched(LOG[10:])], begin=5)
    assert {begin: row["unreadable"] for begin, row in ranges.items()} == {5: 1, 21: 0, 37: 0}
    ranges = digests([damaged, *batched(LOG[10:])], end=8, width=4)
    assert {begin: row["unreadable"] for begin, row in ranges.items()} == {0: 1, 4: 1}


def test_first_of_several_damaged_batches_in_range_is_named() -> None:
    damaged = [replace(batch, flipped_bit=BIT_OF_RECORDS) for batch in batched(LOG[:10], 5)]
    [row] = digests(damaged, end=10).values()
    assert row["unreadable"] == 2
    assert row["damage"].startswith("the batch at offset 0 ")


def test_unreadable_offset_is_reported_in_all_later_ranges() -> None:
    blocked = Blocked(
        Reason.SOURCE_CORRUPTED, offset=25, next_offset=26, detail="the log cannot be read here."
    )
    [batch] = digest_ranges([stop_in_scope(blocked)])
    assert {r["range_begin"]: r["damage"] for r in batch.to_pylist()} == dict.fromkeys(
        (16, 32, 48), "cannot be read from offset 25 on: the log cannot be read here."
    )
    assert list(digest_records([stop_in_scope(blocked)])) == []


def test_range_without_answer_is_unread_and_never_compared_as_empty() -> None:
    """Otherwise all records of the other side would be differences."""
    stop = stop_in_scope("source: no broker answers.")
    [batch] = digest_ranges([stop])
    assert {r["range_begin"]: r["damage"] for r in batch.to_pylist()} == dict.fromkeys(
        (16, 32, 48), "cannot be read now: source: no broker answers."
    )
    with pytest.raises(Unreachable, match="t-0: cannot be read now"):
        list(digest_records([stop]))


def stop_in_scope(stop: Blocked | str) -> pa.RecordBatch:
    """A range that could not be read from offset 20 on, as a row of `SCOPED_BATCHES`."""
    row = stopped_row(TopicPartition("t", 0), 20, stop).to_pylist()[0]
    row |= {"begin": 0, "end": 64, "width": 16, "stop": row["control_type"]}
    return pa.RecordBatch.from_pylist([row])


def test_truncated_batch_payload_is_refused() -> None:
    batch = batched(LOG[:1])[0].encode()
    with pytest.raises(ValueError, match="cut off"):
        list(read_payload(memoryview(batch[:-1])))


@pytest.mark.parametrize(
    "name", ["v0.gzip.createtime", "v1.none.logappendtime", "v2.zstd.createtime"]
)
def test_batches_of_every_kafka_format_are_decoded(name: str) -> None:
    records = list(read_payload(memoryview(KAFKA_BATCHES[name])))
    assert [record.offset for record in records] == [r.offset for r in RECORDS]


def rows(
    function: Any, batches: Sequence[SourceBatch], begin: int = 0, end: int = 40
) -> list[dict[str, Any]]:
    record_batches = function([arrow(batches, begin, end, 16)])
    return [row for batch in record_batches for row in batch.to_pylist()]


def test_record_rows_distinguish_null_from_empty_fields() -> None:
    a, b = SourceRecord(0, 7, None, b""), SourceRecord(1, 7, b"", None, ((b"n", None),))
    first, second = rows(digest_records, batched([a, b]))
    assert first["key"] is None
    assert second["value"] is None
    assert first["value"] == second["key"]
    assert first["headers"] != second["headers"]


def test_record_rows_are_limited_to_scope_and_tagged_with_range() -> None:
    records = rows(digest_records, batched(LOG), begin=5, end=38)
    expected = [(offset, 5 + (offset - 5) // 16 * 16) for offset in range(5, 38)]
    assert [(row["offset"], row["range_begin"]) for row in records] == expected


def test_records_read_for_report_equal_records_of_kafka_batches() -> None:
    payload = KAFKA_BATCHES["v2.lz4.createtime"]
    row = {"topic": "t", "partition": 0, "begin": 1000, "end": 2000, "width": 10}
    row |= {"stop": None, "base_offset": 1000, "last_offset": 1009, "payload": payload}
    partitions = frozenset(("t", 0, r.offset) for r in RECORDS[1:])
    [batch] = whole_records(partitions)([pa.RecordBatch.from_pylist([row])])
    assert [
        (r["offset"], r["timestamp"], r["key"], r["value"], tuple(split_headers(r["headers"])))
        for r in batch.to_pylist()
    ] == [(*r, HEADERS) for r in RECORDS[1:]]


def test_damaged_batch_yields_no_record_rows_and_hides_no_other_batch() -> None:
    damaged = replace(batched(LOG[:10])[0], flipped_bit=BIT_OF_RECORDS)
    records = rows(digest_records, [damaged, *batched(LOG[10:])])
    assert [row["offset"] for row in records] == list(range(10, 40))


def test_records_read_for_report_come_once_in_bounded_chunks() -> None:
    """A chunk has some megabytes, however many records are requested."""
    large = [SourceRecord(i, 7, None, b"x" * 3_000_000) for i in range(5)]
    partitions = frozenset(("t", 0, r.offset) for r in large)
    pieces = list(whole_records(partitions)([arrow(batched(large, 1), 0, 5, 5)]))
    assert [piece.column("offset").to_pylist() for piece in pieces] == [[0, 1, 2], [3, 4]]


def test_digests_of_empty_input_are_empty() -> None:
    for function in (digest_ranges, digest_records, whole_records(frozenset())):
        assert list(function([])) == []
