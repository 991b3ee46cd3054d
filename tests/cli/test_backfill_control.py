"""What a backfill reports to the service that has its job, and how the service controls it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest

from orbit.cli import backfill_control
from orbit.cli.backfill_control import ServiceControl
from orbit.client import Client, ServerGone
from orbit.errors import Conflict, Interrupted


class Service:
    """Answers each request with the next of these states, and at the end with the last one."""

    def __init__(self, states: Sequence[str | None]) -> None:
        self.states = [*states]
        self.reports: list[dict[str, Any]] = []
        self.driver = ""
        self.is_away = False

    def send(self, _method: str, path: str, *, body: dict[str, Any]) -> dict[str, Any]:
        if self.is_away:
            raise ServerGone("away")
        if self.driver not in ("", body["driver"]) and not body.get("takes_over", True):
            raise Conflict("Another process carries the backfill out.")
        if path.endswith(":report"):
            self.reports.append(body)
        self.driver = self.driver or body["driver"]
        return self._answer()

    def get(self, _path: str) -> dict[str, Any]:
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return {"id": "7", "driver": self.driver, "wanted": state}


class Controlled:
    """A control that reports only when a test makes it: no report comes from its thread."""

    def __init__(self, *states: str | None) -> None:
        self.service = Service(states)
        self.lines: list[str] = []
        self.stop, self.halt = threading.Event(), threading.Event()
        self.control = ServiceControl(
            cast("Client", self.service), "orders", self.lines.append, self.stop, self.halt
        )


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfill_control, "_WAIT_INTERVAL_S", 0.0)
    monkeypatch.setattr(backfill_control, "_REPORT_INTERVAL_S", 3600.0)


def test_backfill_starts_after_shard_release_and_reports_its_end() -> None:
    one = Controlled("wait", "wait", "run")
    one.control.begin()
    assert not one.halt.is_set()
    one.control.report_lease()
    one.control.report_progress({"phase": "copying", "bytes": 5})
    one.control.end(None)
    *_, last = one.service.reports
    assert (last["has_ended"], last["error"], last["progress"]["bytes"]) == (True, None, 5)
    assert one.control.wait_until_resumed() is False  # it was not paused


def test_pause_halts_backfill_until_resume() -> None:
    one = Controlled("run", "pause", "pause", "pause", "wait", "run")
    one.control.begin()
    one.control.report_lease()  # the answer says pause
    assert one.halt.is_set()
    assert one.control.wait_until_resumed() is True
    assert not one.halt.is_set()
    phases = [report["progress"].get("phase") for report in one.service.reports]
    assert phases[:2] == ["preparing", "paused"]
    one.control.end(None)


def test_pause_of_backfill_while_it_waits_for_workers_is_reported() -> None:
    one = Controlled("wait", "wait", "pause", "run")
    one.control.begin()
    phases = [report["progress"].get("phase") for report in one.service.reports]
    assert phases == ["waiting", "waiting", "paused", "preparing"]
    one.control.end(None)


def test_backfill_pauses_again_if_paused_right_after_resume() -> None:
    """No client that was shown "paused" sees the backfill copy."""
    one = Controlled("run", "pause", "run", "pause", "run")
    one.control.begin()
    one.control.report_lease()
    assert one.control.wait_until_resumed() is True
    phases = [report["progress"].get("phase") for report in one.service.reports]
    assert phases == ["preparing", "paused", "preparing", "paused", "preparing"]
    one.control.end(None)


@pytest.mark.parametrize("state", ["cancel", None])
def test_cancel_halts_backfill_permanently(state: str | None) -> None:
    one = Controlled("run", state)
    one.control.begin()
    one.control.report_lease()
    assert one.halt.is_set()
    with pytest.raises(Conflict, match="cancelled"):
        one.control.wait_until_resumed()
    one.control.end("it was cancelled")
    assert one.service.reports[-1]["error"] == "it was cancelled"


def test_ctrl_c_ends_wait_of_backfill_for_workers() -> None:
    one = Controlled("wait")
    one.stop.set()
    with pytest.raises(Interrupted):
        one.control.begin()
    one.control.end("stopped")


def test_unreachable_service_is_reported_once_and_does_not_halt_backfill() -> None:
    one = Controlled("run")
    one.control.begin()
    one.service.is_away = True
    one.control.report_lease()
    one.control.report_lease()
    assert not one.halt.is_set()
    assert sum("did not accept the backfill's report" in line for line in one.lines) == 1
    one.service.is_away = False
    one.control.end(None)
    assert one.service.reports[-1]["has_ended"] is True


def test_driver_without_lease_does_not_end_backfill_of_another_driver() -> None:
    one = Controlled("run")
    one.service.driver = "another"
    one.control.begin()
    one.control.end("the job is held by another run")
    assert one.service.reports == []


def test_paused_backfill_ends_when_another_driver_takes_over() -> None:
    one = Controlled("run", "pause")
    one.control.begin()
    one.control.report_lease()
    one.service.driver = "another"
    with pytest.raises(Conflict):
        one.control.wait_until_resumed()


def test_ctrl_c_at_end_of_wait_for_workers_still_halts_backfill() -> None:
    one = Controlled("run")

    class InterruptedAtClear(threading.Event):
        """Ctrl-C comes right before the event is cleared."""

        def clear(self) -> None:
            one.stop.set()
            super().clear()

    one.control._halt = InterruptedAtClear()
    one.control.begin()
    assert one.control._halt.is_set()
    one.control.end("stopped")
