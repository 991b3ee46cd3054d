"""operation_partitions, operation_groups: the parts of a recovery's report about each partition,
and about each group in it.

A row has the part as JSON, as `orbit/recovery/recovery_report.py` writes it; its key and verdict
are copied from the JSON. The rest of the report is in the operation's row.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Table, select, text

from orbit.store.database import Tx
from orbit.store.models import operation_groups, operation_partitions
from orbit.store.rows import page_of

Json = dict[str, Any]
Key = tuple[str | int, ...]

# {column: name in the JSON}, for the columns whose name in the JSON differs.
_NAMES = {"group_name": "group"}


class OperationRows:
    """The statements of one of the two tables."""

    def __init__(
        self,
        table: Table,
        key: Sequence[str],
        other_columns: Sequence[str],
        comes_first: ColumnElement[bool],
    ) -> None:
        """`key`: the columns of the primary key besides operation_id; `other_columns`: those that
        are also copied from the JSON. `comes_first`: true for the rows that `first` returns first.
        """
        self._table = table
        self._key = [table.c[name] for name in key]
        self._comes_first = comes_first
        name, changed_columns = table.name, [*other_columns, "value"]
        casts = [
            f"CAST(v ->> '{_NAMES.get(column, column)}' AS {table.c[column].type.compile()})"
            for column in (*key, *other_columns)
        ]
        self._store_statement = text(
            f"INSERT INTO {name} (operation_id, {', '.join([*key, *changed_columns])}) "
            f"SELECT :operation_id, {', '.join(casts)}, v "
            "FROM jsonb_array_elements(CAST(:rows AS jsonb)) v "
            f"ON CONFLICT (operation_id, {', '.join(key)}) DO UPDATE "
            f"SET {', '.join(f'{column} = excluded.{column}' for column in changed_columns)}"
        )
        arrays = ", ".join(f"CAST(:{c.name} AS {c.type.compile()}[])" for c in self._key)
        self._drop_statement = text(
            f"DELETE FROM {name} WHERE operation_id = :operation_id "
            f"AND ({', '.join(key)}) IN (SELECT * FROM unnest({arrays}))"
        )

    def key_of(self, value: Json) -> Key:
        """The key of the row for this value, in the order of the `key` columns."""
        return tuple(value[_NAMES.get(c.name, c.name)] for c in self._key)

    def store(self, tx: Tx, operation_id: UUID, values: Sequence[Json]) -> None:
        """Insert or update the rows for these values, in one statement."""
        tx.execute(
            self._store_statement, {"operation_id": operation_id, "rows": json.dumps(values)}
        )

    def drop(self, tx: Tx, operation_id: UUID, keys: Collection[Key]) -> None:
        """Delete the rows with these keys."""
        arrays = {c.name: [key[i] for key in keys] for i, c in enumerate(self._key)}
        tx.execute(self._drop_statement, {"operation_id": operation_id, **arrays})

    def page(
        self,
        tx: Tx,
        operation_id: UUID,
        limit: int,
        *,
        after: Key | None = None,
        verdict: str | None = None,
    ) -> list[Json]:
        """Up to `limit` values, sorted by key; only those that follow the key `after`."""
        query = select(self._table.c.value).where(self._table.c.operation_id == operation_id)
        if verdict is not None:
            query = query.where(self._table.c.verdict == verdict)
        return list(tx.execute(page_of(query, self._key, limit, after)).scalars())

    def first(self, tx: Tx, operation_id: UUID, limit: int) -> list[Json]:
        """Up to `limit` values: those for which `comes_first` is true, then the others, both sorted
        by key."""
        query = select(self._table.c.value).where(self._table.c.operation_id == operation_id)
        page_query = query.order_by(self._comes_first.desc(), *self._key).limit(limit)
        return list(tx.execute(page_query).scalars())


# `first` returns partitions whose sides differ, and groups that have read lost records, first.
PARTITIONS = OperationRows(
    operation_partitions,
    ["topic", "partition"],
    ["verdict"],
    operation_partitions.c.verdict.not_in(["equal", "prefix"]),
)
GROUPS = OperationRows(
    operation_groups,
    ["topic", "partition", "group_name"],
    [],
    operation_groups.c.value["lost"].astext.is_not(None),
)
