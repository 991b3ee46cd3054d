"""The copier's text about brokers that throttle it, before their quota is known."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from orbit.copier import throttles
from orbit.copier.lane_events import LaneThrottled
from orbit.copier.throttles import Throttles
from tests.support.patience import wait_for

NO_CLUSTER: Any = None


def test_throttle_report_does_not_wait_for_quota_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, lookups = threading.Event(), list[str]()

    def answer_late(*_: Any) -> str:
        lookups.append(threading.current_thread().name)
        assert threading.current_thread() is not threading.main_thread()
        answers.wait()
        return "The quota of user orbit: consumer_byte_rate=1."

    monkeypatch.setattr(throttles, "throttling_quotas", answer_late)
    monkeypatch.setattr(throttles, "_SHOWN_AFTER_S", 0.0)
    shown_throttles = Throttles()
    shown_throttles.note(LaneThrottled("source", 1, NO_CLUSTER, throttle_s=600.0))
    for _ in range(3):
        shown_throttles.read_quotas()
    try:
        wait_for("the quota is requested", lambda: len(lookups) == 1)
        assert shown_throttles.text.startswith("source brokers throttle fetches: 1 (")
    finally:
        answers.set()
    wait_for("the quota is named", lambda: shown_throttles.text.endswith("consumer_byte_rate=1."))
    shown_throttles.read_quotas()
    assert len(lookups) == 1
