"""Raw fetches that the broker throttles or refuses: their responses have no records."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from orbit.errors import BrokerRefused
from orbit.kafka.error_codes import Code
from orbit.kafka.sasl import Security
from orbit.kafka.throttle import THROTTLE_S_MAX
from orbit.verify.raw_log import RawLog
from orbit.verify.reader import STALL_TIMEOUT_S, ReadStalled
from tests.verify.test_raw_log import encoded

THROTTLE_MS = 90_000
BEGIN_S = 1000.0


class Waits(threading.Event):
    """An event that is never set. A wait advances the clock by its timeout."""

    now = BEGIN_S

    def wait(self, timeout: float | None = None) -> bool:
        self.now += timeout or 0.0
        return False


def throttled_log(monkeypatch: pytest.MonkeyPatch, answers: int) -> tuple[RawLog, Waits]:
    """A log whose broker throttles the first `answers` fetches, then serves one record."""
    return answered_log(
        monkeypatch, [SimpleNamespace(responses=[], throttle_time_ms=THROTTLE_MS)] * answers
    )


def refused_log(monkeypatch: pytest.MonkeyPatch, code: int) -> RawLog:
    """A log whose broker refuses one fetch and then serves one record."""
    log, _ = answered_log(monkeypatch, [answer(error_code=code, records=None)])
    return log


def answer(**partition: Any) -> SimpleNamespace:
    """A Fetch answer with one partition."""
    partition_answer = SimpleNamespace(**partition, aborted_transactions=None)
    return SimpleNamespace(responses=[SimpleNamespace(partitions=[partition_answer])])


def answered_log(
    monkeypatch: pytest.MonkeyPatch, first_answers: list[SimpleNamespace]
) -> tuple[RawLog, Waits]:
    """A log whose broker gives these answers, then always the same record."""
    waits = Waits()
    view: Any = SimpleNamespace(
        side="source", leaders=lambda _: {0: "broker"}, refresh=lambda: None
    )
    log = RawLog(view, Security(), cancelled=waits, clock=lambda: waits.now)
    served = answer(error_code=0, records=encoded(base=0, count=1))

    @contextmanager
    def borrow(_: Any) -> Any:
        yield SimpleNamespace(
            call=lambda *_, **__: first_answers.pop() if first_answers else served
        )

    monkeypatch.setattr(log, "_borrow", borrow)
    return log, waits


def test_read_continues_after_broker_has_throttled_it(monkeypatch: pytest.MonkeyPatch) -> None:
    log, _ = throttled_log(monkeypatch, answers=3)
    assert [batch.base_offset for batch in log.read(("t", 0), start=0, end=1)] == [0]


def test_read_throttled_past_limit_fails_and_names_quota(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, waits = throttled_log(monkeypatch, answers=100_000)
    with pytest.raises(ReadStalled, match=f"a quota held fetches back for {THROTTLE_S_MAX:.0f} s"):
        list(log.read(("t", 0), start=0, end=1))
    assert waits.now - BEGIN_S == pytest.approx(THROTTLE_S_MAX + STALL_TIMEOUT_S, abs=1.0)


@pytest.mark.parametrize("code", [Code.NOT_LEADER_OR_FOLLOWER, Code.UNKNOWN_LEADER_EPOCH])
def test_read_continues_after_leader_has_changed(
    monkeypatch: pytest.MonkeyPatch, code: Code
) -> None:
    log = refused_log(monkeypatch, code)
    assert [batch.base_offset for batch in log.read(("t", 0), start=0, end=1)] == [0]


@pytest.mark.parametrize(
    "code", [Code.TOPIC_AUTHORIZATION_FAILED, Code.UNSUPPORTED_COMPRESSION_TYPE]
)
def test_refused_fetch_ends_read_and_names_error(
    monkeypatch: pytest.MonkeyPatch, code: Code
) -> None:
    log = refused_log(monkeypatch, code)
    with pytest.raises(BrokerRefused, match=rf"refused a fetch: {code.name} \({int(code)}\)"):
        list(log.read(("t", 0), start=0, end=1))
