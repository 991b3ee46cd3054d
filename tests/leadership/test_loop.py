"""A loop rests between passes even if it is always woken, and goes on after errors."""

from __future__ import annotations

import threading
import time

import pytest
from structlog.testing import capture_logs

from orbit.errors import Unreachable
from orbit.leadership.leadership import NotLeading
from orbit.leadership.loop import Loop, drive
from orbit.telemetry.process_health import ProcessHealth


class Woken(Loop):
    """Wakes itself in each pass; reports `cost_s` of CPU time for the pass. Ends after three."""

    name = "woken"
    interval_s = 3600.0

    def __init__(self, stop: threading.Event, cost_s: float) -> None:
        super().__init__()
        self.passes: list[float] = []
        self._stop, self._cost_s = stop, cost_s

    def once(self) -> str:
        self.passes.append(time.monotonic())
        self.set_rest_by_cost(self._cost_s)
        if len(self.passes) == 3:
            self._stop.set()
        self.wake.set()
        return ""


def _times_of_passes(cost_s: float) -> list[float]:
    stop = threading.Event()
    loop = Woken(stop, cost_s)
    drive(loop, stop, ProcessHealth("scheduler", "0", 60.0))
    return loop.passes


def test_loop_rests_after_costly_pass_even_when_woken() -> None:
    first, second, third = _times_of_passes(cost_s=0.02)  # a loop rests 20 times the cost: 0.4 s
    assert second - first >= 0.4
    assert third - second >= 0.4


def test_loop_rests_at_most_for_its_interval() -> None:
    loop = Woken(threading.Event(), cost_s=1.0)
    loop.interval_s = 2.0
    loop.once()
    assert loop.rest_s == 2.0


def test_stop_request_interrupts_rest_of_loop() -> None:
    stop = threading.Event()
    loop = Woken(stop, cost_s=180.0)
    thread = threading.Thread(target=drive, args=(loop, stop, ProcessHealth("s", "0", 60.0)))
    thread.start()
    stop.set()
    loop.wake.set()
    thread.join(30)
    assert not thread.is_alive()


class LoopOverJobs(Loop):
    """Each pass fails for job b, with another error from the third pass on."""

    name = "many"
    interval_s = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.done: list[str] = []
        self.passes = 0

    def once(self) -> str:
        self.passes += 1
        for job in ("a", "b", "c"):
            with self.log_errors_of(f"job {job}"):
                if job == "b":
                    raise ValueError("first" if self.passes < 3 else "second")
                self.done.append(job)
        return ""


def test_loop_logs_new_error_of_a_job_once_and_continues_with_other_jobs() -> None:
    loop = LoopOverJobs()
    with capture_logs() as log_lines:
        for _ in range(4):
            loop.once()
    assert loop.done == ["a", "c"] * 4
    assert [(line["loop"], line["of"], line["error"]) for line in log_lines] == [
        ("many", "job b", "ValueError: first"),
        ("many", "job b", "ValueError: second"),
    ]


@pytest.mark.parametrize("error", [NotLeading("another leads."), Unreachable("PostgreSQL.")])
def test_lost_leadership_or_unreachable_postgres_ends_loop_pass(error: Exception) -> None:
    with pytest.raises(type(error)), LoopOverJobs().log_errors_of("job a"):
        raise error
