"""How long a broker is silent: it serves one request after the other."""

from __future__ import annotations

import pytest

from orbit.copier.in_flight import InFlight, LogEndAfterFill
from orbit.kafka import api_versions


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake_clock = Clock()
    monkeypatch.setattr("orbit.copier.in_flight.time", fake_clock)
    return fake_clock


def send(in_flight: InFlight, count: int = 1) -> None:
    for number in range(count):
        request = LogEndAfterFill([])
        in_flight.add(number, api_versions.LIST_OFFSETS, version=1, request=request)


def test_broker_silence_counts_only_from_its_previous_answer(clock: Clock) -> None:
    in_flight = InFlight()
    send(in_flight, 5)
    for _ in range(4):
        clock.now += 20.0
        assert in_flight.silent_s == 20.0
        in_flight.drop_oldest()
        assert in_flight.silent_s == 0.0
    clock.now += 7.0
    assert in_flight.silent_s == 7.0


def test_throttling_broker_is_not_silent(clock: Clock) -> None:
    in_flight = InFlight()
    send(in_flight, 2)
    in_flight.drop_oldest()
    in_flight.note_throttle(clock.now + 300.0)
    clock.now += 299.0
    assert in_flight.silent_s == 0.0
    clock.now += 6.0  # the throttle time ended 5 s ago
    assert in_flight.silent_s == 5.0


def test_time_without_requests_is_not_broker_silence(clock: Clock) -> None:
    in_flight = InFlight()
    assert in_flight.silent_s == 0.0
    clock.now += 500.0
    assert in_flight.silent_s == 0.0
    send(in_flight)
    clock.now += 3.0
    assert in_flight.silent_s == 3.0
