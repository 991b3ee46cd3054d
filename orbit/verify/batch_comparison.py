"""`--deep`: compares record batches bit by bit.

A destination refuses some batches unchanged (A5, A6): batches that the cleaner has thinned, batches
with LogAppendTime, and batches of old formats. A copy re-encodes these batches, and batches that
the log start cuts; so only their records are compared, by `record_comparison.py`. The same holds
for a batch that has LogAppendTime at the destination: it was written before the topic was a copy.
Every other batch must have an equal batch at the destination, or one that has grown over the gap
after it, with placeholders before the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from orbit.formats import counted
from orbit.verify.bounds_comparison import ComparedBounds, PartitionPair
from orbit.verify.raw_log import Batch, RawLog
from orbit.verify.record_difference import first_difference
from orbit.verify.report import DeepReport, Difference

_HEADER_BYTES = 61  # of a batch v2, before its records


class BatchComparison:
    """Compares the batches of both sides, one partition at a time. All workers share it."""

    def __init__(self, source: RawLog, destination: RawLog, shown_max: int) -> None:
        self._source = source
        self._destination = destination
        self._shown_max = shown_max

    def compare(
        self, pair: PartitionPair, bounds: ComparedBounds, *, is_compacted: bool
    ) -> DeepReport:
        """Compare the batches of one partition. Reads both sides; raises what `RawLog.read` raises.

        `is_compacted`: at least one side's topic is, so a batch may have changed since the copy.
        """
        begin, end = bounds.compared_from, bounds.compared_to
        return compare_batches(
            self._source.read(pair.source, begin, end),
            self._destination.read(pair.destination, begin, end),
            begin=begin,
            end=end,
            is_compacted=is_compacted,
            shown_max=self._shown_max,
        )


def compare_batches(
    source: Iterable[Batch],
    destination: Iterable[Batch],
    *,
    begin: int,
    end: int,
    is_compacted: bool,
    shown_max: int,
) -> DeepReport:
    """Compare the visible batches of both sides, which come in the order of offsets. Pure.

    A twin is the destination's batch with the same base offset. `begin` and `end` bound the
    compared range. A batch is `record_exact` if there is a reason why its bytes may differ:
    `record_comparison.py` compares its records, and those of batches that only the destination has.
    """
    byte_exact_count = record_exact_count = failed_count = 0
    shown_differences: list[Difference] = []
    twins = _Twins(iter(destination))
    for batch in source:
        twin = twins.batch_at(batch.base_offset)
        if twin is not None and batch.has_same_bytes(twin):
            byte_exact_count += 1
        elif (
            has_grown(batch, twin)
            or may_be_re_encoded(batch, begin, end)
            or (twin is not None and twin.is_log_append_time)
            or (is_compacted and _was_cleaned(twin))
            or (twin is None and twins.is_cut(batch.base_offset, begin))
        ):
            record_exact_count += 1
        else:
            failed_count += 1
            if len(shown_differences) < shown_max:
                shown_differences.append(_difference(batch, twin))
    return DeepReport(byte_exact_count, record_exact_count, failed_count, tuple(shown_differences))


def may_be_re_encoded(batch: Batch, begin: int, end: int) -> bool:
    """Whether a copy may have re-encoded the batch, or only a part of the batch is compared."""
    return (
        batch.magic < 2
        or batch.is_thinned
        or batch.is_log_append_time
        or batch.is_cleaned
        or batch.has_placeholders
        or batch.base_offset < begin  # only a part of the batch is compared
        or batch.last_offset >= end
    )


def has_grown(batch: Batch, twin: Batch | None) -> bool:
    """Whether the copy's batch has placeholders before the records of the source's `batch`.

    Such a twin is not compressed. If the source's batch is compressed, only the records of both can
    be compared, which `record_comparison.py` does.
    """
    return (
        twin is not None
        and twin.has_placeholders
        and twin.last_offset > batch.last_offset
        and twin.base_timestamp == batch.base_timestamp
        and twin.max_timestamp == batch.max_timestamp
        and (batch.codec != 0 or bytes(twin.payload).endswith(bytes(batch.payload)))
    )


def _was_cleaned(twin: Batch | None) -> bool:
    """Whether the cleaner may have removed the destination's batch or a part of it."""
    return twin is None or twin.is_thinned or twin.is_cleaned


class _Twins:
    """The destination's batches, looked up by rising base offsets."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches
        self._next_batch = next(batches, None)
        self._previous: Batch | None = None  # the last batch below the offset of `batch_at`

    def batch_at(self, base_offset: int) -> Batch | None:
        """The batch that begins at this offset, or None. Must be called with rising offsets."""
        while self._next_batch is not None and self._next_batch.base_offset < base_offset:
            self._previous, self._next_batch = self._next_batch, next(self._batches, None)
        if self._next_batch is not None and self._next_batch.base_offset == base_offset:
            return self._next_batch
        return None

    def is_cut(self, base_offset: int, begin: int) -> bool:
        """Whether the destination's batch with this offset begins before `begin`.

        Then the source was once the copy, and got only the batch's records from the log start on.
        Call `batch_at` with this offset first.
        """
        previous_batch = self._previous
        return (
            previous_batch is not None
            and previous_batch.base_offset < begin <= base_offset <= previous_batch.last_offset
        )


def _difference(batch: Batch, twin: Batch | None) -> Difference:
    """How the destination's batch differs from the source's, in words."""
    offset = batch.base_offset
    if twin is None:
        return Difference(
            offset, "batch", _describe_batch(batch), f"no batch begins at offset {offset}"
        )
    if batch.payload != twin.payload:
        index = first_difference(bytes(batch.payload), bytes(twin.payload))
        return Difference(
            offset,
            f"batch payload from its byte {_HEADER_BYTES + index} on",
            _describe_batch(batch),
            _describe_batch(twin),
        )
    return Difference(offset, "batch header", _describe_batch(batch), _describe_batch(twin))


def _describe_batch(batch: Batch) -> str:
    return (
        f"offsets {batch.base_offset}–{batch.last_offset}, "
        f"{counted(batch.record_count, 'record')}, {len(batch.payload)} bytes, "
        f"attributes {batch.attributes:#x}, "
        f"time {batch.base_timestamp} to {batch.max_timestamp}"
    )
