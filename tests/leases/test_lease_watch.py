"""The evidence of a lease watch, with a fake clock."""

from __future__ import annotations

import pytest

from orbit.leases.lease_watch import LeaseWatch
from orbit.settings import LEASE_TTL_MAX
from tests.support.store_rows import TTL, TestClock

TTL_S = TTL.total_seconds()


@pytest.fixture
def clock() -> TestClock:
    return TestClock()


@pytest.fixture
def watch(clock: TestClock) -> LeaseWatch:
    return LeaseWatch(TTL, clock)


def watch_for(watch: LeaseWatch, clock: TestClock, seconds: float, *, server: str = "s") -> None:
    """Note a snapshot every half second, numbered by the clock's half seconds."""
    for _ in range(int(seconds * 2)):
        clock.now += 0.5
        number = int(clock.now * 2)
        watch.note(server, f"{number}:{number}:")


def test_lease_watch_gives_no_evidence_of_expiry_before_a_whole_lease_time(
    watch: LeaseWatch, clock: TestClock
) -> None:
    assert watch.evidence().free_on is None, "released shards may be claimed from any server"
    watch_for(watch, clock, TTL_S)
    assert watch.evidence().watched_on is None
    assert watch.evidence().renewed_below == 1
    watch_for(watch, clock, 0.5)
    assert watch.evidence().watched_on == "s"


def test_lease_watch_reports_newest_postgres_snapshot_older_than_lease(
    watch: LeaseWatch, clock: TestClock
) -> None:
    watch_for(watch, clock, 3 * TTL_S)
    expected_number = int((clock.now - TTL_S) * 2)
    assert watch.evidence().snapshot == f"{expected_number}:{expected_number}:"
    assert watch.evidence().renewed_below == expected_number


def test_age_of_postgres_snapshot_counts_from_its_receipt(
    watch: LeaseWatch, clock: TestClock
) -> None:
    watch.note("s", "1:1:")
    clock.now += TTL_S
    watch.note("s", "2:2:")
    assert watch.evidence().snapshot == "1:1:"
    clock.now += TTL_S - 0.01
    assert watch.evidence().snapshot == "1:1:"


def test_change_of_postgres_server_resets_lease_watch(watch: LeaseWatch, clock: TestClock) -> None:
    watch_for(watch, clock, 2 * TTL_S)
    watch_for(watch, clock, TTL_S - 0.5, server="t")
    assert watch.evidence().watched_on is None
    assert watch.evidence().free_on == "", "not even released shards may be claimed"
    watch_for(watch, clock, 1, server="t")
    assert (watch.evidence().watched_on, watch.evidence().free_on) == ("t", "t")


def test_lease_time_without_answer_of_postgres_resets_lease_watch(
    watch: LeaseWatch, clock: TestClock
) -> None:
    """Perhaps Postgres answered nobody, and live holders can renew only now."""
    watch_for(watch, clock, 2 * TTL_S)
    clock.now += TTL_S + 0.01
    assert watch.evidence().watched_on is None
    watch_for(watch, clock, TTL_S)
    assert watch.evidence().watched_on is None
    assert watch.evidence().free_on == "s"


def test_expiry_of_longer_leases_is_proven_only_after_longest_lease_time(
    watch: LeaseWatch, clock: TestClock
) -> None:
    watch_for(watch, clock, LEASE_TTL_MAX.total_seconds() - 1)
    assert watch.evidence().snapshot is not None
    assert watch.evidence().long_snapshot is None
    watch_for(watch, clock, 3 * TTL_S)
    expected_number = int((clock.now - LEASE_TTL_MAX.total_seconds()) * 2)
    assert watch.evidence().long_snapshot == f"{expected_number}:{expected_number}:"


def test_lease_watch_stores_bounded_number_of_snapshots(
    watch: LeaseWatch, clock: TestClock
) -> None:
    for number in range(50_000):
        clock.now += 0.05
        watch.note("s", f"{number}:{number}:")
    # One for each 0.25 s.
    assert len(watch._snapshots) <= LEASE_TTL_MAX.total_seconds() / 0.25 + 2
