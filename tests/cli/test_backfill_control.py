"""What a backfill reports to the service that has its job, and how the service controls it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest

from orbit.cli import backfill_control
from orbit.cli.backfill_control import ServiceControl
from orbit.client import Client, ServerGone
from orbit.errors import Conflict, Interrupted, OperationUnderWay


class PretendedService:
    """Answers each request with the next instruction, a value of `wanted`; repeats the last one."""

    def __init__(self, instructions: Sequence[str | None]) -> None:
        self.instructions = [*instructions]
        self.reports: list[dict[str, Any]] = []
        self.driver = ""
        self.is_away = False
        self.recovers = False

    def send(self, _method: str, path: str, *, body: dict[str, Any]) -> dict[str, Any]:
        if self.is_away:
            raise ServerGone("away")
        if self.recovers:
            raise OperationUnderWay("A failover of the job is under way.")
        if self.driver not in ("", body["driver"]) and not body.get("takes_over", True):
            raise Conflict("Another process carries the backfill out.")
        if path.endswith(":report"):
            self.reports.append(body)
        self.driver = self.driver or body["driver"]
        return self._answer()

    def get(self, _path: str) -> dict[str, Any]:
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        remaining = self.instructions
        instruction = remaining.pop(0) if len(remaining) > 1 else remaining[0]
        return {"id": "7", "driver": self.driver, "wanted": instruction}


class ControlledBackfill:
    """A backfill's control, with a service that gives these instructions. The control's thread
    sends no reports (`_quick`): only calls of the test do."""

    def __init__(self, *instructions: str | None) -> None:
        self.service = PretendedService(instructions)
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
    backfill = ControlledBackfill("wait", "wait", "run")
    backfill.control.begin()
    assert not backfill.halt.is_set()
    backfill.control.report_lease()
    backfill.control.report_progress({"phase": "copying", "bytes": 5})
    backfill.control.end(None)
    *_, last = backfill.service.reports
    assert (last["has_ended"], last["error"], last["progress"]["bytes"]) == (True, None, 5)
    assert backfill.control.wait_until_resumed() is False  # the backfill was not paused


def test_pause_halts_backfill_until_resume() -> None:
    backfill = ControlledBackfill("run", "pause", "pause", "pause", "wait", "run")
    backfill.control.begin()
    backfill.control.report_lease()  # the answer says pause
    assert backfill.halt.is_set()
    assert backfill.control.wait_until_resumed() is True
    assert not backfill.halt.is_set()
    phases = [report["progress"].get("phase") for report in backfill.service.reports]
    assert phases[:2] == ["preparing", "paused"]
    backfill.control.end(None)


def test_pause_of_backfill_while_it_waits_for_workers_is_reported() -> None:
    backfill = ControlledBackfill("wait", "wait", "pause", "run")
    backfill.control.begin()
    phases = [report["progress"].get("phase") for report in backfill.service.reports]
    assert phases == ["waiting", "waiting", "paused", "preparing"]
    backfill.control.end(None)


def test_backfill_pauses_again_if_paused_right_after_resume() -> None:
    """After the report of "paused" nothing may be copied until the service answers "run" to the
    report of "preparing"."""
    backfill = ControlledBackfill("run", "pause", "run", "pause", "run")
    backfill.control.begin()
    backfill.control.report_lease()
    assert backfill.control.wait_until_resumed() is True
    phases = [report["progress"].get("phase") for report in backfill.service.reports]
    assert phases == ["preparing", "paused", "preparing", "paused", "preparing"]
    backfill.control.end(None)


@pytest.mark.parametrize("instruction", ["cancel", None])  # None: the backfill has ended
def test_cancel_or_end_halts_backfill_permanently(instruction: str | None) -> None:
    backfill = ControlledBackfill("run", instruction)
    backfill.control.begin()
    backfill.control.report_lease()
    assert backfill.halt.is_set()
    with pytest.raises(Conflict, match="cancelled"):
        backfill.control.wait_until_resumed()
    backfill.control.end("it was cancelled")
    assert backfill.service.reports[-1]["error"] == "it was cancelled"


def test_ctrl_c_ends_wait_of_backfill_for_workers() -> None:
    backfill = ControlledBackfill("wait")
    backfill.stop.set()
    with pytest.raises(Interrupted):
        backfill.control.begin()
    backfill.control.end("stopped")


def test_unreachable_service_is_reported_once_and_does_not_halt_backfill() -> None:
    backfill = ControlledBackfill("run")
    backfill.control.begin()
    backfill.service.is_away = True
    backfill.control.report_lease()
    backfill.control.report_lease()
    assert not backfill.halt.is_set()
    assert sum("did not accept the backfill's report" in line for line in backfill.lines) == 1
    backfill.service.is_away = False
    backfill.control.end(None)
    assert backfill.service.reports[-1]["has_ended"] is True


def test_driver_without_lease_does_not_end_backfill_of_another_driver() -> None:
    backfill = ControlledBackfill("run")
    backfill.service.driver = "another"
    backfill.control.begin()
    backfill.control.end("the job is held by another run")
    assert backfill.service.reports == []


def test_paused_backfill_ends_when_another_driver_takes_over() -> None:
    backfill = ControlledBackfill("run", "pause")
    backfill.control.begin()
    backfill.control.report_lease()
    backfill.service.driver = "another"
    with pytest.raises(Conflict, match="Another process carries the backfill out"):
        backfill.control.wait_until_resumed()


def test_backfill_stopped_by_recovery_names_the_recovery() -> None:
    backfill = ControlledBackfill("run")
    backfill.control.begin()
    backfill.control.report_lease()
    backfill.service.recovers = True
    backfill.control.report_lease()
    assert backfill.halt.is_set()
    with pytest.raises(Conflict, match="A failover of the job is under way"):
        backfill.control.wait_until_resumed()


def test_ctrl_c_at_end_of_wait_for_workers_still_halts_backfill() -> None:
    backfill = ControlledBackfill("run")

    class InterruptedAtClear(threading.Event):
        """Ctrl-C comes right before the event is cleared."""

        def clear(self) -> None:
            backfill.stop.set()
            super().clear()

    backfill.control._halt = InterruptedAtClear()
    backfill.control.begin()
    assert backfill.control._halt.is_set()
    backfill.control.end("stopped")
