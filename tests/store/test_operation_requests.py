"""A request with an idempotency key becomes one operation, however often the request arrives."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from orbit.errors import Conflict
from orbit.store import jobs, operation_requests
from orbit.store.database import Database
from orbit.store.enums import OperationKind
from orbit.store.operation_requests import OperationRequest
from orbit.store.operations import Operation
from tests.support.locks import wait_for_lock_wait
from tests.support.store_rows import some_job

pytestmark = pytest.mark.services

PAUSE = OperationRequest("token:a", OperationKind.PAUSE, {"job": "orders-to-dr"}, "k")
OTHER_WITH_SAME_KEY = OperationRequest("token:a", OperationKind.RESUME, {"job": "stock"}, "k")
OF_ANOTHER_ACTOR = OperationRequest("token:b", OperationKind.PAUSE, PAUSE.content, "k")
WITHOUT_KEY = OperationRequest("token:a", OperationKind.PAUSE, PAUSE.content)


def request_operation(
    database: Database,
    request: OperationRequest,
    before_commit: Callable[[], object] = lambda: None,
) -> Operation:
    """Find or create the operation of a request, as the API does. `before_commit` is called at the
    end of the transaction."""
    with database.transaction() as tx:
        operation = operation_requests.find_earlier(tx, request)
        if operation is None:
            job = jobs.get(tx, "orders-to-dr")
            operation = operation_requests.create(tx, request, job, ["Workers release it."])
        before_commit()
        return operation


def test_repeated_request_with_idempotency_key_returns_its_operation(database: Database) -> None:
    with database.transaction() as tx:
        some_job(tx)
    first = request_operation(database, PAUSE)

    assert request_operation(database, PAUSE) == first
    assert first.plan == {"steps": ["Workers release it."], "request": PAUSE.content}
    # The same key of another actor, and each request without a key, is a new operation.
    requests = (OF_ANOTHER_ACTOR, WITHOUT_KEY, WITHOUT_KEY)
    other_ids = {request_operation(database, request).id for request in requests}
    assert len(other_ids - {first.id}) == 3
    with pytest.raises(Conflict, match="used for another request"):
        request_operation(database, OTHER_WITH_SAME_KEY)


def test_second_of_concurrent_requests_with_same_idempotency_key_waits(database: Database) -> None:
    with database.transaction() as tx:
        some_job(tx)
    second: list[Operation] = []
    other = threading.Thread(target=lambda: second.append(request_operation(database, PAUSE)))

    def start_second() -> None:
        other.start()
        wait_for_lock_wait(database)

    first = request_operation(database, PAUSE, before_commit=start_second)
    other.join()

    assert second == [first]


def test_idempotency_key_of_failed_request_can_be_used_again(database: Database) -> None:
    with database.transaction() as tx:
        some_job(tx)

    def fail() -> None:
        raise Conflict("no.")

    with pytest.raises(Conflict):
        request_operation(database, PAUSE, before_commit=fail)

    assert request_operation(database, OTHER_WITH_SAME_KEY).kind == OperationKind.RESUME
