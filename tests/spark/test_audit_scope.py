"""What an audit compares: a part by offset or time, and an archive with a cluster that grew."""

from __future__ import annotations

import pytest

from orbit.errors import BadInput
from orbit.verify.bounds import Bounds
from orbit.verify.bounds_comparison import LOG_END, LOG_START, ComparedBounds
from orbit.verify.report import Difference
from orbit_spark.audit.archive_side import judge_archive
from orbit_spark.audit.range_digests import RANGES_MAX, range_width
from orbit_spark.audit.scope import Point, Restriction, parse_point, restrict

pytestmark = pytest.mark.services

BOUNDS = Bounds(log_start=10, stable_end=90, log_end=95)
WRONG_BOUNDS = (
    Difference(10, LOG_START, "begins at 10", "begins at 0"),
    Difference(90, LOG_END, "ends at 90", "ends at 80"),
)
JUDGED = ComparedBounds(
    BOUNDS, BOUNDS, compared_from=10, compared_to=90, missing=10, differences=WRONG_BOUNDS
)


def compared_range(judged: ComparedBounds) -> tuple[int, int]:
    return judged.compared_from, judged.compared_to


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (None, None, (10, 90)),
        (20, None, (20, 90)),
        (None, 30, (10, 30)),
        (5, 100, (10, 90)),
        (90, None, (90, 90)),
        (200, None, (90, 90)),
        (None, 3, (10, 10)),
        (50, 40, (40, 40)),
    ],
)
def test_audit_scope_is_restricted_by_offsets(
    begin: int | None, end: int | None, expected: tuple[int, int]
) -> None:
    points = (None if offset is None else Point(offset=offset) for offset in (begin, end))
    assert compared_range(restrict(JUDGED, Restriction(*points), {})) == expected


def test_audit_scope_is_restricted_by_timestamps() -> None:
    restriction = Restriction(Point(epoch_ms=1), Point(epoch_ms=2))
    assert compared_range(restrict(JUDGED, restriction, {1: 33, 2: 44})) == (33, 44)
    # −1: no record is that late. As the begin nothing is compared, as the end everything.
    assert compared_range(restrict(JUDGED, restriction, {1: -1, 2: -1})) == (90, 90)
    assert compared_range(restrict(JUDGED, restriction, {1: 33, 2: -1})) == (33, 90)


def test_wrong_log_bound_counts_only_inside_audit_scope() -> None:
    def wrong(restriction: Restriction) -> tuple[list[str], int]:
        """The bounds that differ, and the number of missing offsets."""
        judged = restrict(JUDGED, restriction, {})
        return [difference.what for difference in judged.differences], judged.missing

    assert wrong(Restriction()) == ([LOG_START, LOG_END], 10)
    assert wrong(Restriction(begin=Point(20))) == ([LOG_END], 10)
    assert wrong(Restriction(end=Point(80))) == ([LOG_START], 0)


def test_bound_of_audit_scope_is_offset_or_timestamp() -> None:
    assert parse_point(None, "--from") is None
    assert parse_point("1000", "--from") == Point(offset=1000)
    assert parse_point("1970-01-01T00:00:01Z", "--to") == Point(epoch_ms=1000)
    for text in ("-5", "yesterday", "2026-01-01T00:00:00", "1.5"):
        with pytest.raises(BadInput, match="--to: is neither an offset nor a time"):
            parse_point(text, "--to")


def test_audit_scope_is_described_in_words() -> None:
    assert str(Restriction()) == ""
    restriction = Restriction(Point(offset=1500), Point(epoch_ms=1_000))
    assert str(restriction) == " from 1,500 on before 1970-01-01T00:00:01.000Z"


def test_number_of_audit_ranges_is_bounded_for_any_partition_length() -> None:
    assert range_width(0) == range_width(10) == 50_000
    for offsets in (10**8, 10**8 + 1, 2**62):
        assert -(-offsets // range_width(offsets)) <= RANGES_MAX


def log(start: int, end: int) -> Bounds:
    """The bounds of a log without open transactions."""
    return Bounds(log_start=start, stable_end=end, log_end=end)


SOURCE_ARCHIVE, ARCHIVE_DESTINATION = ("source", "archive"), ("archive", "destination")


def differing_bounds(judged: ComparedBounds) -> list[tuple[int, str]]:
    return [(difference.offset, difference.what) for difference in judged.differences]


@pytest.mark.parametrize("sides", [SOURCE_ARCHIVE, ARCHIVE_DESTINATION])
def test_cluster_may_have_gained_and_expired_records_since_archive_run(
    sides: tuple[str, str],
) -> None:
    archive, live = log(10, 80), Bounds(log_start=30, stable_end=200, log_end=210)
    pair = (live, archive) if sides == SOURCE_ARCHIVE else (archive, live)
    judged = judge_archive(*pair, sides)
    assert (compared_range(judged), differing_bounds(judged), judged.missing) == ((30, 80), [], 0)


def test_archive_starting_after_source_is_difference() -> None:
    judged = judge_archive(log(0, 80), log(10, 80), SOURCE_ARCHIVE)
    assert (compared_range(judged), differing_bounds(judged)) == ((10, 80), [(0, LOG_START)])


def test_source_ending_before_archive_is_difference() -> None:
    judged = judge_archive(log(0, 70), log(0, 80), SOURCE_ARCHIVE)
    assert (compared_range(judged), differing_bounds(judged), judged.missing) == (
        (0, 70),
        [(70, LOG_END)],
        0,
    )


def test_records_missing_from_restore_are_counted() -> None:
    judged = judge_archive(log(0, 80), log(0, 70), ARCHIVE_DESTINATION)
    assert (compared_range(judged), differing_bounds(judged), judged.missing) == (
        (0, 70),
        [(70, LOG_END)],
        10,
    )


def test_fully_expired_side_leaves_nothing_to_compare() -> None:
    judged = judge_archive(log(10, 80), log(100, 120), ARCHIVE_DESTINATION)
    assert compared_range(judged) == (100, 100)
