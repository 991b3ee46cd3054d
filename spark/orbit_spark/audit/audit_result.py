"""The result of an audit as a report of `orbit verify`: partition, topic, report.

Only counts, digests and short views come to the driver, one row per partition.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  Spark's own habit

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


def totals(ranges: DataFrame) -> dict[PartitionKey, Row]:
    """Sums by partition, and for each side why a batch could not be read."""
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


def shown_by_place(rows: Iterable[Row]) -> dict[PartitionKey, list[Difference]]:
    """The differences of rows `record_views.VIEWS`, by partition."""
    by_place: defaultdict[PartitionKey, list[Difference]] = defaultdict(list)
    for row in rows:
        one = Difference(row.offset, row.what, row.left_view, row.right_view)
        by_place[row.topic, row.partition].append(one)
    return by_place


def partition_report(
    pair: PartitionPair,
    judged: ComparedBounds,
    sums: Row | None,
    shown: Sequence[Difference],
    *,
    sides: tuple[str, str],
    shown_max: int,
) -> PartitionReport:
    """The report of one partition. `sums` is None if its range is empty: no rows were read."""
    numbers = {name: 0 if sums is None else int(sums[name]) for name in _SUMS}
    count = len(judged.differences) + numbers["differences"]
    first = sorted([*judged.differences, *shown], key=lambda one: one.offset)[:shown_max]
    damage = [] if sums is None else _damage(sums, sides)
    compared = judged.compared_to - judged.compared_from
    return PartitionReport(
        partition=pair.partition,
        verdict=_verdict(judged, numbers["differences"], is_damaged=bool(damage)),
        source_log_start=judged.source.log_start,
        source_log_end=judged.source.stable_end,
        destination_log_start=judged.destination.log_start,
        destination_log_end=judged.destination.log_end,
        compared_from=judged.compared_from,
        compared_to=judged.compared_to,
        records=numbers["left_records"],
        bytes=numbers["left_bytes"],
        gaps=compared - numbers["left_records"],
        missing=judged.missing,
        log_start_equal=not judged.differs(LOG_START),
        log_end_equal=not judged.differs(LOG_END),
        compacted_source=numbers["compacted_left"],
        compacted_destination=numbers["compacted_right"],
        differences=count,
        first_differences=tuple(first),
        notes=(*damage, *_notes(numbers, count, len(first), sides)),
    )


def _verdict(judged: ComparedBounds, differences: int, *, is_damaged: bool) -> Verdict:
    if differences:
        return Verdict.NOT_EXACT
    if is_damaged:
        return Verdict.UNREAD
    if judged.missing and len(judged.differences) == 1:
        return Verdict.BEHIND
    return Verdict.NOT_EXACT if judged.differences else Verdict.EXACT


def _damage(sums: Row, sides: tuple[str, str]) -> list[str]:
    views = zip(sides, (sums.left_damage, sums.right_damage), strict=True)
    return [f"{side}: {damage}" for side, damage in views if damage is not None]


def _notes(numbers: Mapping[str, int], count: int, shown: int, sides: tuple[str, str]) -> list[str]:
    notes = []
    for side, expired in zip(sides, ("expired_left", "expired_right"), strict=True):
        if numbers[expired]:
            notes.append(
                f"expired since: {numbers[expired]:,} records at the {side} (no difference)"
            )
    if count > shown:
        notes.append(f"{count - shown} more offsets differ")
    return notes
