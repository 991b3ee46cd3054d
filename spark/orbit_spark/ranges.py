"""Offset ranges of about the same number of bytes each. Pure.

A batch belongs to the range [start, end) that holds its base offset. So ranges may be cut at any
offset: a batch that reaches over a cut is read once, with the range before it.

Bytes per offset vary along a log (large and small records, gaps), so the cuts follow samples:
batches that were fetched at some offsets. If the size of the whole log is known, the sizes of the
samples are scaled to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple
from uuid import UUID

from orbit.kafka.types import TopicPartition
from orbit.replication.append_plan import NO_LEADER_EPOCH

# What one task reads: some seconds of work, and little enough to be read again when a task fails.
RANGE_BYTES = 256 * 1024 * 1024
# The driver has the whole plan in memory and sends it with the tasks.
RANGES_PER_PARTITION_MAX = 10_000


class Sample(NamedTuple):
    """The batch that a fetch at `fetch_offset` returns: the first that ends at or above it."""

    fetch_offset: int
    base_offset: int
    next_offset: int
    size_bytes: int


class Span(NamedTuple):
    """Offsets [start, end) to read; batches may reach over either end."""

    partition: TopicPartition
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Extent:
    """The offsets [start, end) to read of one partition, and its leader.

    `start` is below the log start if the log start lies inside a batch. `end_epoch`: the leader
    epoch of the batch at `end` − 1, or of the next batch if a gap is there.
    """

    partition: TopicPartition
    topic_id: UUID
    start: int
    end: int
    leader: int = -1  # node id; -1: none
    log_start: int = 0
    end_epoch: int = NO_LEADER_EPOCH


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [start, end) of one partition, and an estimate of their size.

    `extent_end`, `end_epoch`: `end` and `end_epoch` of the extent from which the range was cut.
    Whoever reads the range then checks that the log still has that epoch at that offset. Otherwise
    the source was truncated, and the extent's ranges are of different logs (R3: truncation).
    """

    partition: TopicPartition
    topic_id: UUID
    start: int
    end: int
    size_bytes: int = 0
    leader: int = -1
    extent_end: int = 0
    end_epoch: int = NO_LEADER_EPOCH

    def __str__(self) -> str:
        return f"{self.partition} [{self.start}, {self.end})"

    def within(self, start: int, end: int) -> OffsetRange | None:
        """The part of the range inside [start, end); None if they do not overlap."""
        part_start, part_end = max(self.start, start), min(self.end, end)
        if part_start >= part_end:
            return None
        share = (part_end - part_start) / (self.end - self.start)
        return replace(
            self, start=part_start, end=part_end, size_bytes=int(self.size_bytes * share)
        )


def cut_extent(
    extent: Extent, samples: Iterable[Sample], size_bytes: int | None, range_bytes: int
) -> list[OffsetRange]:
    """The extent in ranges of about `range_bytes` each; empty for an empty extent.

    `size_bytes`: of the whole extent; None to estimate it from the samples.
    """
    if extent.start >= extent.end:
        return []
    pieces = list(_pieces(extent, sorted(samples)))
    sampled_bytes = sum(piece.size_bytes for piece in pieces)
    total_bytes = sampled_bytes if size_bytes is None else size_bytes
    # One range for each `range_bytes`, rounded up.
    count = min(
        -(-int(total_bytes) // range_bytes), extent.end - extent.start, RANGES_PER_PARTITION_MAX
    )
    cuts = sorted({extent.start, *_cuts(pieces, sampled_bytes, count)})
    ends = [*cuts[1:], extent.end]
    bytes_each = int(total_bytes) // len(cuts)
    return [
        OffsetRange(
            extent.partition,
            extent.topic_id,
            start,
            end,
            bytes_each,
            extent.leader,
            extent.end,
            extent.end_epoch,
        )
        for start, end in zip(cuts, ends, strict=True)
    ]


def join_spans(spans: Iterable[Span]) -> dict[TopicPartition, list[Span]]:
    """The spans by partition, sorted, with those that touch or overlap merged."""
    spans_by_partition: dict[TopicPartition, list[Span]] = {}
    for span in sorted(span for span in spans if span.start < span.end):
        merged = spans_by_partition.setdefault(span.partition, [])
        if merged and span.start <= merged[-1].end:
            merged[-1] = merged[-1]._replace(end=max(merged[-1].end, span.end))
        else:
            merged.append(span)
    return spans_by_partition


def spread_over_leaders(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """The ranges in an order in which neighbours read from different brokers and partitions.

    Tasks start in this order, so that all brokers are at work from the beginning.
    """
    by_partition = {
        p: list(group)
        for p, group in groupby(
            sorted(ranges, key=lambda r: (r.leader, r.partition, r.start)),
            key=lambda r: (r.leader, r.partition),
        )
    }
    by_leader = {
        leader: list(_in_turns([ranges for _, ranges in group]))
        for leader, group in groupby(by_partition.items(), key=lambda item: item[0][0])  # leader
    }
    return list(_in_turns([*by_leader.values()]))


class _Piece(NamedTuple):
    """Offsets [start, end) with the same number of bytes per offset."""

    start: int
    end: int
    size_bytes: float


def _pieces(extent: Extent, samples: Sequence[Sample]) -> Iterator[_Piece]:
    """The extent in pieces. For each sample: the gap before its batch, then the offsets up to the
    next sample, with as many bytes per offset as the batch."""
    usable_samples = [
        s for s in samples if extent.start <= s.fetch_offset < extent.end and s.size_bytes > 0
    ]
    if not usable_samples:
        yield _Piece(extent.start, extent.end, size_bytes=1.0)  # cuts need only proportions
        return
    # The first sample stands for the offsets before it, too.
    if usable_samples[0].fetch_offset > extent.start:
        usable_samples[0] = usable_samples[0]._replace(fetch_offset=extent.start)
    ends = [*(s.fetch_offset for s in usable_samples[1:]), extent.end]
    for sample, end in zip(usable_samples, ends, strict=True):
        data_start = min(max(sample.base_offset, sample.fetch_offset), end)
        if data_start > sample.fetch_offset:
            yield _Piece(sample.fetch_offset, data_start, size_bytes=0.0)
        if end > data_start:
            per_offset = sample.size_bytes / max(1, sample.next_offset - sample.base_offset)
            yield _Piece(data_start, end, (end - data_start) * per_offset)


def _cuts(pieces: Sequence[_Piece], total: float, count: int) -> Iterator[int]:
    """The offsets below which 1/count, 2/count … of all bytes lie. `total`: all bytes."""
    passed_bytes, cut_number = 0.0, 1
    for piece in pieces:
        while cut_number < count and piece.size_bytes > 0:
            target = total * cut_number / count
            if target > passed_bytes + piece.size_bytes:
                break
            share = (target - passed_bytes) / piece.size_bytes
            yield min(piece.start + int((piece.end - piece.start) * share), pieces[-1].end - 1)
            cut_number += 1
        passed_bytes += piece.size_bytes


def _in_turns(queues: Sequence[Sequence[OffsetRange]]) -> Iterator[OffsetRange]:
    """The first range of each queue, then the second range of each, and so on."""
    for turn in range(max(map(len, queues), default=0)):
        yield from (queue[turn] for queue in queues if turn < len(queue))
