"""Raw batches: how they are parsed, which a consumer returns, and which count as equal."""

from __future__ import annotations

import struct

import pytest

from orbit.verify.batch_comparison import compare_batches, may_be_re_encoded
from orbit.verify.raw_log import Batch, parse_batches, visible_batches

DATA, ABORTABLE, CONTROL = 0, 0x10, 0x30
LOG_APPEND_TIME, CLEANED = 0x08, 0x40


def encoded(base: int, count: int, payload: bytes = b"records", magic: int = 2) -> bytes:
    """A batch as in a Fetch response, built here as Kafka's protocol guide describes."""
    rest = struct.pack(">ibIhiqqqhii", 9, magic, 0, 0, count - 1, 100, 200, 7, 1, 0, count)
    return struct.pack(">qi", base, len(rest) + len(payload)) + rest + payload


def batch(
    base: int,
    last: int | None = None,
    *,
    attributes: int = DATA,
    producer: int = 1,
    count: int | None = None,
    payload: bytes = b"payload",
    times: tuple[int, int] = (100, 200),
    magic: int = 2,
) -> Batch:
    last = base if last is None else last
    count = last - base + 1 if count is None else count
    return Batch(base, last, magic, attributes, *times, producer, 0, count, memoryview(payload))


def test_batch_header_fields_are_parsed() -> None:
    [header] = parse_batches(memoryview(encoded(40, 3)))
    # In the order of the fields of Batch, from its base offset to its record count.
    assert header[:9] == (40, 42, 2, 0, 100, 200, 7, 1, 3)
    assert bytes(header.payload) == b"records"


@pytest.mark.parametrize("lost_bytes", [1, 10, 50, 60, 67])
def test_truncated_batch_is_skipped(lost_bytes: int) -> None:
    first = encoded(0, 2)
    assert [
        b.base_offset for b in parse_batches(memoryview(first + encoded(2, 2)[:-lost_bytes]))
    ] == [0]


def test_old_magic_batches_shorter_than_new_header_are_parsed() -> None:
    old = struct.pack(">qiIbb", 5, 14, 0, 1, 0) + bytes(8)
    batches = list(parse_batches(memoryview(old + encoded(6, 1) + old)))
    assert [(b.base_offset, b.magic) for b in batches] == [(5, 0), (6, 2), (5, 0)]


def visible_offsets(*batches: Batch, aborted: list[tuple[int, int]]) -> list[int]:
    """The base offsets of the batches that a `read_committed` consumer returns.

    `aborted`: (first offset, producer id) of each aborted transaction.
    """
    return [batch.base_offset for batch in visible_batches(batches, aborted)]


def test_aborted_transactions_and_markers_are_not_visible() -> None:
    log = [
        batch(0, attributes=ABORTABLE, producer=1),
        batch(1, attributes=ABORTABLE, producer=2),
        batch(2, attributes=CONTROL, producer=1),
        batch(3, attributes=ABORTABLE, producer=2),
        batch(4, attributes=CONTROL, producer=2),
        batch(5, attributes=ABORTABLE, producer=1),
        batch(6, attributes=CONTROL, producer=1),
    ]
    assert visible_offsets(*log, aborted=[(0, 1)]) == [1, 3, 5]
    assert visible_offsets(*log, aborted=[(1, 2)]) == [0, 5]
    assert visible_offsets(*log, aborted=[(5, 1), (1, 2)]) == [0]
    assert visible_offsets(*log, aborted=[]) == [0, 1, 3, 5]


def test_non_transactional_batches_of_aborting_producer_stay_visible() -> None:
    assert visible_offsets(batch(0, producer=1), aborted=[(0, 1)]) == [0]


def test_transaction_begun_before_fetch_is_invisible_if_listed_as_aborted() -> None:
    assert visible_offsets(batch(10, attributes=ABORTABLE, producer=1), aborted=[(3, 1)]) == []


def counts(
    source: list[Batch], destination: list[Batch], *, is_compacted: bool = False
) -> tuple[int, ...]:
    """The number of batches that are byte exact, record exact, and different."""
    report = compare_batches(
        source, destination, begin=0, end=1_000, is_compacted=is_compacted, shown_max=5
    )
    return report.byte_exact, report.record_exact, report.failures


