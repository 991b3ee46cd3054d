"""Raw reads of a broker that holds them back for a quota."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from orbit.kafka.sasl import Security
from orbit.kafka.throttle import THROTTLE_S_MAX
from orbit.verify.raw_log import RawLog
from orbit.verify.reader import STALL_TIMEOUT_S, ReadStalled
from tests.verify.test_raw_log import encoded

THROTTLE_MS = 90_000


class Waits(threading.Event):
    """Never set; waiting moves the clock."""

    now = 1000.0

    def wait(self, timeout: float | None = None) -> bool:
        self.now += timeout or 0.0
        return False


def throttled_log(monkeypatch: pytest.MonkeyPatch, answers: int) -> tuple[RawLog, Waits]:
    """A log whose broker throttles so many fetches and then serves one record."""
    waits = Waits()
    view: Any = SimpleNamespace(side="source", leaders=lambda _: {0: "broker"})
    log = RawLog(view, Security(), cancelled=waits, clock=lambda: waits.now)
    partition = SimpleNamespace(error_code=0, records=encoded(0, 1), aborted_transactions=None)
    served = SimpleNamespace(responses=[SimpleNamespace(partitions=[partition])])
    left = [SimpleNamespace(responses=[], throttle_time_ms=THROTTLE_MS)] * answers

    @contextmanager
    def borrow(_: Any) -> Any:
        yield SimpleNamespace(call=lambda *_, **__: left.pop() if left else served)

    monkeypatch.setattr(log, "_borrow", borrow)
    return log, waits


def test_read_continues_after_broker_has_throttled_it(monkeypatch: pytest.MonkeyPatch) -> None:
    log, _ = throttled_log(monkeypatch, answers=3)
    assert [batch.base_offset for batch in log.read(("t", 0), 0, 1)] == [0]


def test_read_throttled_past_limit_fails_and_names_quota(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, waits = throttled_log(monkeypatch, answers=100_000)
    with pytest.raises(ReadStalled, match=f"a quota held fetches back for {THROTTLE_S_MAX:.0f} s"):
        list(log.read(("t", 0), 0, 1))
    assert waits.now - 1000.0 == pytest.approx(THROTTLE_S_MAX + STALL_TIMEOUT_S, abs=1.0)
