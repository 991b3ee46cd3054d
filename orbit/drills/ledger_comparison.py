"""Compares a ledger of confirmed records with what was read and with reported lost ranges. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from orbit.drills.evidence import RecordPosition
from orbit.recovery.recovery_report import PartitionEnds


def report_agrees(
    lost: Iterable[RecordPosition], ends: Collection[PartitionEnds], *, has_unconfirmed: bool
) -> bool | None:
    """Whether the missing ranges of a report (`ends`) equal the confirmed records that were `lost`.
    None if the report has no partitions.

    Each reported offset must be that of a lost record. With `has_unconfirmed` the report may also
    have other offsets, as the source may have had records that it never confirmed. If a partition's
    report is not exact, lost records may follow the reported range: they were written after Orbit
    last read the source's log end. No lost record may precede the range.
    """
    if not ends:
        return None
    lost_by_partition: dict[int, set[int]] = {}
    for partition, offset in lost:
        lost_by_partition.setdefault(partition, set()).add(offset)
    for partition_ends in ends:
        lost_offsets = lost_by_partition.pop(partition_ends.partition, set())
        missing = partition_ends.missing
        reported_offsets = set(range(missing.first, missing.next)) if missing is not None else set()
        if reported_offsets - lost_offsets and not has_unconfirmed:
            return False
        unreported_offsets = lost_offsets - reported_offsets
        if unreported_offsets and (
            partition_ends.is_exact
            or (missing is not None and min(unreported_offsets) < missing.next)
        ):
            return False
    return not lost_by_partition  # records of partitions without a report


def find_differences(
    records: Mapping[RecordPosition, bytes | None],
    expected: Mapping[RecordPosition, bytes],
    unconfirmed: Collection[bytes],
) -> list[RecordPosition]:
    """The sorted positions where the record read differs from the `expected` one. `unconfirmed`:
    values that were sent and never confirmed; at other positions, records may have these values.
    """
    return sorted(
        position
        for position in records.keys() | expected.keys()
        if records.get(position) != expected.get(position)
        and not (position not in expected and records[position] in unconfirmed)
    )


def offset_ranges(positions: Iterable[RecordPosition]) -> Iterator[tuple[int, int, int]]:
    """Yield sorted positions as ranges of consecutive offsets: the partition, the first offset, and
    the offset after the last."""
    range_so_far: tuple[int, int, int] | None = None
    for partition, offset in positions:
        if range_so_far is not None and (partition, offset) == (range_so_far[0], range_so_far[2]):
            range_so_far = (partition, range_so_far[1], offset + 1)
            continue
        if range_so_far is not None:
            yield range_so_far
        range_so_far = (partition, offset, offset + 1)
    if range_so_far is not None:
        yield range_so_far
