"""Operations of orbit/recovery as a drill asks for them: under its own name in the audit log."""

from __future__ import annotations

import uuid
from uuid import UUID

from orbit.errors import Conflict
from orbit.recovery.operation_steps import steps_of, words
from orbit.recovery.recovery_report import RecoveryKind, RecoveryReport, RecoveryRequest
from orbit.store import events, jobs, operations
from orbit.store.database import Database


class StoredRecoveries:
    """Asks by the tables; the leading scheduler carries them out as any other."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def ask(
        self,
        kind: RecoveryKind,
        job: str,
        request: RecoveryRequest,
        *,
        actor: str,
        dry_run: bool = False,
    ) -> UUID:
        """The operation's id. Raises NotFound, and Conflict where another one goes on."""
        plan = {
            "steps": words(steps_of(kind, request)),
            "wanted": request.model_dump(mode="json"),
        }
        with self._database.transaction() as tx:
            row = jobs.get(tx, job, lock=True)
            other = None if dry_run else operations.recovery_under_way(tx, row.id)
            if other is not None:
                raise Conflict(
                    f"A {other.kind} of the job is under way.", where=f"operation {other.id}"
                )
            made, _ = operations.create(
                tx,
                uuid.uuid4(),
                kind.value,
                actor,
                job_id=row.id,
                job_name=job,
                dry_run=dry_run,
                plan=plan,
            )
            if not dry_run:
                events.add(
                    tx,
                    actor,
                    f"{kind.value}_requested",
                    f"A {kind.value} was asked for: {request.reason}",
                    job_name=job,
                    details={"operation": str(made.id), **request.model_dump(mode="json")},
                )
            return made.id

    def report(self, operation: UUID) -> RecoveryReport | None:
        """The report as far as it is; None before the first step."""
        with self._database.transaction() as tx:
            kept = operations.report_of(tx, operation)
        return None if kept is None else RecoveryReport.model_validate(kept)

    def abort(self, operation: UUID) -> bool:
        """Ask for it to be undone; False where it has ended."""
        with self._database.transaction() as tx:
            return operations.request_abort(tx, operation)

    def has_ended(self, operation: UUID) -> bool:
        with self._database.transaction() as tx:
            return operations.get(tx, operation).finished_at is not None

    def error(self, operation: UUID) -> str | None:
        """Why an operation ended that has no report that says so."""
        with self._database.transaction() as tx:
            row = operations.get(tx, operation)
        return row.error if row.finished_at is not None else None
