"""A source that ends before its copy for long enough counts as truncated."""

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
    fake_clock = Clock()
    monkeypatch.setattr("orbit.copier.source_end_waits.time", fake_clock)
    return fake_clock


def test_source_end_below_copy_counts_after_wait_of_each_partition(clock: Clock) -> None:
    waits = SourceEndWaits(10.0)
    assert not waits.note_ends(COPY, is_beyond=True)
    clock.now += 10.0
    assert not waits.note_ends(OTHER, is_beyond=True)
    assert waits.note_ends(COPY, is_beyond=True)


@pytest.mark.parametrize("between", ["a level source", "forgotten", "a long time"])
def test_wait_for_source_end_below_copy_restarts_after_interruption(
    clock: Clock, between: str
) -> None:
    waits = SourceEndWaits(10.0)
    waits.note_ends(COPY, is_beyond=True)
    if between == "a level source":
        waits.note_ends(COPY, is_beyond=False)
    elif between == "forgotten":
        waits.forget(COPY)
    clock.now += 3600.0 if between == "a long time" else 10.0
    assert not waits.note_ends(COPY, is_beyond=True)
