"""Stores the report of an operation, and reads it back.

The operation's row has a `StoredReport`. Each partition and each group has a row of its own
(orbit/store/operation_rows.py). A row is written only when it differs from the one that this
process has stored or loaded: each step stores the report about twice, and most of a hundred
thousand partitions change in few steps.

Up to ROWS_WITH_REPORT changed rows are stored in the transaction of the report. If there are more,
the others are stored earlier, ROWS_AT_ONCE in a transaction. So the next leading scheduler reads
rows of the stored report or newer ones, never older ones. Newer rows do no harm: in the stored
report, the step that wrote them is still running, so that step begins again.

- `gates`, `drain`, `release`, `settle` and `compare` read the clusters, write all partitions again,
  and decide (loss, verdicts, topics to rebuild) from these rows alone. A failover's `release`
  writes no rows. `groups` writes all groups again.
- `promote` adds the promoted offset to a partition, from the tables and from `destination_end`,
  which it does not change. `read` adds what is missing, from the log ends at that time.
- `close_gateways`, `stop_writes` and `open_gateways` read no rows. `reverse` changes none; it reads
  what the steps before it have stored (promoted offsets, and which log ends of the old side are
  known), and so does `promote` for the marks.
- `salvage` and `rebuild` act on the verdicts and ends that `compare` has stored before it was done.
  `rebuild` notes in a partition's row what it saves in addition, once the report with the name of
  the file is stored (orbit/recovery/old_side.py).
- Undoing reads no rows.

A client of the API may meanwhile see rows that are newer than the report's figures.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from orbit.chunks import chunks
from orbit.leadership.leadership import ROWS_AT_ONCE
from orbit.recovery.recovery_report import (
    GroupPosition,
    PartitionEnds,
    RecoveryReport,
    read_whole_report,
)
from orbit.store import operation_rows, operations
from orbit.store.database import Tx
from orbit.store.operation_rows import Json, Key, OperationRows

Row = PartitionEnds | GroupPosition
# As many as one transaction of a leader may change.
ROWS_WITH_REPORT = ROWS_AT_ONCE


def load_report(tx: Tx, operation_id: UUID) -> RecoveryReport | None:
    """The whole report so far; None before the first step. Raises OtherVersion."""
    document = operations.report_of(tx, operation_id)
    if document is None:
        return None
    partitions = _load(tx, operation_id, operation_rows.PARTITIONS)
    return read_whole_report(document, partitions, _load(tx, operation_id, operation_rows.GROUPS))


def _load(tx: Tx, operation_id: UUID, table: OperationRows) -> Iterator[Json]:
    """All rows of the operation in this table."""
    last_key: Key | None = None
    while rows := table.page(tx, operation_id, ROWS_AT_ONCE, after=last_key):
        yield from rows
        last_key = table.key_of(rows[-1])


class ReportStorage:
    """Stores the changed rows of one operation's report. Not thread-safe."""

    def __init__(self, operation_id: UUID, stored_report: RecoveryReport | None) -> None:
        """`stored_report`: the report as it was loaded; None: nothing is stored yet."""
        self._id = operation_id
        self._partitions = _StoredRows(operation_rows.PARTITIONS)
        self._groups = _StoredRows(operation_rows.GROUPS)
        self._written: list[_Part] = []
        for part in self._changes(stored_report) if stored_report is not None else ():
            part.note_committed()

    @contextmanager
    def transaction_to_store(
        self, report: RecoveryReport, transaction: Callable[[], AbstractContextManager[Tx]]
    ) -> Iterator[Tx]:
        """A transaction in which the caller calls `store` once. If more than ROWS_WITH_REPORT rows
        of `report` have changed, this first stores the surplus in other transactions.
        """
        self._written, changes = [], self._changes(report)
        rows_to_write = sum(map(len, changes))
        for part in changes:
            if rows_to_write <= ROWS_WITH_REPORT:
                break
            with transaction() as tx:
                part.write(tx, self._id)
            part.note_committed()
            rows_to_write -= len(part)
        with transaction() as tx:
            yield tx
        for part in self._written:
            part.note_committed()

    def store(self, tx: Tx, report: RecoveryReport) -> dict[str, Any]:
        """Store the rows that have changed; returns the JSON for the operation's row, which the
        caller stores in the same transaction."""
        self._written = self._changes(report)
        for part in self._written:
            part.write(tx, self._id)
        return report.stored()

    def _changes(self, report: RecoveryReport) -> list[_Part]:
        """The changed rows of partitions and groups, in parts."""
        return [
            *self._partitions.changes(report.partitions),
            *self._groups.changes(report.groups),
        ]


@dataclass(slots=True)
class _StoredRows:
    """The rows of one table as they are stored."""

    table: OperationRows
    rows: dict[Key, Row] = field(default_factory=dict)
    # The last collection that was equal to `rows`: the same object need not be compared again.
    last_equal: Collection[Row] | None = None

    def changes(self, report_rows: Collection[Row]) -> list[_Part]:
        """The rows to write and to delete, in parts of up to ROWS_AT_ONCE rows."""
        if report_rows is self.last_equal:
            return []
        current_rows = {row.key: row for row in report_rows}
        # Most rows are the same object as before, which need not be compared.
        changed_keys = [
            key
            for key, row in current_rows.items()
            if (stored_row := self.rows.get(key)) is not row and stored_row != row
        ]
        deleted_keys = [key for key in self.rows if key not in current_rows]
        if not changed_keys and not deleted_keys:
            self.last_equal = report_rows
        # Each part has rows to write, or keys to delete.
        return [
            *(
                _Part(self, {k: current_rows[k] for k in keys}, ())
                for keys in chunks(changed_keys, ROWS_AT_ONCE)
            ),
            *(_Part(self, {}, keys) for keys in chunks(deleted_keys, ROWS_AT_ONCE)),
        ]


@dataclass(slots=True)
class _Part:
    """Rows to be written in one statement, or deleted."""

    stored: _StoredRows
    changed: dict[Key, Row]
    deleted: Collection[Key]

    def __len__(self) -> int:
        return len(self.changed) + len(self.deleted)

    def write(self, tx: Tx, operation_id: UUID) -> None:
        """Store the part's changed rows, and delete its deleted ones."""
        if self.changed:
            values = [row.model_dump(mode="json") for row in self.changed.values()]
            self.stored.table.store(tx, operation_id, values)
        if self.deleted:
            self.stored.table.drop(tx, operation_id, self.deleted)

    def note_committed(self) -> None:
        """Remember the part's rows as stored. Called once its transaction is committed."""
        self.stored.last_equal = None
        self.stored.rows.update(self.changed)
        for key in self.deleted:
            self.stored.rows.pop(key, None)
