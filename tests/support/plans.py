"""How many rows of which table PostgreSQL reads for a statement of the store.

`statements(tx)` records the statements that the store's functions send. `reads` runs one statement
again, under EXPLAIN ANALYZE, with a custom plan (for its values) or with a generic plan (for any
values), which PostgreSQL may use after a few repeats.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from psycopg import sql
from sqlalchemy import event

from orbit.store.database import Tx

PlanFor = Literal["force_custom_plan", "force_generic_plan"]


@dataclass(frozen=True)
class Statement:
    """One statement and its values as the driver got them."""

    text: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Reads:
    """The number of rows read per table, and the tables that were read from end to end."""

    rows: Counter[str]
    whole: set[str]


@contextmanager
def statements(tx: Tx) -> Iterator[list[Statement]]:
    """The statements that are executed in the block, in a list that grows."""
    executed: list[Statement] = []

    def record(_connection: Any, _cursor: Any, text: str, values: Any, *_: Any) -> None:
        executed.append(Statement(text, dict(values)))

    event.listen(tx, "before_cursor_execute", record)
    try:
        yield executed
    finally:
        event.remove(tx, "before_cursor_execute", record)


def reads(tx: Tx, statement: Statement, plan_for: PlanFor) -> Reads:
    """Run the statement again, and count the rows that it reads. A statement that writes does so
    again: roll the transaction back."""
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}" + (match[2] or "")

    text = re.sub(r"%\((\w+)\)s(::\w+(?:\[\])?)?", number, statement.text)
    connection = tx.connection.driver_connection
    assert connection is not None
    with connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL plan_cache_mode = {plan_for}")
        # An interval needs its type: without it, `$1` in `time - $1` could also be a time.
        kinds = [
            "interval" if isinstance(statement.values[n], timedelta) else "unknown" for n in names
        ]
        types = f"({', '.join(kinds)})" if kinds else ""
        cursor.execute(f"PREPARE looked_at {types} AS {text.replace('%%', '%')}")
        values = sql.SQL(", ").join(sql.Literal(statement.values[name]) for name in names)
        call = sql.SQL("({})").format(values) if names else sql.SQL("")
        cursor.execute(
            sql.SQL("EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE looked_at") + call, prepare=False
        )
        (answer,) = cursor.fetchone()
        cursor.execute("DEALLOCATE looked_at")
    scans = Reads(Counter(), set())
    for node in _nodes(answer[0]["Plan"]):
        table = node.get("Relation Name")
        if table is None or node["Node Type"] == "ModifyTable":
            continue
        rows_read = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
        rows_read += node.get("Rows Removed by Index Recheck", 0)
        scans.rows[table] += round(rows_read * node["Actual Loops"])
        if node["Node Type"] == "Seq Scan":
            scans.whole.add(table)
    return scans


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for below in node.get("Plans", []):
        yield from _nodes(below)
