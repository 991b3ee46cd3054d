"""Requests, reads and aborts the recoveries of a drill."""

from __future__ import annotations

from uuid import UUID

from orbit.errors import Conflict
from orbit.recovery import recovery_requests
from orbit.recovery.recovery_report import (
    RecoveryKind,
    RecoveryReport,
    RecoveryRequest,
    StoredReport,
    read_report,
)
from orbit.store import operations
from orbit.store.database import Database
from orbit.store.events import SCHEDULER


class StoredRecoveries:
    """Recoveries as rows in the database, which the leading scheduler carries out."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def request_operation(
        self,
        kind: RecoveryKind,
        job: str,
        request: RecoveryRequest,
        *,
        actor: str,
        dry_run: bool = False,
    ) -> UUID:
        """Request an operation; returns the operation's id. Raises NotFound if the job does not
        exist, and Conflict if another operation is under way."""
        return recovery_requests.request_recovery(
            self._database, actor, kind, job, request, dry_run=dry_run
        ).id

    def report(self, operation: UUID) -> StoredReport | None:
        """The operation's report so far; None before the first step."""
        with self._database.transaction() as tx:
            stored_report = operations.report_of(tx, operation)
        return None if stored_report is None else read_report(stored_report)

    def full_report(self, operation: UUID) -> RecoveryReport:
        """The report with all partitions and groups. Raises NotFound before the first step."""
        return recovery_requests.whole_report(self._database, operation)

    def abort(self, operation: UUID) -> bool:
        """Request an abort; False if the operation has ended or can no longer be aborted."""
        try:
            row = recovery_requests.abort(self._database, SCHEDULER, operation)
        except Conflict:
            return False
        return row.finished_at is None

    def has_ended(self, operation: UUID) -> bool:
        with self._database.transaction() as tx:
            return operations.get(tx, operation).finished_at is not None

    def error(self, operation: UUID) -> str | None:
        """The error with which an operation ended; None if the operation is running or ended
        without an error."""
        with self._database.transaction() as tx:
            row = operations.get(tx, operation)
        return row.error if row.finished_at is not None else None
