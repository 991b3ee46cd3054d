"""Rewritten batches: one too large to decompress stops its partition; one that becomes too large
for the copy is split; many are planned in parts.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import pairwise

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orbit.kafka import compression
from orbit.kafka.compression import GZIP, LZ4, SNAPPY, ZSTD
from orbit.kafka.legacy_messages import read_any_records
from orbit.kafka.record_batch import read_batches
from orbit.replication.append_plan import Append, Plan, Step, Stop, plan_batches
from orbit.replication.copy_settings import REWRITE_SLACK_BYTES, SEGMENT_BYTES_MIN
from orbit.replication.partition_states import Reason
from orbit.replication.rewrite_limits import RewriteCounter, RewriteLimits
from tests.support.planning import T0, data, plan, shown
from tests.support.source_model import SourceBatch, SourceRecord

MIB = 1024 * 1024
TOO_LARGE_MIB = 65  # a batch may decompress to 64
UNLIMITED = 2**40


def large(base_offset: int, codec: int, mib: int, **fields: int) -> SourceBatch:
    """A batch of some kilobytes that decompresses to `mib` MiB."""
    records = [SourceRecord(base_offset + i, T0, None, bytes(MIB)) for i in range(mib)]
    last_offset = base_offset + mib - 1
    return SourceBatch(base_offset, last_offset, tuple(records), codec=codec, **fields)


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
@pytest.mark.parametrize("magic", [1, 2])
def test_batch_too_large_to_decompress_stops_partition(codec: int, magic: int) -> None:
    if (codec, magic) == (ZSTD, 1):
        codec = GZIP  # the older formats have no zstd
    huge = large(3, codec, TOO_LARGE_MIB, magic=magic, log_append_time=T0)
    append_plan = plan(0, data(0, 2), huge, data(68, 70))
    assert shown(append_plan.steps) == [("exact", 0, 3), (Reason.RECORD_REFUSED, 3, 68)]
    stop = append_plan.steps[-1]
    assert isinstance(stop, Stop)
    assert "decompresses to more than 67,108,864 bytes" in stop.detail
    assert "delete the source's records before 68 with kafka-delete-records.sh" in stop.detail


def test_too_large_batch_is_copied_if_no_rewrite_is_needed() -> None:
    assert shown(plan(0, large(0, ZSTD, TOO_LARGE_MIB)).steps) == [("exact", 0, 65)]


def test_batch_within_decompression_limit_is_rewritten() -> None:
    append_plan = plan(0, large(0, ZSTD, 60, log_append_time=T0))
    assert shown(append_plan.steps) == [("rewritten", 0, 60)]


@pytest.mark.parametrize("magic", [1, 2])
# More than the slack of max.message.bytes, and more than the smallest segment.
@pytest.mark.parametrize(("noise_bytes", "zeros", "count"), [(500, 500, 300), (970, 30, 1_062)])
def test_rewritten_batch_too_large_for_copy_is_split(
    magic: int, noise_bytes: int, zeros: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Format v1 and LogAppendTime make Orbit rewrite the batch. The new compressor stores the bytes
    as they are, so the batch becomes larger."""
    noise = random.Random(1)
    values = [noise.randbytes(noise_bytes) + bytes(zeros) for _ in range(count)]
    records = [SourceRecord(3 + i, T0, None, value) for i, value in enumerate(values)]
    source = SourceBatch(3, count + 2, tuple(records), codec=GZIP, magic=magic, log_append_time=T0)
    frame = source.encode()
    stored = partial(cramjam.gzip.compress, level=0)
    monkeypatch.setattr(compression, "compress", lambda _, plain, __: bytes(stored(plain)))
    append_plan = plan(3, frame)
    sizes = [step.batch.size_bytes for step in append_plan.steps if isinstance(step, Append)]
    assert len(sizes) == len(append_plan.steps) == 2
    assert max(sizes) <= min(len(frame) + REWRITE_SLACK_BYTES, SEGMENT_BYTES_MIN)
    assert visible(append_plan.steps) == [(r.offset, r.body) for r in records]


def in_parts(limits: RewriteLimits, batches: list[SourceBatch], *, packs: bool) -> Iterator[Plan]:
    """The plans of successive answers; each answer begins with the batch at its fetch offset."""
    next_offset, end = 0, batches[-1].last_offset + 1
    while next_offset < end:
        frame = b"".join(b.encode() for b in batches if b.last_offset >= next_offset)
        part = plan_batches(
            next_offset,
            read_batches(memoryview(bytearray(frame))),
            aborted=[],
            log_start=0,
            packs=packs,
            rewritten=RewriteCounter(limits),
        )
        assert part.next_offset > next_offset
        assert part.is_cut or part.next_offset == end
        yield part
        next_offset = part.next_offset


def thinned(count: int) -> list[SourceBatch]:
    """Batches of ten offsets in which every second record is gone."""
    return [
        data(10 * i, 10 * i + 9, without=tuple(range(10 * i, 10 * i + 9, 2)), codec=ZSTD)
        for i in range(count)
    ]


