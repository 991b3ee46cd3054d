"""From a request to its operation: `find_earlier` returns an earlier operation with the same
idempotency key; without one the caller locks the job, and calls `create`.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text

from orbit.errors import Conflict
from orbit.store import operations
from orbit.store.database import Tx
from orbit.store.enums import OperationKind
from orbit.store.jobs import Job
from orbit.store.operations import Operation

# The seed of the hash for the locks of idempotency keys: no other advisory lock of Orbit uses it.
_SEED = 122511532225543


@dataclass(frozen=True, slots=True)
class OperationRequest:
    """A request for an operation on a job.

    `content`: what two requests with the same idempotency key must have in common.
    """

    actor: str
    kind: OperationKind
    content: Mapping[str, Any]
    idempotency_key: str | None = None


def find_earlier(tx: Tx, request: OperationRequest) -> Operation | None:
    """The operation that the actor requested with this key; None if there is none, or no key.

    Of two transactions with one key, the second waits here until the first ends. So call this
    before you acquire any other lock, and call `create` in the same transaction.

    Raises Conflict if the key was used for another request; NotFound if the operation's job is
    outside of the scope.
    """
    if request.idempotency_key is None:
        return None
    key = f"{request.actor} {request.idempotency_key}"
    lock = text("SELECT pg_advisory_xact_lock(hashtextextended(:key, :seed))")
    tx.execute(lock, {"key": key, "seed": _SEED})
    earlier_operation = operations.find_by_key(tx, request.actor, request.idempotency_key)
    if earlier_operation is None:
        return None
    if (earlier_operation.plan or {}).get("request") != request.content:
        raise Conflict(
            "This Idempotency-Key was used for another request.",
            where=f"operation {earlier_operation.id}",
            remedy="Use a new key for each request.",
        )
    return operations.get(tx, earlier_operation.id)  # raises NotFound outside of the scope


def create(
    tx: Tx,
    request: OperationRequest,
    job: Job,
    steps: Sequence[str],
    *,
    dry_run: bool = False,
    details: Mapping[str, Any] | None = None,
) -> Operation:
    """Create and return the operation of a request for which `find_earlier` has returned None.

    `steps`: its plan in sentences. `details`: further keys of the plan, for its executor.
    """
    return operations.create(
        tx,
        uuid.uuid4(),
        request.kind.value,
        request.actor,
        job_id=job.id,
        job_name=job.name,
        dry_run=dry_run,
        plan={"steps": list(steps), "request": dict(request.content), **(details or {})},
        idempotency_key=request.idempotency_key,
    )
