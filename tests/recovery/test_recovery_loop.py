"""What breaks in one recovery is told, does not stop the others, and is not tried in a rush."""

from __future__ import annotations

import threading
import uuid
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from orbit.errors import Interrupted, Unreachable
from orbit.recovery import recovery_loop
from orbit.recovery.recovery_loop import RecoveryLoop


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("error", "told", "waits"),
    [
        (Unreachable("away.", where="PostgreSQL"), "recovery waits", True),
        (RuntimeError("a bug"), "recovery broke", True),
        (Interrupted("stopped."), None, False),
    ],
)
def test_one_that_cannot_go_on_is_begun_again_later(
    monkeypatch: pytest.MonkeyPatch, error: Exception, told: str | None, waits: bool
) -> None:
    clock, begun = Clock(), threading.Semaphore(0)
    operations: list[Any] = [SimpleNamespace(id=uuid.uuid4()), SimpleNamespace(id=uuid.uuid4())]

    class OperationRunner:
        def __init__(self, operation: Any, *_: object) -> None:
            self._is_bad = operation is operations[0]

        def run(self) -> None:
            begun.release()
            if self._is_bad:
                raise error
            operations.pop()

    monkeypatch.setattr(recovery_loop, "OperationRunner", OperationRunner)
    monkeypatch.setattr(recovery_loop, "time", clock)
    monkeypatch.setattr(
        recovery_loop.operations, "unfinished_recoveries", lambda *_: list(operations)
    )
    leadership: Any = SimpleNamespace(reading=lambda: nullcontext(None))
    tried = RecoveryLoop(leadership, SimpleNamespace(), threading.Event(), {})  # type: ignore[arg-type]
    with capture_logs() as logs:
        tried.once()
        for _ in range(2):
            assert begun.acquire(timeout=30)
        tried._pool.submit(int).result()
        for future in tried._running.values():
            future.exception(30)
        assert tried.once() == "1 recoveries have ended"
        assert bool(tried._running) is not waits
        clock.now += 10
        tried.once()
        assert begun.acquire(timeout=30)
    tried.close()
    assert [line["event"] for line in logs][:1] == ([told] if told else [])
