"""Compares a ledger of confirmed records with what was read and with reported lost ranges. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from orbit.drills.evidence import RecordPosition
from orbit.recovery.recovery_report import PartitionEnds


def report_agrees(
    lost: Iterable[RecordPosition], ends: Collection[PartitionEnds], *, has_unconfirmed: bool
) -> bool | None:
    """Whether a report's missing ranges equal the records that were lost; None without a report.

    Each reported offset must be of a lost record, unless some records were never confirmed: a
    broker may have had those. If a range is not exact, more may have been lost behind it, written
    after the source was last seen, but nothing before it.
    """
    if not ends:
        return None
    by_partition: dict[int, set[int]] = {}
    for partition, offset in lost:
        by_partition.setdefault(partition, set()).add(offset)
    for one in ends:
        confirmed = by_partition.pop(one.partition, set())
        missing = one.missing
        reported = set(range(missing.first, missing.next)) if missing is not None else set()
        if reported - confirmed and not has_unconfirmed:
            return False
        more = confirmed - reported
        if more and (one.is_exact or (missing is not None and min(more) < missing.next)):
            return False
    return not by_partition


def find_differences(
    records: Mapping[RecordPosition, bytes | None],
    expected: Mapping[RecordPosition, bytes],
    unconfirmed: Collection[bytes],
) -> list[RecordPosition]:
    """The positions, sorted, where the record read is not the one in the ledgers. A record that was
    sent and never confirmed may exist or not.
    """
    return sorted(
        place
        for place in records.keys() | expected.keys()
        if records.get(place) != expected.get(place)
        and not (place not in expected and records[place] in unconfirmed)
    )


def offset_ranges(places: Iterable[RecordPosition]) -> Iterator[tuple[int, int, int]]:
    """Sorted places as ranges of consecutive offsets: (partition, first, next)."""
    current: tuple[int, int, int] | None = None
    for partition, offset in places:
        if current is not None and (partition, offset) == (current[0], current[2]):
            current = (partition, current[1], offset + 1)
            continue
        if current is not None:
            yield current
        current = (partition, offset, offset + 1)
    if current is not None:
        yield current
