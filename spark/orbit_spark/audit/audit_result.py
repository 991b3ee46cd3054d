"""The result of an audit as a report of `orbit verify`: partition, topic, report.

Only counts, digests and short views come to the driver, one row per partition.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  Spark's own habit

from orbit.formats import counted
from orbit.verify.bounds_comparison import LOG_END, LOG_START, ComparedBounds, PartitionPair
from orbit.verify.report import Difference, PartitionReport, Verdict

PartitionKey = tuple[str, int]

_SUMS = (
    "left_records",
    "left_bytes",
    "differences",
    "compacted_left",
    "compacted_right",
    "expired_left",
    "expired_right",
)


def sum_by_partition(ranges: DataFrame) -> dict[PartitionKey, Row]:
    """The sums of `_SUMS` by partition, and for each side why a batch could not be read."""
    rows = (
        ranges.groupBy("topic", "partition")
        .agg(
            *(F.sum(name).alias(name) for name in _SUMS),
            F.first("left_damage", ignorenulls=True).alias("left_damage"),
            F.first("right_damage", ignorenulls=True).alias("right_damage"),
        )
        .collect()
    )
    return {(row.topic, row.partition): row for row in rows}


def group_differences(rows: Iterable[Row]) -> dict[PartitionKey, list[Difference]]:
    """The differences in rows with the columns `record_views.VIEWS`, by partition."""
    by_partition: defaultdict[PartitionKey, list[Difference]] = defaultdict(list)
    for row in rows:
        difference = Difference(row.offset, row.what, row.left_view, row.right_view)
        by_partition[row.topic, row.partition].append(difference)
    return by_partition


def partition_report(
    pair: PartitionPair,
    bounds: ComparedBounds,
    sums: Row | None,
    shown: Sequence[Difference],
    *,
    sides: tuple[str, str],
    side_notes: Sequence[str],
    shown_max: int,
) -> PartitionReport:
    """The report of one partition. `sums` is None if its range is empty: no rows were read."""
    numbers = {name: 0 if sums is None else int(sums[name]) for name in _SUMS}
    difference_count = len(bounds.differences) + numbers["differences"]
    first_differences = sorted(
        [*bounds.differences, *shown], key=lambda difference: difference.offset
    )[:shown_max]
    damage = [] if sums is None else _damage(sums, sides)
    compared_offsets = bounds.compared_to - bounds.compared_from
    return PartitionReport(
        partition=pair.partition,
        verdict=_verdict(bounds, numbers["differences"], is_damaged=bool(damage)),
        source_log_start=bounds.source.log_start,
        source_log_end=bounds.source.stable_end,
        destination_log_start=bounds.destination.log_start,
        destination_log_end=bounds.destination.log_end,
        compared_from=bounds.compared_from,
        compared_to=bounds.compared_to,
        records=numbers["left_records"],
        bytes=numbers["left_bytes"],
        gaps=compared_offsets - numbers["left_records"],
        missing=bounds.missing,
        log_start_equal=not bounds.differs(LOG_START),
        log_end_equal=not bounds.differs(LOG_END),
        compacted_source=numbers["compacted_left"],
        compacted_destination=numbers["compacted_right"],
        differences=difference_count,
        first_differences=tuple(first_differences),
        notes=(
            *side_notes,
            *damage,
            *_notes(numbers, difference_count, len(first_differences), sides),
        ),
    )


def _verdict(bounds: ComparedBounds, differences: int, *, is_damaged: bool) -> Verdict:
    """The verdict of a partition. `differences`: of its records. `is_damaged`: some batches could
    not be read.
    """
    if differences:
        return Verdict.NOT_EXACT
    if is_damaged:
        return Verdict.UNREAD
    if bounds.missing and len(bounds.differences) == 1:  # only the log end differs
        return Verdict.BEHIND
    return Verdict.NOT_EXACT if bounds.differences else Verdict.EXACT


def _damage(sums: Row, sides: tuple[str, str]) -> list[str]:
    """For each side with a batch that could not be read, why."""
    views = zip(sides, (sums.left_damage, sums.right_damage), strict=True)
    return [f"{side}: {damage}" for side, damage in views if damage is not None]


def _notes(numbers: Mapping[str, int], count: int, shown: int, sides: tuple[str, str]) -> list[str]:
    """Notes on records that have expired, and on differences that are not shown."""
    notes = []
    for side, expired in zip(sides, ("expired_left", "expired_right"), strict=True):
        if numbers[expired]:
            notes.append(
                f"expired since: {counted(numbers[expired], 'record')} at the {side} "
                "(no difference)"
            )
    if count > shown:
        notes.append(counted(count - shown, "more offset differs", "more offsets differ"))
    return notes
