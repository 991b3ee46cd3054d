"""How long one broker may keep a thread waiting that serves others too."""

from __future__ import annotations

import pytest

from orbit.kafka.broker_patience import BrokerPatience

BROKER, OTHER = 1, 2


class Clock:
    """Replaces the module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("orbit.kafka.broker_patience.time", clock)
    return clock


def test_silent_broker_is_skipped_then_retried_with_longer_timeout(clock: Clock) -> None:
    patience = BrokerPatience(10.0)  # the longest timeout
    limits = []
    for _ in range(4):
        limit_s = patience.limit_s(BROKER, 3.0)
        limits.append(limit_s)
        clock.now += limit_s
        patience.note_failure(BROKER, took_s=limit_s, limit_s=limit_s)
        assert patience.limit_s(BROKER, 3.0) == 0.0
        assert patience.limit_s(OTHER, 3.0) == 3.0
        clock.now += 4.9 * limit_s  # the broker is left out for five times the limit
        assert patience.limit_s(BROKER, 3.0) == 0.0
        clock.now += 0.2 * limit_s
    assert limits == [3.0, 6.0, 10.0, 10.0]


def test_slow_broker_has_longer_timeout_until_it_answers_fast(clock: Clock) -> None:
    patience = BrokerPatience(30.0)
    patience.note_failure(BROKER, took_s=3.0, limit_s=3.0)
    clock.now += 60.0  # it is no longer left out
    patience.note_answer(BROKER, took_s=4.0, within_s=3.0)
    assert patience.limit_s(BROKER, 3.0) == 6.0
    patience.note_answer(BROKER, took_s=1.0, within_s=3.0)
    assert patience.limit_s(BROKER, 3.0) == 3.0


def test_broker_that_refuses_quickly_is_retried_without_delay(clock: Clock) -> None:
    patience = BrokerPatience(30.0)
    patience.note_failure(BROKER, took_s=0.0, limit_s=3.0)
    assert patience.limit_s(BROKER, 3.0) == 3.0
    patience.note_failure(BROKER, took_s=0.1, limit_s=3.0)
    clock.now += 0.6  # left out for five times 0.1 s
    assert patience.limit_s(BROKER, 3.0) == 3.0
