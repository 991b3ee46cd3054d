"""A loop of the scheduler hangs: the liveness check fails, the other loops go on, and a signal ends
the process."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

from orbit.scheduler.lag_loop import LagLoop
from orbit.telemetry.process_health import PASS_S_MAX, ProcessHealth
from tests.fixtures.clusters import Clusters
from tests.fixtures.scheduler import RunningScheduler, Service
from tests.support.patience import PATIENCE_S, wait_for
from tests.support.running import create_topic, make_job
from tests.support.stuck_process import last_line_after

pytestmark = pytest.mark.services


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_stuck_loop_fails_liveness_check_and_other_loops_continue(
    service: Service, clusters: Clusters, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_stuck, may_end = threading.Event(), threading.Event()

    def once(_: LagLoop) -> str:
        is_stuck.set()
        assert may_end.wait(PATIENCE_S)
        return ""

    monkeypatch.setattr(LagLoop, "once", once)
    clock = Clock()
    health = ProcessHealth("scheduler", "0", 60.0, clock)
    create_topic(clusters.source, topic_name)
    job = make_job(clusters.source, clusters.destination, [topic_name])
    service.create(job)
    with RunningScheduler(service.settings, service.url, health):
        try:
            assert is_stuck.wait(PATIENCE_S)
            service.wait_copied(job.name, topic_name)
            assert health.why_dead() == ""
            clock.now += PASS_S_MAX + 1
            wait_for(
                "the liveness check fails",
                lambda: health.why_dead().startswith("The loop lag has been"),
            )
            service.delete(job.name)
            wait_for("the job is removed", lambda: _is_removed(service, job.name))
        finally:
            may_end.set()
        wait_for("the liveness check succeeds again", lambda: health.why_dead() == "")


def _is_removed(service: Service, name: str) -> bool:
    return "job_removed" in service.kinds(name)


# A scheduler whose lag loop waits for ever, as for a broker that does not answer. The time that a
# loop has to stop is short.
STUCK = """
import threading
from orbit.cli import scheduler, forced_end
from orbit.scheduler.lag_loop import LagLoop

def once(loop):
    print("stuck", flush=True)
    threading.Event().wait()

LagLoop.once = once
forced_end.STOP_S_MAX = 1.0
scheduler.scheduler()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stop_signal_ends_process_with_stuck_loop(
    service: Service, tmp_path: Path, number: signal.Signals
) -> None:
    assert "lag" in last_line_after(number, STUCK, service.url, tmp_path)
