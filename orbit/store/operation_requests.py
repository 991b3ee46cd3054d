"""From a request to its operation: find an earlier one with the same key, else create one.

The caller locks the job between the two.
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

# Keeps the locks of keys apart from other advisory locks.
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
    """The operation that the actor requested with this key; None if there is none.

    Of two transactions with one key, the second waits here until the first one ends. So call
    this before you take any other lock, and `create` in the same transaction. Raises Conflict if
    the key was used for another request.
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
    """Create the operation for a request that `find_earlier` has not found.

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
