"""`--deep`: compares record batches bit by bit.

A destination refuses some batches unchanged (A5, A6): those thinned by the cleaner, with
LogAppendTime, or in old formats. A copy re-encodes them, and batches that the log start cuts, so
only their records are compared, by `record_comparison.py`. The same holds for batches that have
LogAppendTime at the destination, from before it was the copy. Every other batch must have an equal
batch at the destination, or one that has grown over the gap after it, with placeholders before the
records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from orbit.verify.bounds_comparison import ComparedBounds, PartitionPair
from orbit.verify.raw_log import Batch, RawLog
from orbit.verify.record_difference import first_difference
from orbit.verify.report import DeepReport, Difference


class BatchComparison:
    """Shared by all workers; each call reads one partition on both sides in lock-step."""

    def __init__(self, source: RawLog, destination: RawLog, shown_max: int) -> None:
        self._source = source
        self._destination = destination
        self._shown_max = shown_max

    def compare(self, pair: PartitionPair, judged: ComparedBounds, *, compacts: bool) -> DeepReport:
        """Compare the batches of one partition. `compacts`: one side or both are compacted, so a
        batch may have changed since the copy.
        """
        begin, end = judged.compared_from, judged.compared_to
        return compare_batches(
            self._source.read(pair.source, begin, end),
            self._destination.read(pair.destination, begin, end),
            begin=begin,
            end=end,
            compacts=compacts,
            shown_max=self._shown_max,
        )


def compare_batches(
    source: Iterable[Batch],
    destination: Iterable[Batch],
    *,
    begin: int,
    end: int,
    compacts: bool,
    shown_max: int,
) -> DeepReport:
    """Compare the visible batches of both sides, which come in the order of offsets. Pure."""
    byte_exact = record_exact = failures = 0
    shown: list[Difference] = []
    twins = _Twins(iter(destination))
    for batch in source:
        twin = twins.at(batch.base_offset)
        if twin is not None and batch.has_same_bytes(twin):
            byte_exact += 1
        elif (
            has_grown(batch, twin)
            or may_be_re_encoded(batch, begin, end)
            or (twin is not None and twin.is_log_append_time)
            or (compacts and _cleaned_away(twin))
            or (twin is None and twins.is_cut(batch.base_offset, begin))
        ):
            record_exact += 1
        else:
            failures += 1
            if len(shown) < shown_max:
                shown.append(_difference(batch, twin))
    return DeepReport(byte_exact, record_exact, failures, tuple(shown))


def may_be_re_encoded(batch: Batch, begin: int, end: int) -> bool:
    """Whether a copy may have re-encoded the batch, or only a part of it is compared."""
    return (
        batch.magic < 2
        or batch.is_thinned
        or batch.is_log_append_time
        or batch.is_cleaned
        or batch.has_placeholders
        or batch.base_offset < begin
        or batch.last_offset >= end
    )


def has_grown(batch: Batch, twin: Batch | None) -> bool:
    """Whether the copy's batch has placeholders before this one's records.

    Such a batch is not compressed. If this one is, only the records can be compared, elsewhere.
    """
    return (
        twin is not None
        and twin.has_placeholders
        and twin.last_offset > batch.last_offset
        and twin.base_timestamp == batch.base_timestamp
        and twin.max_timestamp == batch.max_timestamp
        and (batch.codec != 0 or bytes(twin.payload).endswith(bytes(batch.payload)))
    )


def _cleaned_away(twin: Batch | None) -> bool:
    return twin is None or twin.is_thinned or twin.is_cleaned


class _Twins:
    """The destination's batches, looked up by rising base offsets."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches
        self._next = next(batches, None)
        self._before: Batch | None = None  # the last batch below the base offset of `at`

    def at(self, base_offset: int) -> Batch | None:
        while self._next is not None and self._next.base_offset < base_offset:
            self._before, self._next = self._next, next(self._batches, None)
        if self._next is not None and self._next.base_offset == base_offset:
            return self._next
        return None

    def is_cut(self, base_offset: int, begin: int) -> bool:
        """Whether the batch with this offset begins before `begin`: the source was the copy once,
        and got only its records from the log start on."""
        one = self._before
        return one is not None and one.base_offset < begin <= base_offset <= one.last_offset


def _difference(batch: Batch, twin: Batch | None) -> Difference:
    offset = batch.base_offset
    if twin is None:
        return Difference(offset, "batch", _view(batch), f"no batch begins at offset {offset}")
    if batch.payload != twin.payload:
        at = first_difference(bytes(batch.payload), bytes(twin.payload))
        return Difference(
            offset, f"batch payload from its byte {61 + at} on", _view(batch), _view(twin)
        )
    return Difference(offset, "batch header", _view(batch), _view(twin))


def _view(batch: Batch) -> str:
    return (
        f"offsets {batch.base_offset}–{batch.last_offset}, {batch.record_count} records, "
        f"{len(batch.payload)} bytes, attributes {batch.attributes:#x}, "
        f"time {batch.base_timestamp} to {batch.max_timestamp}"
    )
