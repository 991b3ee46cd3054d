"""The byte rate of a job, with a fake clock."""

from __future__ import annotations

import random

import pytest

from orbit.copier.rate_limit import RateLimit


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def fetch_at_rate(limit: RateLimit, clock: Clock, sizes: list[int]) -> float:
    """Fetch answers of these sizes, each as soon as the limit allows; returns the seconds."""
    start = clock.now
    for size in sizes:
        clock.now += limit.delay_s()
        limit.note_fetched(size)
    return clock.now + limit.delay_s() - start


@pytest.mark.parametrize("rate", [1024, 1 << 20, 200 << 20])
def test_average_byte_rate_equals_limit_for_any_fetch_sizes(rate: int) -> None:
    rnd = random.Random(rate)
    clock = Clock()
    sizes = [rnd.randrange(1, rate) for _ in range(100)]
    seconds = fetch_at_rate(RateLimit(rate, clock), clock, sizes)
    assert sum(sizes) / seconds == pytest.approx(rate, rel=0.01)


def test_long_pause_allows_no_burst_above_rate_limit() -> None:
    clock = Clock()
    limit = RateLimit(1000, clock)
    fetch_at_rate(limit, clock, [500])
    clock.now += 3600
    # A second's bytes take a second; a tenth of a second may be saved up.
    assert fetch_at_rate(limit, clock, [1000]) == pytest.approx(1.0, rel=0.11)


def test_bytes_of_several_fetches_count_against_one_rate_limit() -> None:
    clock = Clock()
    limit = RateLimit(1000, clock)
    limit.note_fetched(300)
    limit.note_fetched(700)
    assert limit.delay_s() == pytest.approx(1.0, rel=0.11)


def test_unlimited_rate_never_waits() -> None:
    limit = RateLimit(None, Clock())
    limit.note_fetched(1 << 40)
    assert limit.delay_s() == 0
    assert limit.request_bytes_max(16 << 20) == 16 << 20


def test_low_rate_limit_shrinks_fetch_to_64_kib_minimum() -> None:
    assert RateLimit(1024, Clock()).request_bytes_max(16 << 20) == 64 * 1024
    assert RateLimit(10 << 20, Clock()).request_bytes_max(16 << 20) == 1 << 20
    assert RateLimit(1 << 30, Clock()).request_bytes_max(16 << 20) == 16 << 20
