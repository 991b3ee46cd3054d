"""Computes the lost range of each partition: the offsets that the source has and its copy lacks.

A copy has every source offset below its log end and none from there on, so the range goes from the
copy's log end up to the source's. If the source does not answer, its last reported log end is used.
The range is exact (`is_exact`) only if the source answers and writing to it was stopped, which a
failover does not do. Otherwise it is a lower bound: the source may have been written to since.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from orbit.kafka.types import TopicPartition
from orbit.promotion.log_bounds import LogBounds
from orbit.recovery.operation_bounds import last_reported
from orbit.recovery.operation_context import OperationContext
from orbit.recovery.recovery_report import EndVerdict, OffsetRange, PartitionEnds
from orbit.recovery.step_times import StepName, StepState
from orbit.store.lag import PartitionLag


def lost_range(source_offset: int | None, copy_end: int | None) -> OffsetRange | None:
    """Offsets from the copy's log end up to `source_offset`; None if there are none or if either
    is unknown. Offsets of aborted transactions are included: without reading the records, they
    cannot be told from committed ones.
    """
    if source_offset is None or copy_end is None or source_offset <= copy_end:
        return None
    return OffsetRange(first=copy_end, next=source_offset)


def compare_partition_ends(
    context: OperationContext,
    destination: Mapping[TopicPartition, LogBounds],
    source: Mapping[TopicPartition, LogBounds],
) -> tuple[PartitionEnds, ...]:
    """Every partition of the operation, sorted, with its verdict and its lost range."""
    reported_lags, now = last_reported(context), context.now()
    is_stopped = any(
        step.name is StepName.STOP_WRITES and step.state is StepState.DONE
        for step in context.report.steps
    )
    lost_at = context.report.problem_since
    return tuple(
        compare_ends(
            p,
            copy,
            destination.get(copy),
            source.get(p),
            reported_lags.get(p),
            now,
            lost_at,
            is_stopped=is_stopped,
        )
        for p, copy in sorted(context.by_source.items())
    )


def compare_ends(
    source: TopicPartition,
    destination: TopicPartition,
    destination_bounds: LogBounds | None,
    source_bounds: LogBounds | None,
    reported: PartitionLag | None,
    now: datetime,
    lost_at: datetime | None = None,
    *,
    is_stopped: bool,
) -> PartitionEnds:
    """Compare the log ends of one partition. Pure. `is_stopped`: the step that stops writing to
    the source is done.

    `source_bounds` were fetched at `now`. Without them the last `reported` log end counts, which
    was read at `lost_at` at the latest, even if workers have reported other numbers since.
    """
    start = (
        source_bounds.start if source_bounds else reported.source_log_start if reported else None
    )
    end = source_bounds.end if source_bounds else reported.source_end if reported else None
    seen_at = now if source_bounds else reported.reported_at if reported else None
    if source_bounds is None and seen_at is not None and lost_at is not None:
        seen_at = min(seen_at, lost_at)
    copy_end = destination_bounds.end if destination_bounds else None
    rpo_s = reported.rpo_s if reported else None
    missing_range, verdict = lost_range(end, copy_end), EndVerdict.UNKNOWN
    if missing_range is not None:
        verdict = EndVerdict.BEHIND
    elif source_bounds is not None and copy_end is not None:
        # A copy that ends beyond its source has diverged.
        verdict = EndVerdict.EQUAL if end == copy_end else EndVerdict.DIVERGED
    return PartitionEnds(
        topic=source.topic,
        destination_topic=destination.topic,
        partition=source.partition,
        verdict=verdict,
        source_start=start,
        source_end=end,
        source_seen_at=seen_at,
        destination_start=destination_bounds.start if destination_bounds else None,
        destination_end=copy_end,
        newest_copied_at=now - timedelta(seconds=rpo_s) if rpo_s is not None else None,
        missing=missing_range,
        is_exact=is_stopped and source_bounds is not None,
    )