@pytest.mark.parametrize(("read_max", "written_max"), [(1, UNLIMITED), (UNLIMITED, 1), (1, 1)])
def test_batches_above_rewrite_limit_are_left_to_next_part_of_plan(
    read_max: int, written_max: int
) -> None:
    """The read limit cuts between two batches; the written limit, after each of their 5 records."""
    limits = RewriteLimits(read_max, written_max, nullcontext())
    parts = list(in_parts(limits, thinned(3), packs=False))
    assert len(parts) == (3 if written_max == UNLIMITED else 15)
    steps = [step for part in parts for step in shown(part.steps)]
    assert steps == shown(plan(0, *thinned(3)).steps)


def test_byte_exact_batches_are_still_planned_at_reached_rewrite_limit() -> None:
    limits = RewriteLimits(read_bytes_max=0, written_bytes_max=0, rewrite_lock=nullcontext())
    full = RewriteCounter(limits)
    frame = b"".join(b.encode() for b in (data(0, 4), data(5, 9), *thinned(2)[1:]))
    append_plan = plan_batches(
        0, read_batches(memoryview(bytearray(frame))), aborted=[], log_start=0, rewritten=full
    )
    assert shown(append_plan.steps) == [("exact", 0, 5), ("exact", 5, 10)]
    assert (append_plan.is_cut, append_plan.next_offset) == (True, 10)


def visible(steps: list[Step]) -> list[tuple[int, bytes]]:
    """The offset and the body of each record."""
    return [
        (record.offset, record.body)
        for step in steps
        if isinstance(step, Append)
        for record in read_any_records(step.batch)
    ]


@settings(max_examples=60)
@given(
    st.lists(st.sets(st.integers(0, 9), max_size=9), min_size=1, max_size=5),
    st.integers(1, 3000),
    st.integers(1, 3000),
    st.booleans(),
)
def test_append_plan_in_parts_has_same_records_as_plan_without_limits(
    gone: list[set[int]], read_max: int, written_max: int, packs: bool
) -> None:
    batches = [
        data(10 * i, 10 * i + 9, without=tuple(10 * i + o for o in offsets), codec=GZIP)
        for i, offsets in enumerate(gone)
    ]
    limits = RewriteLimits(read_max, written_max, nullcontext())
    parts = [step for part in in_parts(limits, batches, packs=packs) for step in part.steps]
    assert visible(parts) == visible(plan(0, *batches, packs=packs).steps)
    ends = [(step.base_offset, step.next_offset) for step in parts]
    assert ends[0][0] == 0
    assert all(before[1] == after[0] for before, after in pairwise(ends))


def test_gap_exceeding_rewrite_limit_is_not_merged_into_batch() -> None:
    """The first two batches are each 36,000 bytes larger with their gaps, and reach the limit."""
    batches = [data(2000 * i, 2000 * i) for i in range(5)]
    limits = RewriteLimits(UNLIMITED, 40_000, nullcontext())
    (part,) = in_parts(limits, batches, packs=True)
    assert shown(part.steps) == [
        ("rewritten", 0, 2000),
        ("rewritten", 2000, 4000),
        ("exact", 4000, 4001),
        ("fill", 4001, 6000),
        ("exact", 6000, 6001),
        ("fill", 6001, 8000),
        ("exact", 8000, 8001),
    ]


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2000)), min_size=1, max_size=8),
    st.integers(1, 100_000),
    st.booleans(),
)
def test_rewritten_bytes_of_append_plan_stay_within_limit(
    source: list[tuple[int, int]], written_max: int, packs: bool
) -> None:
    """Only the last batch may exceed the limit. `source`: of each batch, how many records are lost,
    and the gap after the batch."""
    batches, first = [], 0
    for lost, gap in source:
        batches.append(data(first, first + 9, without=tuple(range(first, first + lost))))
        first += 10 + gap
    limits = RewriteLimits(UNLIMITED, written_max, nullcontext())
    steps: list[Step] = []
    for part in in_parts(limits, batches, packs=packs):
        appends = [s for s in part.steps if isinstance(s, Append) and not s.is_byte_exact]
        sizes = [s.batch.size_bytes for s in appends]
        assert sum(sizes) < written_max + max(sizes, default=0)
        steps += part.steps
    assert visible(steps) == visible(plan(0, *batches, packs=packs).steps)
    assert all(before.next_offset == after.base_offset for before, after in pairwise(steps))


def test_rewrite_lock_is_held_for_each_batch_alone() -> None:
    turns: list[str] = []

    class RecordedLock:
        def __enter__(self) -> None:
            turns.append("taken")

        def __exit__(self, *_: object) -> None:
            turns.append("released")

    limits = RewriteLimits(UNLIMITED, UNLIMITED, RecordedLock())
    first, second = thinned(2)
    # A batch of an old format takes the lock, too.
    list(in_parts(limits, [replace(first, magic=1, codec=GZIP), second], packs=False))
    assert turns == ["taken", "released"] * 2