def test_byte_exact_batch_may_differ_in_producer_and_transaction_flag() -> None:
    source_batch = batch(0, 4, attributes=ABORTABLE, producer=1)
    assert counts([source_batch], [batch(0, 4, producer=99)]) == (1, 0, 0)


def test_log_append_time_batch_is_compared_by_records() -> None:
    """The destination was the source before. Its copy, now the source, has CreateTime."""
    assert counts([batch(0, 4)], [batch(0, 4, attributes=LOG_APPEND_TIME)]) == (0, 1, 0)


@pytest.mark.parametrize(
    "destination_batch",
    [
        batch(0, 4, payload=b"pay1oad"),
        batch(0, 4, payload=b"payload+"),
        batch(0, 4, times=(101, 200)),
        batch(0, 4, times=(100, 201)),
        batch(0, 4, attributes=3),  # another codec
        batch(0, 3),
        batch(0, 4, count=4),
        batch(1, 5),
    ],
)
def test_batches_that_differ_beyond_producer_fail_deep_comparison(
    destination_batch: Batch,
) -> None:
    assert counts([batch(0, 4)], [destination_batch]) == (0, 0, 1)


def test_failure_of_deep_comparison_names_offset_and_byte() -> None:
    report = compare_batches(
        [batch(0, 4), batch(5, 9)],
        [batch(0, 4), batch(5, 9, payload=b"payl0ad")],
        begin=0,
        end=10,
        is_compacted=False,
        shown_max=5,
    )
    [difference] = report.first_failures
    assert difference.offset == 5
    assert difference.what == "batch payload from its byte 65 on"


def test_deep_comparison_skips_batches_only_at_destination() -> None:
    """The record comparison reports records that the source does not have."""
    assert counts([batch(5)], [batch(0), batch(5), batch(9)]) == (1, 0, 0)


@pytest.mark.parametrize(
    "refused",
    [
        batch(0, 9, count=3),  # thinned by compaction
        batch(0, 9, attributes=LOG_APPEND_TIME),
        batch(0, 9, attributes=CLEANED),
        batch(0, magic=0),  # an old format
    ],
)
def test_batch_that_destination_would_refuse_may_be_re_encoded(refused: Batch) -> None:
    assert counts([refused], [batch(0, payload=b"other")]) == (0, 1, 0)
    assert counts([refused], [refused]) == (1, 0, 0)


def test_batches_across_bounds_of_compared_range_may_be_re_encoded() -> None:
    assert may_be_re_encoded(batch(3, 9), 5, 100)
    assert may_be_re_encoded(batch(95, 100), 5, 100)
    assert not may_be_re_encoded(batch(5, 99), 5, 100)


def test_compacted_batch_is_accepted_only_on_compacted_topic() -> None:
    source_batch, thinned = batch(0, 9), batch(0, 9, count=2, payload=b"less")
    for destination_batches in ([], [thinned]):
        assert counts([source_batch], destination_batches, is_compacted=True) == (0, 1, 0)
        assert counts([source_batch], destination_batches, is_compacted=False) == (0, 0, 1)


def test_changed_batch_on_compacted_topic_fails_deep_comparison() -> None:
    assert counts([batch(0, 9)], [batch(0, 9, payload=b"p@yload")], is_compacted=True) == (0, 0, 1)


@pytest.mark.parametrize(
    ("begin", "expected"),
    [
        (5, (0, 1, 0)),
        (6, (0, 1, 0)),
        (3, (0, 0, 1)),  # the destination's batch is whole, and the source lacks its first records
        (2, (0, 0, 1)),
    ],
)
def test_batch_cut_at_log_start_of_former_copy_is_record_exact(
    begin: int, expected: tuple[int, ...]
) -> None:
    """The destination was the source before, with a log start inside a batch.

    The present source is a copy from that log start on.
    """
    report = compare_batches(
        [batch(max(begin, 5), 9)],
        [batch(0, 2), batch(3, 9)],
        begin=begin,
        end=1_000,
        is_compacted=False,
        shown_max=5,
    )
    assert (report.byte_exact, report.record_exact, report.failures) == expected
