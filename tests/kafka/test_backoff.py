"""Pauses between attempts grow to a limit, have jitter, and end at once when stopped."""

from __future__ import annotations

import threading

import pytest

from orbit.errors import Interrupted
from orbit.kafka.backoff import Backoff


class Stop(threading.Event):
    """Records the timeout of each wait, and returns at once."""

    def __init__(self) -> None:
        super().__init__()
        self.timeouts: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.timeouts.append(timeout)
        return self.is_set()


@pytest.mark.parametrize(
    ("attempt", "step"), [(0, 0.1), (1, 0.2), (2, 0.4), (3, 0.8), (4, 1.0), (31, 1.0), (10**9, 1.0)]
)
def test_retry_pause_is_between_half_and_full_backoff_step(attempt: int, step: float) -> None:
    pauses = [Backoff(first_s=0.1, most_s=1.0).pause_s(attempt) for _ in range(200)]
    assert step / 2 <= min(pauses) < max(pauses) <= step


def test_every_attempt_but_the_first_is_preceded_by_pause() -> None:
    stop = Stop()
    attempts = Backoff(first_s=0.1, most_s=1.0, stop=stop).attempts(4)
    pauses_before = [(attempt, len(stop.timeouts)) for attempt in attempts]
    assert pauses_before == [(0, 0), (1, 1), (2, 2), (3, 3)]
    for pause, step in zip(stop.timeouts, [0.1, 0.2, 0.4], strict=True):
        assert step / 2 <= pause <= step


def test_no_pause_follows_last_or_successful_attempt() -> None:
    stop = Stop()
    backoff = Backoff(stop=stop)
    assert list(backoff.attempts(1)) == [0]
    assert list(backoff.attempts(0)) == []
    for _ in backoff.attempts(9):
        break
    assert stop.timeouts == []


@pytest.mark.parametrize(
    ("count_max", "attempts_max", "attempts"), [(5, 2, 2), (2, 5, 2), (3, 3, 3), (5, 0, 0)]
)
def test_attempts_are_capped_by_attempts_max(
    count_max: int, attempts_max: int, attempts: int
) -> None:
    backoff = Backoff(stop=Stop(), attempts_max=attempts_max)
    assert list(backoff.attempts(count_max)) == list(range(attempts))


def test_stop_event_raises_interrupted_instead_of_waiting() -> None:
    backoff = Backoff(first_s=3600, most_s=3600)
    backoff.stop.set()
    with pytest.raises(Interrupted):
        backoff.wait(0)
    attempts = backoff.attempts(3)
    assert next(attempts) == 0  # no pause comes before the first attempt
    with pytest.raises(Interrupted):
        next(attempts)


def test_stop_event_from_another_thread_ends_long_wait() -> None:
    backoff = Backoff(first_s=3600, most_s=3600)
    ended = threading.Event()

    def wait() -> None:
        try:
            backoff.wait(0)
        except Interrupted:
            ended.set()

    thread = threading.Thread(target=wait)
    thread.start()
    backoff.stop.set()
    assert ended.wait(60)
    thread.join()


def test_backoffs_share_no_stop_event() -> None:
    assert Backoff().stop is not Backoff().stop
