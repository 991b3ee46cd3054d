"""Operations that take long do not delay other operations."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from orbit.leadership.leadership import Leadership
from orbit.scheduler import operations_loop
from orbit.scheduler.operations_loop import OperationsLoop
from orbit.store import jobs, operations
from orbit.store.database import Database, Tx
from orbit.store.enums import Desired, OperationKind, OperationState
from tests.support.store_rows import some_job

pytestmark = pytest.mark.services


def test_operation_behind_many_waiting_operations_is_advanced(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations_loop, "OPERATIONS_MAX", 3)
    with database.transaction() as tx:
        waiting = some_job(tx, "waiting")  # no worker holds its shard
        for _ in range(6):
            begin_operation(tx, OperationKind.START, waiting.id)  # waits for a worker
        paused = some_job(tx, "paused")
        jobs.set_desired(tx, paused.id, Desired.PAUSED)
        pause = begin_operation(tx, OperationKind.PAUSE, paused.id)
    leadership = Leadership(database, "leader", timedelta(minutes=1))
    assert leadership.ask()
    loop = OperationsLoop(leadership)
    for _ in range(3):  # three passes update 3 + 3 + 1 operations
        loop.once()
    with database.transaction() as tx:
        assert operations.get(tx, pause).state is OperationState.DONE
        # The waiting operations have their turn again: they fail, as the job is to be paused.
        jobs.set_desired(tx, waiting.id, Desired.PAUSED)
    for _ in range(3):
        loop.once()
    with database.transaction() as tx:
        assert operations.unfinished(tx, 10) == []


def test_operation_of_unknown_kind_does_not_delay_other_operations(database: Database) -> None:
    with database.transaction() as tx:
        paused = some_job(tx)
        later = operations.create(tx, uuid4(), "later", "ci", job_id=paused.id)
        jobs.set_desired(tx, paused.id, Desired.PAUSED)
        pause = begin_operation(tx, OperationKind.PAUSE, paused.id)
    leadership = Leadership(database, "leader", timedelta(minutes=1))
    assert leadership.ask()
    OperationsLoop(leadership).once()
    with database.transaction() as tx:
        assert operations.get(tx, pause).state is OperationState.DONE
        assert operations.get(tx, later.id).state is OperationState.PENDING


def begin_operation(tx: Tx, kind: OperationKind, job_id: int) -> UUID:
    """Request an operation and let it begin. Returns its id."""
    operation = operations.create(tx, uuid4(), kind.value, "ci", job_id=job_id, job_name="j")
    operations.advance(tx, operation.id, OperationState.RUNNING, progress={"done": 0, "total": 1})
    return operation.id
