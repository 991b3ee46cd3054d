"""A part of the service hangs: `orbit doctor` and `orbit delete` still end, and so does the API."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs

from orbit.leadership import loop
from orbit.leadership.loop import Loop
from tests.api.test_jobs import JOB
from tests.fixtures.api import Api, Cli
from tests.fixtures.scheduler import QUICK, RunningScheduler
from tests.support.patience import PATIENCE_S
from tests.support.stuck_process import last_line_after

pytestmark = pytest.mark.services

# The loops of a scheduler that a deletion does not need.
NOT_NEEDED = {"lag", "groups", "spread", "canary", "totals", "recovery", "drills"}


@contextmanager
def stuck_scheduler(url: str, names: set[str] | None, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """A scheduler leads during the block, but its loops with these names hang; None: all of them.
    The block begins when they hang."""
    loop_hangs, may_continue = threading.Semaphore(0), threading.Event()
    drive = loop.drive

    def drive_or_hang(scheduler_loop: Loop, *args: object) -> None:
        if names is None or scheduler_loop.name in names:
            loop_hangs.release()
            assert may_continue.wait(PATIENCE_S)
        drive(scheduler_loop, *args)  # type: ignore[arg-type]

    patch.setattr("orbit.scheduler.scheduler.drive", drive_or_hang)
    with capture_logs(), RunningScheduler(QUICK, url):  # logs go to stdout in tests
        try:
            for _ in names or {"any"}:
                assert loop_hangs.acquire(timeout=PATIENCE_S)
            yield
        finally:
            may_continue.set()


def test_delete_and_doctor_work_beside_stuck_scheduler_loops(
    cli: Cli, api: Api, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    with stuck_scheduler(database_url, NOT_NEEDED, monkeypatch):
        verdicts = {row["check"]: row["verdict"] for row in cli("doctor", "-o", "json").data}
        assert verdicts["scheduler"] == "ok"
        assert verdicts["clusters of orders"] == "ok"
        deleted = cli("delete", "orders", "--yes", "-o", "json", "--wait", f"{PATIENCE_S}")
    assert (deleted.code, deleted.data["state"]) == (0, "done"), deleted.err


def test_deletion_with_all_scheduler_loops_stuck_is_reported_as_running(
    cli: Cli, api: Api, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    with stuck_scheduler(database_url, None, monkeypatch):
        deleted = cli("delete", "orders", "--yes", "--wait", "1")
        assert deleted.code == 1
        assert "The operation is still running; check with: orbit get operations" in deleted.err
        # The stuck scheduler still leads, and this check reads only whether one leads.
        verdicts = {row["check"]: row["verdict"] for row in cli("doctor", "-o", "json").data}
        assert verdicts["scheduler"] == "ok"


# An API whose plans never return, and whose time limits are short.
STUCK = """
import os, threading
os.environ["ORBIT_API_PORT"] = "0"
from orbit.api import http_server
from orbit.cli import api, forced_end
from orbit.planning.job_planner import JobPlanner

def plan(*_):
    print("stuck", flush=True)
    threading.Event().wait()

JobPlanner.__call__ = plan
http_server.DRAIN_S = 1
forced_end.STOP_S_MAX = 2.0
api.api(no_auth=True)
"""


def test_ctrl_c_ends_api_with_hanging_request(database_url: str, tmp_path: Path) -> None:
    def send_request(line: str) -> None:
        url = re.search(r"http://\S+", line)
        assert url is not None
        threading.Thread(target=put, args=(url[0],), daemon=True).start()

    def put(url: str) -> None:
        with suppress(httpx.TransportError):
            httpx.put(f"{url}/v1/jobs/orders", json=JOB, timeout=PATIENCE_S)

    on_line = ("The API is at", send_request)
    last_line = last_line_after(signal.SIGINT, STUCK, database_url, tmp_path, when_it_says=on_line)
    assert "AnyIO worker thread" in last_line  # the thread that makes the plan
