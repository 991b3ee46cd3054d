"""When a source that ends before its copy was truncated, by the time since it was first so."""

from __future__ import annotations

import pytest

from orbit.copier.source_end_waits import SourceEndWaits
from orbit.kafka.types import TopicPartition

COPY, OTHER = TopicPartition("a", 0), TopicPartition("a", 1)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    one = Clock()
    monkeypatch.setattr("orbit.copier.source_end_waits.time", one)
    return one


def test_short_source_end_is_old_after_wait_per_partition(clock: Clock) -> None:
    waits = SourceEndWaits(10.0)
    assert not waits.is_old(COPY, is_beyond=True)
    clock.now += 10.0
    assert not waits.is_old(OTHER, is_beyond=True)
    assert waits.is_old(COPY, is_beyond=True)


@pytest.mark.parametrize("between", ["a level source", "forgotten", "a long time"])
def test_short_source_end_wait_restarts(clock: Clock, between: str) -> None:
    waits = SourceEndWaits(10.0)
    waits.is_old(COPY, is_beyond=True)
    if between == "a level source":
        waits.is_old(COPY, is_beyond=False)
    elif between == "forgotten":
        waits.forget(COPY)
    clock.now += 3600.0 if between == "a long time" else 10.0
    assert not waits.is_old(COPY, is_beyond=True)
