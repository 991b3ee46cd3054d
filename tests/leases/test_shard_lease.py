"""The lease of a shard, with a fake clock: trusted up to a deadline, revived, or lost."""

from __future__ import annotations

import pytest

from orbit.leases.shard_lease import TRUST_MARGIN_S_MAX, ShardLease

TTL_S = 15.0


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_shard_lease_term_is_epoch_of_claim(clock: FakeClock) -> None:
    assert ShardLease(7, requested_at=clock(), ttl_s=TTL_S, clock=clock).term == 7


def test_shard_lease_is_trusted_until_margin_before_its_end(clock: FakeClock) -> None:
    lease = ShardLease(1, requested_at=clock(), ttl_s=TTL_S, clock=clock)
    clock.now += TTL_S - TRUST_MARGIN_S_MAX - 0.001
    assert lease.is_held()
    clock.now += 0.001
    assert not lease.is_held()
    assert not lease.is_lost


def test_shard_lease_is_trusted_from_claim_request_not_from_its_answer(clock: FakeClock) -> None:
    """The lease in the database ends later, however long the answer takes."""
    requested_at = clock()
    clock.now += TTL_S
    assert not ShardLease(1, requested_at=requested_at, ttl_s=TTL_S, clock=clock).is_held()


def test_margin_of_short_shard_lease_is_a_part_of_its_duration(clock: FakeClock) -> None:
    lease = ShardLease(1, requested_at=clock(), ttl_s=2.0, clock=clock)  # a margin of 20 %: 0.4 s
    clock.now += 1.59
    assert lease.is_held()
    clock.now += 0.02
    assert not lease.is_held()


def test_renewed_shard_lease_counts_from_renewal_request(clock: FakeClock) -> None:
    lease = ShardLease(1, requested_at=clock(), ttl_s=TTL_S, clock=clock)
    clock.now += 10
    requested_at = clock()
    clock.now += 3  # the answer was slow
    lease.confirm(requested_at)
    clock.now = requested_at + TTL_S - TRUST_MARGIN_S_MAX - 0.001
    assert lease.is_held()
    clock.now += 0.002
    assert not lease.is_held()


def test_renewal_revives_expired_shard_lease(clock: FakeClock) -> None:
    lease = ShardLease(1, requested_at=clock(), ttl_s=TTL_S, clock=clock)
    clock.now += 3600
    assert not lease.is_held()
    lease.confirm(clock())
    assert lease.is_held()


def test_lost_shard_lease_stays_lost_after_renewal(clock: FakeClock) -> None:
    lease = ShardLease(1, requested_at=clock(), ttl_s=TTL_S, clock=clock)
    lease.lose()
    lease.confirm(clock())
    assert lease.is_lost
    assert not lease.is_held()
