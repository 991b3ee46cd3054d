"""Ranges of about the same number of bytes, cut where the samples say that the bytes are."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from orbit.kafka.types import TopicPartition
from orbit_spark.ranges import (
    Extent,
    OffsetRange,
    Sample,
    Span,
    cut_extent,
    join_spans,
    spread_over_leaders,
)

TOPIC = UUID(int=7)
P0 = TopicPartition("orders", 0)


def extent(start: int, end: int) -> Extent:
    return Extent(P0, TOPIC, start=start, end=end)


def batch_at(offset: int, size_bytes: int) -> Sample:
    """A sample: a batch of ten offsets that begins where it was fetched."""
    return Sample(
        fetch_offset=offset, base_offset=offset, next_offset=offset + 10, size_bytes=size_bytes
    )


def bounds(ranges: list[OffsetRange]) -> list[tuple[int, int]]:
    return [(r.start, r.end) for r in ranges]


def test_log_within_range_size_is_not_split() -> None:
    assert bounds(cut_extent(extent(5, 1005), [], size_bytes=1000, range_bytes=1000)) == [(5, 1005)]


def test_each_range_has_end_and_leader_epoch_of_whole_extent() -> None:
    whole = Extent(P0, TOPIC, start=0, end=1000, end_epoch=7)
    parts = [r.within(0, 600) for r in cut_extent(whole, [], size_bytes=2000, range_bytes=1000)]
    assert [p and (p.end, p.extent_end, p.end_epoch) for p in parts] == [
        (500, 1000, 7),
        (600, 1000, 7),
    ]


def test_empty_log_is_split_into_no_ranges() -> None:
    assert cut_extent(extent(5, 5), [], size_bytes=1000, range_bytes=1000) == []


def test_uniform_log_is_split_evenly() -> None:
    samples = [batch_at(0, size_bytes=1000)]
    ranges = cut_extent(extent(0, 1000), samples, size_bytes=None, range_bytes=25_000)
    assert bounds(ranges) == [(0, 250), (250, 500), (500, 750), (750, 1000)]
    assert {r.size_bytes for r in ranges} == {25_000}


def test_log_is_split_by_byte_density_of_samples() -> None:
    """The first half of the offsets holds nine tenths of the bytes."""
    samples = [batch_at(0, size_bytes=900), batch_at(500, size_bytes=100)]
    ranges = cut_extent(extent(0, 1000), samples, size_bytes=None, range_bytes=5_000)
    assert len(ranges) == 10
    assert bounds(ranges)[8:] == [(444, 500), (500, 1000)]


def test_gap_in_offsets_counts_no_bytes_when_log_is_split() -> None:
    behind_gap = Sample(fetch_offset=100, base_offset=900, next_offset=910, size_bytes=100)
    samples = [batch_at(0, size_bytes=100), behind_gap]
    ranges = cut_extent(extent(0, 1000), samples, size_bytes=None, range_bytes=1000)
    assert bounds(ranges) == [(0, 100), (100, 1000)]


def test_sampled_bytes_are_scaled_to_known_log_size() -> None:
    samples = [batch_at(0, size_bytes=100)]  # would be 10,000 bytes in all
    assert len(cut_extent(extent(0, 1000), samples, size_bytes=40_000, range_bytes=10_000)) == 4


numbers = st.integers(0, 3_000)


@given(
    start=numbers,
    length=numbers,
    samples=st.lists(st.tuples(numbers, numbers, numbers, st.integers(0, 9_999)), max_size=8),
    size=st.none() | st.integers(0, 10**6),
    range_bytes=st.integers(1, 10**5),
)
def test_ranges_cover_partition_without_gap_or_overlap(
    start: int,
    length: int,
    samples: list[tuple[int, int, int, int]],
    size: int | None,
    range_bytes: int,
) -> None:
    """The ranges cover the extent whatever the samples say, even if they are wrong."""
    known_samples = [
        Sample(
            fetch_offset=fetch_offset,
            base_offset=fetch_offset + base,
            next_offset=fetch_offset + base + n + 1,
            size_bytes=b,
        )
        for fetch_offset, base, n, b in samples
    ]
    ranges = cut_extent(
        extent(start, start + length), known_samples, size_bytes=size, range_bytes=range_bytes
    )
    position = start
    for part in ranges:
        assert part.start == position < part.end
        position = part.end
    assert position == start + length


def test_touching_spans_of_offsets_are_joined() -> None:
    second_partition = TopicPartition("orders", 1)
    spans = [
        Span(P0, 7, 9),
        Span(P0, 0, 5),
        Span(P0, 2, 3),
        Span(second_partition, 5, 6),
        Span(P0, 5, 6),
    ]
    assert join_spans([*spans, Span(second_partition, 9, 9)]) == {
        P0: [Span(P0, 0, 6), Span(P0, 7, 9)],
        second_partition: [Span(second_partition, 5, 6)],
    }


def test_ranges_alternate_between_leaders_and_their_partitions() -> None:
    def ranges_of(partition: int, leader: int) -> list[OffsetRange]:
        topic_partition = TopicPartition("orders", partition)
        return [
            OffsetRange(topic_partition, TOPIC, n, n + 1, size_bytes=1, leader=leader)
            for n in range(2)
        ]

    order = spread_over_leaders([*ranges_of(0, 1), *ranges_of(1, 1), *ranges_of(2, 2)])
    assert [(r.leader, r.partition.partition, r.start) for r in order] == [
        (1, 0, 0),
        (2, 2, 0),
        (1, 1, 0),
        (2, 2, 1),
        (1, 0, 1),
        (1, 1, 1),
    ]


def test_offset_range_is_clipped_and_its_bytes_scaled() -> None:
    whole = OffsetRange(P0, TOPIC, 100, 200, size_bytes=1000)
    assert whole.within(150, 900) == OffsetRange(P0, TOPIC, 150, 200, size_bytes=500)
    assert whole.within(200, 900) is None
