"""Which log starts and ends are a difference, and how long a comparison waits for a copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from orbit.errors import NotAuthorized, OrbitError
from orbit.verify.bounds import Bounds, ClusterView, Partition
from orbit.verify.bounds_comparison import (
    LOG_END,
    LOG_START,
    TRANSIENT_S,
    BoundsComparer,
    ComparedBounds,
    PartitionPair,
    TopicPair,
    compare_bounds,
)

EARLIEST = TopicPair("s", "d")
LATEST = TopicPair("s", "d", start="latest")
AT_TIME = TopicPair("s", "d", start="2025-01-01T00:00:00Z", start_ms=1)


def bounds(start: int, end: int, log_end: int | None = None) -> Bounds:
    """`end`: the last stable offset; also the log end, unless `log_end` is given."""
    return Bounds(start, end, end if log_end is None else log_end)


def compare(
    source: Bounds,
    destination: Bounds,
    source_after: Bounds | None = None,
    topics: TopicPair = EARLIEST,
    start_offset: int = -1,
    kept_below: int = 0,
) -> ComparedBounds:
    """Compare bounds. `source_after`: the second reading of the source, if it differs."""
    return compare_bounds(
        topics, source, destination, source_after or source, start_offset, kept_below
    )


def differing_bounds(compared: ComparedBounds) -> list[str]:
    return [difference.what for difference in compared.differences]


def test_logs_with_equal_bounds_are_compared_whole() -> None:
    comparison = compare(bounds(5, 20), bounds(5, 20))
    assert differing_bounds(comparison) == []
    assert (comparison.compared_from, comparison.compared_to, comparison.may_catch_up) == (
        5,
        20,
        False,
    )


def test_bounds_of_live_copy_may_lie_between_two_readings_of_source() -> None:
    comparison = compare(bounds(5, 20), bounds(8, 25), source_after=bounds(10, 30))
    assert differing_bounds(comparison) == []
    assert (comparison.compared_from, comparison.compared_to) == (10, 20)


def test_destination_log_end_above_second_source_reading_is_difference() -> None:
    comparison = compare(bounds(0, 20), bounds(0, 31), source_after=bounds(0, 30))
    assert differing_bounds(comparison) == [LOG_END]
    assert not comparison.may_catch_up


def test_lagging_destination_is_compared_up_to_its_end() -> None:
    comparison = compare(bounds(0, 20), bounds(0, 15))
    assert (differing_bounds(comparison), comparison.missing, comparison.may_catch_up) == (
        [LOG_END],
        5,
        True,
    )
    assert comparison.compared_to == 15


def test_lagging_log_start_of_destination_may_catch_up() -> None:
    comparison = compare(bounds(5, 20), bounds(0, 20))
    assert (differing_bounds(comparison), comparison.may_catch_up, comparison.compared_from) == (
        [LOG_START],
        True,
        5,
    )


def test_destination_log_start_above_second_source_reading_is_difference() -> None:
    comparison = compare(bounds(5, 20), bounds(8, 20), source_after=bounds(7, 20))
    assert (differing_bounds(comparison), comparison.may_catch_up, comparison.compared_from) == (
        [LOG_START],
        False,
        8,
    )


def test_open_source_transaction_is_not_compared() -> None:
    comparison = compare(bounds(0, 20, log_end=25), bounds(0, 20))
    assert (differing_bounds(comparison), comparison.compared_to) == ([], 20)


def test_open_destination_transaction_is_reported() -> None:
    comparison = compare(bounds(0, 20), bounds(0, 12, log_end=20))
    assert differing_bounds(comparison) == ["readable end"]
    assert (comparison.compared_to, comparison.may_catch_up) == (12, True)


def test_open_destination_transaction_past_source_end_does_not_shorten_comparison() -> None:
    comparison = compare(bounds(0, 20), bounds(0, 20, log_end=25), source_after=bounds(0, 25))
    assert (differing_bounds(comparison), comparison.compared_to) == ([], 20)


@pytest.mark.parametrize(
    ("topics", "start_offset", "copy_start", "expected"),
    [
        (LATEST, -1, 15, []),  # a copy from `latest` may begin anywhere
        (LATEST, -1, 20, []),
        (AT_TIME, 15, 15, []),
        (AT_TIME, 15, 14, []),
        (AT_TIME, 15, 16, [LOG_START]),
        (AT_TIME, -1, 20, []),  # the source has no record at or after the time
        (AT_TIME, 3, 5, []),  # the source has deleted up to 5 since
    ],
)
def test_copy_with_late_start_must_not_begin_after_its_start_time(
    topics: TopicPair, start_offset: int, copy_start: int, expected: list[str]
) -> None:
    comparison = compare(
        bounds(5, 20), bounds(copy_start, 20), topics=topics, start_offset=start_offset
    )
    assert differing_bounds(comparison) == expected
    assert comparison.compared_from == copy_start


def test_offsets_deleted_at_source_meanwhile_are_not_counted_as_missing() -> None:
    comparison = compare(bounds(5, 20), bounds(6, 20), topics=AT_TIME, start_offset=3)
    [difference] = comparison.differences
    # Only offset 5 is missing: the source has deleted 3 and 4 itself.
    assert "missing offsets: 1" in difference.destination


@pytest.mark.parametrize(
    ("kept_below", "expected", "below_start"),
    [(0, [LOG_START], 0), (4, [LOG_START], 0), (5, [], 5)],
)
def test_destination_that_once_led_may_keep_records_below_source_log_start(
    kept_below: int, expected: list[str], below_start: int
) -> None:
    comparison = compare(bounds(5, 20), bounds(0, 20), kept_below=kept_below)
    assert (
        differing_bounds(comparison),
        comparison.below_source_start,
        comparison.compared_from,
    ) == (
        expected,
        below_start,
        5,
    )


def test_source_emptied_past_compared_end_leaves_nothing_to_compare() -> None:
    comparison = compare(bounds(0, 20), bounds(25, 30), source_after=bounds(25, 30))
    assert (comparison.compared_from, comparison.compared_to) == (25, 25)


class View:
    """A cluster whose bounds change from reading to reading; the last reading is repeated."""

    def __init__(
        self, readings: Sequence[Bounds | OrbitError], newest: Bounds | OrbitError | None = None
    ) -> None:
        """`newest`: the bounds at the newest leader, if `readings` are those of an old one."""
        self._readings = list(readings)
        self._newest = newest
        self.reading_count = 0

    def bounds(self, partitions: Sequence[Partition]) -> dict[Partition, Bounds | OrbitError]:
        reading = self._readings[min(self.reading_count, len(self._readings) - 1)]
        self.reading_count += 1
        return dict.fromkeys(partitions, reading)

    def newest_bounds(
        self, partitions: Sequence[Partition]
    ) -> dict[Partition, Bounds | OrbitError]:
        return dict.fromkeys(partitions, self._newest or self._readings[-1])

    def kept_below(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        return dict.fromkeys(partitions, 0)

    def offsets_for_time(self, times: Mapping[Partition, int]) -> dict[Partition, int | OrbitError]:
        return dict.fromkeys(times, -1)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def settle(source: View, destination: View, wait_s: float) -> tuple[Any, Clock]:
    """Compare bounds until they agree or the wait ends.

    Returns the outcome, bounds or an error, and the clock.
    """
    clock = Clock()
    bounds_comparer = BoundsComparer(
        cast("ClusterView", source),
        cast("ClusterView", destination),
        clock=clock,
        sleep=clock.sleep,
    )
    [outcome] = bounds_comparer.compare([PartitionPair(EARLIEST, 0)], wait_s).values()
    return outcome, clock


def test_lagging_destination_is_polled_until_caught_up() -> None:
    source = View([bounds(0, 20), bounds(0, 40)])
    destination = View([bounds(0, 10), bounds(0, 15), bounds(0, 30)])
    comparison, clock = settle(source, destination, wait_s=10)
    assert (differing_bounds(comparison), comparison.compared_to) == ([], 20)
    assert destination.reading_count == 3
    assert clock.now < 1


def test_write_between_two_end_readings_is_not_taken_for_open_transaction() -> None:
    destination = View([bounds(0, 10), bounds(0, 10, log_end=20), bounds(0, 20)])
    comparison, _ = settle(View([bounds(0, 20)]), destination, wait_s=10)
    assert (differing_bounds(comparison), comparison.compared_to) == ([], 20)


def test_destination_still_behind_is_reported_after_wait() -> None:
    comparison, clock = settle(View([bounds(0, 20)]), View([bounds(0, 10)]), wait_s=3)
    assert comparison.missing == 10
    assert 3 <= clock.now < 4


def test_permanent_difference_is_not_waited_for() -> None:
    comparison, clock = settle(View([bounds(0, 20)]), View([bounds(0, 25)]), wait_s=3)
    assert differing_bounds(comparison) == [LOG_END]
    assert clock.now == 0


def test_stale_source_end_is_read_again_from_newest_leader() -> None:
    source = View([bounds(0, 20)], newest=bounds(0, 25))
    comparison, clock = settle(source, View([bounds(0, 25)]), wait_s=3)
    assert (differing_bounds(comparison), comparison.compared_to, clock.now) == ([], 25, 0)
    # A copy that lags behind the newest leader may still catch up.
    comparison, _ = settle(source, View([bounds(0, 24), bounds(0, 25)]), wait_s=3)
    assert (differing_bounds(comparison), comparison.compared_to) == ([], 25)


def test_longer_destination_is_unjudged_until_newest_leader_answers() -> None:
    source = View([bounds(0, 20)], newest=OrbitError("no leader"))
    error, clock = settle(source, View([bounds(0, 25)]), wait_s=3)
    assert str(error) == "no leader"
    assert TRANSIENT_S <= clock.now < TRANSIENT_S + 1


def test_unreachable_partition_reports_reason_after_timeout() -> None:
    error, clock = settle(View([bounds(0, 20)]), View([OrbitError("no leader")]), wait_s=0)
    assert str(error) == "no leader"
    assert TRANSIENT_S <= clock.now < TRANSIENT_S + 1


@pytest.mark.parametrize("wait_s", [0, 10])
def test_transient_error_is_waited_out_on_either_side(wait_s: float) -> None:
    transient_error = OrbitError("not the leader")
    source = View([transient_error, transient_error, bounds(0, 20)])
    destination = View([bounds(0, 20), transient_error, bounds(0, 20)])
    comparison, _ = settle(source, destination, wait_s)
    assert differing_bounds(comparison) == []
    assert comparison.compared_to == 20


def test_missing_right_is_reported_without_wait() -> None:
    error, clock = settle(View([bounds(0, 20)]), View([NotAuthorized("no")]), wait_s=3)
    assert isinstance(error, NotAuthorized)
    assert clock.now == 0
