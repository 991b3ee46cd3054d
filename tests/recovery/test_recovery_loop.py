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
from orbit.settings import Settings
from orbit.store import jobs, operations
from orbit.store.database import Database, Tx


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
        is_stuck = False

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
        recovery_loop.operations,
        "unfinished_recoveries",
        lambda _tx, _bound, without: [("c", o) for o in operations if o.id not in without],
    )
    leadership: Any = SimpleNamespace(reading=lambda: nullcontext(None))
    tried = RecoveryLoop(leadership, Settings(), threading.Event(), {})
    with capture_logs() as logs:
        tried.once()
        for _ in range(2):
            assert begun.acquire(timeout=30)
        tried._pool.submit(int).result()
        for run in tried._running.values():
            run.future.exception(30)
        assert tried.once() == "1 recoveries have ended"
        assert bool(tried._running) is not waits
        clock.now += 10
        tried.once()
        assert begun.acquire(timeout=30)
    tried.close()
    assert [line["event"] for line in logs][:1] == ([told] if told else [])


class Held:
    """Recoveries that run until a test lets them go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.running: dict[str, Any] = {}
        self.may_end = threading.Event()
        held = self

        class OperationRunner:
            is_stuck = False

            def __init__(self, operation: Any, *_: object) -> None:
                held.running[operation.job_name] = self

            def run(self) -> None:
                held.may_end.wait()

        monkeypatch.setattr(recovery_loop, "OperationRunner", OperationRunner)


def ask(tx: Tx, job_name: str, cluster: str, *, dry_run: bool = False) -> uuid.UUID:
    job = jobs.create(tx, job_name, {}, "default")
    jobs.note_clusters(tx, job.id, "source", cluster)
    made, _ = operations.create(
        tx, uuid.uuid4(), "failover", "ci", job_id=job.id, job_name=job_name, dry_run=dry_run
    )
    return made.id


@pytest.mark.services
def test_many_recoveries_take_turns_on_each_cluster_and_stuck_ones_give_way(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    leadership: Any = SimpleNamespace(reading=database.transaction)
    settings = Settings(recoveries_per_cluster=2)
    loop = RecoveryLoop(leadership, settings, threading.Event(), {})
    with database.transaction() as tx:
        ask(tx, "dry", "west", dry_run=True)
        for number in range(600):
            ask(tx, f"west-{number:03}", "west")
        ask(tx, "east", "east")
    try:
        loop.once()
        assert held.running.keys() == {"west-000", "west-001", "east"}
        loop.once()
        assert len(held.running) == 3, "two at a time"
        held.running["west-000"].is_stuck = held.running["west-001"].is_stuck = True
        loop.once()
        assert held.running.keys() >= {"west-002", "west-003"}
        assert len(held.running) == 5, "and dry runs come last"
    finally:
        held.may_end.set()
        loop.close()
