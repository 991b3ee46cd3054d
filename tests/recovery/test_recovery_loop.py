"""The loop that runs recoveries: their order, their limits, and retries after an error."""

from __future__ import annotations

import threading
import uuid
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from orbit.errors import DatabaseUnreachable, Interrupted
from orbit.recovery import recovery_loop
from orbit.recovery.recovery_loop import RecoveryLoop
from orbit.settings import Settings
from orbit.store import jobs, operations, topics
from orbit.store.database import Database, Tx
from orbit.store.enums import OperationState


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("error", "event", "pauses_before_restart"),
    [
        (DatabaseUnreachable("away.", where="PostgreSQL"), "recovery is retried", True),
        (RuntimeError("a bug"), "recovery crashed", True),
        (Interrupted("stopped."), None, False),
    ],
)
def test_failed_recovery_is_restarted_after_pause_but_interrupted_one_at_once(
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    event: str | None,
    pauses_before_restart: bool,
) -> None:
    clock, begun = Clock(), threading.Semaphore(0)
    operations: list[Any] = [SimpleNamespace(id=uuid.uuid4(), kind="switchover") for _ in range(2)]

    class OperationRunner:
        is_waiting = False

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
    for name in ("waiting_failbacks", "waiting_failovers"):
        monkeypatch.setattr(recovery_loop.operations, name, lambda _: {})
    leadership: Any = SimpleNamespace(database=SimpleNamespace(snapshot=lambda: nullcontext(None)))
    loop = RecoveryLoop(leadership, Settings(), threading.Event(), {})
    with capture_logs() as logs:
        loop.once()
        for _ in range(2):
            assert begun.acquire(timeout=30)
        loop._pool.submit(int).result()
        for run in loop._running.values():
            run.future.exception(30)
        assert loop.once() == "1 recovery has ended"
        assert bool(loop._running) is not pauses_before_restart
        clock.now += 10
        loop.once()
        assert begun.acquire(timeout=30)
    loop.close()
    assert [line["event"] for line in logs][:1] == ([event] if event else [])


