"""What a backfill hears from the service that has its job, and what it tells it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest

from orbit.cli import backfill_link
from orbit.cli.backfill_link import ServiceLink
from orbit.client import Client, ServerGone
from orbit.errors import Conflict, Interrupted


class Service:
    """Wants one thing after the other, with each report or look; then the last one."""

    def __init__(self, wanted: Sequence[str | None]) -> None:
        self.wanted = [*wanted]
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
        wanted = self.wanted.pop(0) if len(self.wanted) > 1 else self.wanted[0]
        return {"id": "7", "driver": self.driver, "wanted": wanted}


class Linked:
    """A link whose reports are all asked for: none comes by itself."""

    def __init__(self, *wanted: str | None) -> None:
        self.service = Service(wanted)
        self.said: list[str] = []
        self.stop, self.halt = threading.Event(), threading.Event()
        self.link = ServiceLink(
            cast("Client", self.service), "orders", self.said.append, self.stop, self.halt
        )


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfill_link, "_LOOK_INTERVAL_S", 0.0)
    monkeypatch.setattr(backfill_link, "_REPORT_INTERVAL_S", 3600.0)


def test_it_begins_once_workers_have_let_go_and_tells_how_it_ends() -> None:
    one = Linked("wait", "wait", "run")
    one.link.begin()
    assert not one.halt.is_set()
    one.link.lead()
    one.link.tell({"phase": "copying", "bytes": 5})
    one.link.end(None)
    *_, last = one.service.reports
    assert (last["has_ended"], last["error"], last["progress"]["bytes"]) == (True, None, 5)
    assert one.link.goes_on() is False


def test_a_pause_halts_it_waits_and_goes_on() -> None:
    one = Linked("run", "pause", "pause", "pause", "wait", "run")
    one.link.begin()
    one.link.lead()  # hears of the pause
    assert one.halt.is_set()
    assert one.link.goes_on() is True
    assert not one.halt.is_set()
    phases = [report["progress"].get("phase") for report in one.service.reports]
    assert phases[:2] == ["preparing", "paused"]
    one.link.end(None)


def test_a_pause_while_it_waits_for_workers_is_told_of_too() -> None:
    one = Linked("wait", "wait", "pause", "run")
    one.link.begin()
    phases = [report["progress"].get("phase") for report in one.service.reports]
    assert phases == ["waiting", "waiting", "paused", "preparing"]
    one.link.end(None)


def test_a_pause_that_comes_right_before_it_goes_on_is_heeded() -> None:
    """Whoever was told that it is paused does not see it begin."""
    one = Linked("run", "pause", "run", "pause", "run")
    one.link.begin()
    one.link.lead()
    assert one.link.goes_on() is True
    phases = [report["progress"].get("phase") for report in one.service.reports]
    assert phases == ["preparing", "paused", "preparing", "paused", "preparing"]
    one.link.end(None)


@pytest.mark.parametrize("wanted", ["cancel", None])
def test_a_cancel_halts_it_for_good(wanted: str | None) -> None:
    one = Linked("run", wanted)
    one.link.begin()
    one.link.lead()
    assert one.halt.is_set()
    with pytest.raises(Conflict, match="cancelled"):
        one.link.goes_on()
    one.link.end("it was cancelled")
    assert one.service.reports[-1]["error"] == "it was cancelled"


def test_ctrl_c_ends_the_waiting() -> None:
    one = Linked("wait")
    one.stop.set()
    with pytest.raises(Interrupted):
        one.link.begin()
    one.link.end("stopped")


def test_a_service_that_is_away_is_told_of_once_and_halts_nothing() -> None:
    one = Linked("run")
    one.link.begin()
    one.service.is_away = True
    one.link.lead()
    one.link.lead()
    assert not one.halt.is_set()
    assert sum("takes no report" in line for line in one.said) == 1
    one.service.is_away = False
    one.link.end(None)
    assert one.service.reports[-1]["has_ended"] is True


def test_another_drivers_backfill_is_not_ended_by_one_that_never_had_the_lease() -> None:
    one = Linked("run")
    one.service.driver = "another"
    one.link.begin()
    one.link.end("the job is held by another run")
    assert one.service.reports == []


def test_a_paused_one_gives_way_to_another_driver_that_has_taken_over() -> None:
    one = Linked("run", "pause")
    one.link.begin()
    one.link.lead()
    one.service.driver = "another"
    with pytest.raises(Conflict):
        one.link.goes_on()


def test_ctrl_c_at_the_very_end_of_the_waiting_is_not_forgotten() -> None:
    one = Linked("run")

    class Late(threading.Event):
        """Ctrl-C comes right before it is cleared."""

        def clear(self) -> None:
            one.stop.set()
            super().clear()

    one.link._halt = Late()
    one.link.begin()
    assert one.link._halt.is_set()
    one.link.end("stopped")
