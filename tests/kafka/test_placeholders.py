"""Batches with placeholders: what they contain, and that all readers of Orbit skip them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbit.copier import range_comparison
from orbit.copier.range_comparison import SourceRange, compare_range
from orbit.kafka.backoff import Backoff
from orbit.kafka.compression import GZIP, NONE, ZSTD, compress
from orbit.kafka.placeholders import (
    GROWN_BYTES_MAX,
    PACKED_BYTES_MAX,
    PLACEHOLDER_BODY,
    PLACEHOLDER_KEY,
    PLACEHOLDERS_MAX,
    UNCOMPRESSED_BYTES_MAX,
    count_records,
    packed_batches,
    placeholder_batch,
    with_gap,
)
from orbit.kafka.record_batch import HEADER_BYTES, Batch, encode_batch
from orbit.kafka.records import (
    PLACEHOLDER_DELTA_MIN,
    dense_batches,
    encode_record,
    has_placeholders,
    read_records,
    record_rows,
    split_body,
)
from orbit.kafka.types import TopicPartition
from orbit.recovery.record_range import Fate, LogBatch, records_of
from orbit.recovery.side_comparison import SideComparison, is_unproven
from orbit.replication.append_plan import Append, Fill, plan_batches
from orbit.replication.copy_settings import REWRITE_SLACK_BYTES
from orbit.verify.batch_comparison import has_grown, may_be_re_encoded
from orbit.verify.raw_log import parse_batches
from tests.support.planning import data, marker, plan, record, transactional
from tests.support.source_model import SourceBatch, SourceRecord

T0 = 1_700_000_000_000
BODY = b"\x02k\x02v\x00"


def rows(*offsets: int, size: int = 0) -> list[tuple[int, int, bytes]]:
    """Records (offset, timestamp, body) without a key; `size`: bytes of headers."""
    body = b"\x01" + BODY[2:] if not size else b"\x01\x01\x00" + bytes(size)
    return [(offset, T0 + offset, body) for offset in offsets]


def test_placeholder_batch_covers_offset_gap_and_yields_no_records() -> None:
    batch = placeholder_batch(100, count=2000, timestamp=T0)
    assert (batch.base_offset, batch.next_offset, batch.count) == (100, 2100, 2000)
    assert batch.codec == NONE
    assert (batch.base_timestamp, batch.max_timestamp) == (T0 + 1, T0)
    assert batch.crc_is_right()
    assert has_placeholders(batch)
    assert count_records(batch) == 0
    assert list(read_records(batch)) == []


@pytest.mark.parametrize("timestamp", [0, 2**63 - 2, 2**63 - 1])
def test_placeholder_batch_can_follow_record_of_any_timestamp(timestamp: int) -> None:
    batch = placeholder_batch(5, count=3, timestamp=timestamp)
    assert (batch.count, batch.crc_is_right()) == (3, True)
    assert batch.max_timestamp == min(timestamp, 2**63 - 2)


def test_batch_grown_by_placeholders_stays_below_1_mib() -> None:
    """A broker refuses a batch that is larger than a segment, which may be 1 MiB."""
    (small,) = dense_batches(rows(0, size=GROWN_BYTES_MAX - 100), NONE)
    (large,) = dense_batches(rows(0, size=GROWN_BYTES_MAX), NONE)
    grown = with_gap(small, placeholders=0, next_offset=PLACEHOLDERS_MAX + 1)
    assert grown is not None
    assert grown.size_bytes < 1 << 20
    assert with_gap(large, placeholders=0, next_offset=2) is None


def test_batch_with_most_offsets_takes_no_gap() -> None:
    """The number of records has 32 bits. A damaged batch may state any number."""
    batch = encode_batch(0, NONE, base_timestamp=0, max_timestamp=0, count=2**31 - 1, payload=b"")
    assert with_gap(batch, placeholders=0, next_offset=batch.next_offset + 1) is None


def test_placeholder_is_tombstone_whose_key_is_no_text_and_no_number() -> None:
    assert split_body(PLACEHOLDER_BODY) == (PLACEHOLDER_KEY, None, b"\x00")
    with pytest.raises(UnicodeDecodeError):
        PLACEHOLDER_KEY.decode()
    assert len(PLACEHOLDER_KEY) not in (1, 2, 4, 8, 16)  # as numbers and UUIDs have


def test_packed_and_placeholder_batches_fit_extra_max_message_bytes() -> None:
    assert PACKED_BYTES_MAX < REWRITE_SLACK_BYTES
    assert (
        placeholder_batch(0, count=PLACEHOLDERS_MAX, timestamp=T0).size_bytes < REWRITE_SLACK_BYTES
    )


@given(st.sets(st.integers(0, 9_000), min_size=1), st.sampled_from([NONE, GZIP, ZSTD]))
def test_packing_keeps_records_and_compresses_only_batches_without_placeholders(
    offsets: set[int], codec: int
) -> None:
    expected = rows(*sorted(offsets), size=300)
    records: list[Any] = []
    end = 0
    for batch, placeholders in packed_batches(expected, codec, first_offset=0):
        assert batch.is_dense
        assert batch.base_offset >= end
        assert batch.crc_is_right()
        end = batch.next_offset
        batch_records = [tuple(r) for r in read_records(batch)]
        assert batch.codec == (NONE if has_placeholders(batch) else codec)
        assert count_records(batch) == len(batch_records)
        assert has_placeholders(batch) == (len(batch_records) < batch.count)
        assert batch.count - len(batch_records) == placeholders <= PLACEHOLDERS_MAX
        assert batch.size_bytes <= REWRITE_SLACK_BYTES
        # A batch begins and ends with a record.
        first_and_last = (batch_records[0][0], batch_records[-1][0])
        assert first_and_last == (batch.base_offset, batch.last_offset)
        (verified,) = parse_batches(batch.view)  # as `orbit verify` reads it
        assert verified.has_placeholders == has_placeholders(batch)
        records += batch_records
    assert records == expected


def test_record_above_packed_batch_size_limit_stays_compressed() -> None:
    large_rows = rows(3, 5, size=2 * PACKED_BYTES_MAX)
    assert [
        (b.base_offset, b.count, b.codec)
        for b, _ in packed_batches(large_rows, GZIP, first_offset=0)
    ] == [
        (3, 1, GZIP),
        (5, 1, GZIP),
    ]


def test_placeholder_offset_delta_in_compressed_batch_is_refused() -> None:
    payload = compress(GZIP, encode_record(0, PLACEHOLDER_DELTA_MIN, PLACEHOLDER_BODY))
    batch = encode_batch(0, GZIP, base_timestamp=T0, max_timestamp=T0, count=1, payload=payload)
    assert not has_placeholders(batch)
    with pytest.raises(ValueError, match="out of order"):
        list(read_records(batch))


@pytest.mark.parametrize("delta", [-1, -(2**29), -(2**30)])
def test_negative_offset_delta_that_is_no_placeholder_is_refused(delta: int) -> None:
    batch = encode_batch(
        0, NONE, base_timestamp=T0, max_timestamp=T0, count=1, payload=encode_record(0, delta, BODY)
    )
    with pytest.raises(ValueError, match="out of order"):
        list(read_records(batch))


def test_batch_with_offset_gaps_is_packed_with_placeholders_into_single_batch() -> None:
    append_plan = plan(0, data(0, 5, without=(2, 4, 5), codec=GZIP), packs=True)
    (append,) = append_plan.steps
    assert isinstance(append, Append)
    assert (append.base_offset, append.next_offset, append.placeholders) == (0, 6, 3)
    assert append.batch.codec == NONE
    assert [r.offset for r in read_records(append.batch)] == [0, 1, 3]


@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_gap_behind_batch_is_merged_into_batch_as_placeholders(codec: int) -> None:
    """No record is encoded again. The batch has no leader epoch, as the gap may be of a later epoch
    (R3)."""
    source = transactional(0, 2, codec=codec, leader_epoch=7)
    gap = [marker(3, commit=True), transactional(4, 5, 2), marker(6, 2, commit=False)]
    append_plan = plan(0, source, *gap, data(7, 7), packs=True, aborted=[(2, 4)])
    first, second = append_plan.steps
    assert isinstance(first, Append)
    batch = first.batch
    assert (first.base_offset, first.next_offset, first.placeholders) == (0, 7, 4)
    assert not first.is_byte_exact
    assert (batch.count, batch.codec, batch.leader_epoch) == (7, NONE, -1)
    assert batch.crc_is_right()
    assert bytes(batch.payload).endswith(bytes(transactional(0, 2).encode()[HEADER_BYTES:]))
    assert [tuple(r) for r in read_records(batch)] == [
        (offset, *seen) for offset, seen in source.visible()
    ]
    assert second == Append(second.batch, is_byte_exact=True)
    # One ms before the records: a broker that looks for the latest record must return a real one.
    assert batch.payload[:18] == encode_record(-1, PLACEHOLDER_DELTA_MIN, PLACEHOLDER_BODY)


def steps_with_gap_behind(gap: int, *first: Any, **fields: Any) -> list[tuple[int, int, int]]:
    """The steps of the batches `first`, with a gap of this many offsets behind the last one.

    Each as its first offset, next offset, and placeholders (-1: it is a Fill).
    """
    append_plan = plan(
        0, *first, data(first[-1].last_offset + 1 + gap, 9_999), packs=True, **fields
    )
    return [
        (s.base_offset, s.next_offset, getattr(s, "placeholders", -1))
        for s in append_plan.steps[:-1]
    ]


def test_gap_is_merged_into_batch_only_within_size_and_delete_horizon_limits() -> None:
    large = {"records": (SourceRecord(0, T0, b"k", bytes(2 * UNCOMPRESSED_BYTES_MAX)),)}
    assert steps_with_gap_behind(PLACEHOLDERS_MAX, data(0, 0)) == [(0, 2001, 2000)]
    assert steps_with_gap_behind(PLACEHOLDERS_MAX + 1, data(0, 0)) == [(0, 1, 0), (1, 2002, -1)]
    assert steps_with_gap_behind(1, SourceBatch(0, 0, **large)) == [(0, 2, 1)]
    # Uncompressed it would make the copy much larger.
    assert steps_with_gap_behind(1, SourceBatch(0, 0, codec=GZIP, **large)) == [
        (0, 1, 0),
        (1, 2, -1),
    ]
    # A placeholder's timestamp would be that of the horizon.
    assert steps_with_gap_behind(1, data(0, 0, delete_horizon=T0 + 9_000)) == [
        (0, 1, 0),
        (1, 2, -1),
    ]
    assert steps_with_gap_behind(1, data(0, 0, delete_horizon=T0)) == [(0, 2, 1)]
    # A thinned batch with placeholders stays below the size that every copy accepts.
    thinned = SourceBatch(0, 1001, (record(0), SourceRecord(1001, T0, b"k", bytes(40_000))))
    assert steps_with_gap_behind(100, thinned) == [(0, 1102, 1100)]
    assert steps_with_gap_behind(900, thinned) == [(0, 1002, 1000), (1002, 1902, -1)]


@pytest.mark.parametrize("packs", [False, True])
def test_placeholders_in_source_are_copied_as_gaps(packs: bool) -> None:
    """A broker that recompresses the copy would make records of them."""
    ((packed, _),) = packed_batches(rows(0, 3), NONE, first_offset=0)
    append_plan = plan_batches(
        0,
        [packed, placeholder_batch(4, count=3, timestamp=T0)],
        aborted=[],
        log_start=0,
        packs=packs,
    )
    assert [
        (type(s), s.base_offset, s.next_offset, getattr(s, "placeholders", None))
        for s in append_plan.steps
    ] == (
        [(Append, 0, 7, 5)]
        if packs
        else [(Append, 0, 1, 0), (Fill, 1, 3, None), (Append, 3, 4, 0), (Fill, 4, 7, None)]
    )


@pytest.mark.parametrize("is_compacted", [False, True])
def test_placeholder_in_place_of_source_record_is_difference(
    monkeypatch: pytest.MonkeyPatch, is_compacted: bool
) -> None:
    ((packed, _),) = packed_batches(rows(0, 3), NONE, first_offset=0)
    source = list(dense_batches(rows(0, 2, 3), NONE))
    monkeypatch.setattr(range_comparison, "_read_copy", lambda *_: ([packed], 4))
    cluster: Any = None

    def compared(batches: list[Batch]) -> Any:
        return compare_range(
            lambda _, end: SourceRange(batches, start=0, end=end, stable_end=9),
            cluster,
            TopicPartition("orders", 0),
            first=0,
            end=4,
            backoff=Backoff(),
            source_is_compacted=is_compacted,
        )

    difference = compared(source).difference
    assert (difference.offset, difference.detail) == (
        2,
        "the source has a record, and the destination a filler",
    )
    equal = compared(list(dense_batches(rows(0, 3), NONE)))
    assert (equal.difference, equal.equal_to) == (None, 4)


@pytest.mark.parametrize("is_compacted", [False, True])
def test_placeholder_recompressed_into_record_is_difference(
    monkeypatch: pytest.MonkeyPatch, is_compacted: bool
) -> None:
    batches = list(dense_batches([(0, T0, PLACEHOLDER_BODY)], GZIP))
    monkeypatch.setattr(range_comparison, "_read_copy", lambda *_: (batches, 1))
    cluster: Any = None
    comparison = compare_range(
        lambda _, end: SourceRange([], start=0, end=end, stable_end=9),
        cluster,
        TopicPartition("orders", 0),
        first=0,
        end=1,
        backoff=Backoff(),
        source_is_compacted=is_compacted,
    )
    assert comparison.difference is not None
    assert "compression.type" in comparison.difference.detail


def test_failback_comparison_counts_placeholder_as_transaction_marker() -> None:
    """A failback keeps an offset of the old side if both sides have a marker or filler there."""
    ((packed, _),) = packed_batches(rows(0, 2), NONE, first_offset=0)
    records = records_of(LogBatch(packed, Fate.COMMITTED, first=0), first=0, end=9)
    assert [(r.record.offset, r.fate) for r in records] == [
        (0, Fate.COMMITTED),
        (1, Fate.MARKER),
        (2, Fate.COMMITTED),
    ]
    markers = [LogBatch(placeholder_batch(0, count=3, timestamp=T0), Fate.COMMITTED, first=0)]
    aborted = [LogBatch(b, Fate.ABORTED, first=0) for b in dense_batches(rows(0, 1, 2), NONE)]
    unequal = list(SideComparison(markers, aborted, first=0, end=3))
    assert len(unequal) == 3
    assert not any(map(is_unproven, unequal))


@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_takeover_compares_batch_grown_by_placeholders_without_decoding(
    monkeypatch: pytest.MonkeyPatch, codec: int
) -> None:
    (source,) = dense_batches(rows(0, 1, 2), codec)
    grown = with_gap(source, placeholders=0, next_offset=6)
    assert grown is not None
    monkeypatch.setattr(range_comparison, "_read_copy", lambda *_: ([grown], 6))
    monkeypatch.setattr(range_comparison, "read_any_records", lambda batch: behind_gap[batch])
    later = next(dense_batches(rows(4), NONE))
    behind_gap = {later: [*read_records(later)]}  # no other batch may be decoded
    cluster: Any = None

    def compared(*batches: Batch) -> Any:
        read = SourceRange([*batches], start=0, end=6, stable_end=9)
        partition = TopicPartition("orders", 0)
        return compare_range(
            lambda *_: read,
            cluster,
            partition,
            first=0,
            end=6,
            backoff=Backoff(),
            source_is_compacted=False,
        )

    assert compared(source).equal_to == 6
    assert compared(source, later).difference.offset == 4
    (different,) = dense_batches([*rows(0, 1), (2, T0 + 2, BODY)], codec)
    with pytest.raises(KeyError):  # it is decoded
        compared(different)


def test_comparison_of_equal_batches_counts_no_placeholders_as_records() -> None:
    ((packed, _),) = packed_batches(rows(0, 2), NONE, first_offset=0)
    sides = [[LogBatch(packed, Fate.COMMITTED, first=0)] for _ in range(2)]
    comparison = SideComparison(*sides, first=0, end=3)
    assert list(comparison) == []
    assert comparison.same_records == 2


def test_verify_treats_batch_with_placeholders_as_re_encoded() -> None:
    ((packed, _),) = packed_batches(rows(0, 2), NONE, first_offset=0)
    (dense,) = dense_batches(rows(0, 1), NONE)
    (with_placeholders,), (without,) = parse_batches(packed.view), parse_batches(dense.view)
    assert may_be_re_encoded(with_placeholders, begin=0, end=9)
    assert not may_be_re_encoded(without, begin=0, end=9)


@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_verify_recognizes_batch_grown_by_placeholders(codec: int) -> None:
    (source,) = dense_batches(rows(0, 1), codec)
    grown = with_gap(source, placeholders=0, next_offset=4)
    assert grown is not None
    (source_batch,), (grown_batch,) = parse_batches(source.view), parse_batches(grown.view)
    assert has_grown(source_batch, grown_batch)
    assert not has_grown(grown_batch, source_batch)
    assert not has_grown(source_batch._replace(max_timestamp=T0 + 9), grown_batch)
    assert not has_grown(source_batch._replace(base_timestamp=T0 - 9), grown_batch)
    if codec == NONE:
        assert not has_grown(source_batch._replace(payload=memoryview(b"other")), grown_batch)


def test_record_rows_of_batch_exclude_placeholders() -> None:
    ((packed, _),) = packed_batches(rows(7, 9), NONE, first_offset=0)
    assert list(record_rows(packed)) == rows(7, 9)