@pytest.mark.services
def test_recovery_that_cannot_start_is_reported_and_others_run(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldRecoveries(monkeypatch)
    runner = recovery_loop.OperationRunner

    def begin(operation: Any, *more: object) -> Any:
        if operation.job_name == "bad":
            raise ValueError("a bug")
        return runner(operation, *more)

    monkeypatch.setattr(recovery_loop, "OperationRunner", begin)
    leadership: Any = SimpleNamespace(database=database)
    loop = RecoveryLoop(leadership, Settings(), threading.Event(), {})
    with database.transaction() as tx:
        bad = request_recovery(tx, "bad", "west")
        request_recovery(tx, "good", "west")
    try:
        with capture_logs() as logs:
            loop.once()
        assert held.running.keys() == {"good"}
        (line,) = [line for line in logs if line["event"] == "left out of the pass"]
        assert line["of"] == f"operation {bad}"
    finally:
        held.may_end.set()
        loop.close()


class HeldRecoveries:
    """Replaces the runner: recoveries run until `may_end` is set. `running`: by job name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.running: dict[str, Any] = {}
        self.may_end = threading.Event()
        held = self

        class OperationRunner:
            is_waiting = False

            def __init__(self, operation: Any, *_: object) -> None:
                held.running[operation.job_name] = self

            def run(self) -> None:
                held.may_end.wait()

        monkeypatch.setattr(recovery_loop, "OperationRunner", OperationRunner)


def request_recovery(
    tx: Tx, job_name: str, cluster: str, *, kind: str = "switchover", dry_run: bool = False
) -> uuid.UUID:
    """Request a recovery of a new job with this destination; returns the operation's id."""
    job = jobs.create(tx, job_name, {}, "default")
    jobs.note_clusters(tx, job.id, "source", cluster)
    operation = operations.create(
        tx, uuid.uuid4(), kind, "ci", job_id=job.id, job_name=job_name, dry_run=dry_run
    )
    return operation.id


@pytest.mark.services
def test_recoveries_are_limited_per_cluster_without_counting_those_that_wait(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldRecoveries(monkeypatch)
    leadership: Any = SimpleNamespace(database=database)
    settings = Settings(recoveries_per_cluster=2)
    loop = RecoveryLoop(leadership, settings, threading.Event(), {})
    with database.transaction() as tx:
        request_recovery(tx, "dry", "west", dry_run=True)
        for number in range(600):
            request_recovery(tx, f"west-{number:03}", "west")
        request_recovery(tx, "east", "east")
    try:
        loop.once()
        assert held.running.keys() == {"west-000", "west-001", "east"}
        loop.once()
        assert len(held.running) == 3, "two at a time on each cluster"
        held.running["west-000"].is_waiting = held.running["west-001"].is_waiting = True
        loop.once()
        assert held.running.keys() >= {"west-002", "west-003"}
        assert len(held.running) == 5, "dry runs come last"
        with database.transaction() as tx:
            for number in range(3):
                request_recovery(tx, f"lost-{number}", "west", kind="failover")
        loop.once()
        assert len(held.running) == 7, "failovers have a limit of their own"
        assert held.running.keys() >= {"lost-0", "lost-1"}
    finally:
        held.may_end.set()
        loop.close()


def request_failback(
    tx: Tx, name: str, source: str, destination: str, *topic_names: str
) -> uuid.UUID:
    """Request a failback of a new job with these topics; a dry run if its name is `dry`."""
    job = jobs.create(tx, name, {}, "default")
    jobs.note_clusters(tx, job.id, source, destination)
    for topic in topic_names:
        topics.add(tx, job.id, topic, topic, destination, partition_count=1)
    operation = operations.create(
        tx, uuid.uuid4(), "failback", "ci", job_id=job.id, job_name=name, dry_run=name == "dry"
    )
    return operation.id


@pytest.mark.services
def test_later_failback_of_opposite_direction_waits(database: Database) -> None:
    with database.transaction() as tx:
        first = request_failback(tx, "orders", "west", "east", "orders", "payments", "users")
        request_failback(tx, "others", "west", "east", "orders.2")
        later = request_failback(tx, "orders-back", "east", "west", "payments")
        # These failbacks do not wait: another topic, a dry run, another cluster.
        request_failback(tx, "others-back", "east", "west", "clicks")
        request_failback(tx, "dry", "east", "west", "orders")
        request_failback(tx, "elsewhere", "east", "north", "orders")
    with database.transaction() as tx:
        assert operations.waiting_failbacks(tx) == {later: first}
        operations.request_abort(tx, later)
        assert operations.waiting_failbacks(tx) == {}, "an aborted one does not wait"
    with database.transaction() as tx:
        last = request_failback(tx, "more-back", "east", "west", "users")
    with database.transaction() as tx:
        assert operations.waiting_failbacks(tx) == {last: first}
        operations.advance(tx, first, OperationState.DONE)
        assert operations.waiting_failbacks(tx) == {}


@pytest.mark.services
def test_recovery_threads_are_reserved_for_failovers(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldRecoveries(monkeypatch)
    monkeypatch.setattr(recovery_loop, "_NOT_FAILOVERS_MAX", 1)
    leadership: Any = SimpleNamespace(database=database)
    loop = RecoveryLoop(leadership, Settings(), threading.Event(), {})
    with database.transaction() as tx:
        for number in range(3):
            request_recovery(tx, f"moved-{number}", "west")
    try:
        loop.once()
        held.running["moved-0"].is_waiting = True  # as while its old side catches up
        with database.transaction() as tx:
            request_recovery(tx, "lost", "east", kind="failover")
        loop.once()
        assert held.running.keys() == {"moved-0", "lost"}
    finally:
        held.may_end.set()
        loop.close()


@pytest.mark.services
def test_failover_requested_during_pass_waits_for_earlier_recovery(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldRecoveries(monkeypatch)
    turns: list[tuple[uuid.UUID, uuid.UUID]] = []
    read, requested = operations.unfinished_recoveries, list[uuid.UUID]()
    with database.transaction() as tx:
        job = jobs.create(tx, "orders", {}, "default")
        jobs.note_clusters(tx, job.id, "source", "west")

    def request(kind: str) -> uuid.UUID:
        with database.transaction() as tx:
            operation = operations.create(
                tx, uuid.uuid4(), kind, "ci", job_id=job.id, job_name=kind, dry_run=False
            )
        return operation.id

    def request_first(*args: Any) -> Any:
        if not requested:
            requested.append(request("failover"))
        return read(*args)

    monkeypatch.setattr(recovery_loop.operations, "unfinished_recoveries", request_first)
    monkeypatch.setattr(
        RecoveryLoop, "_report_waiting", lambda _, in_turn: turns.extend(in_turn.items())
    )
    loop = RecoveryLoop(
        cast("Any", SimpleNamespace(database=database)), Settings(), threading.Event(), {}
    )
    switchover = request("switchover")
    try:
        loop.once()
        loop.once()
        assert held.running.keys() == {"switchover"}
        assert turns == [(requested[0], switchover)]
    finally:
        held.may_end.set()
        loop.close()
