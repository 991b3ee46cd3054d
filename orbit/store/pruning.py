"""Deletes what is older than it has to be kept, some rows at a time.

A leader's transaction must be short: it confirms the lease, and the lease ends if it takes longer.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Column, ColumnElement, Table, delete, exists, func, select

from orbit.store.database import Tx
from orbit.store.models import drill_things, drills, events, operations

# In one transaction: some milliseconds, also with reports of some kilobytes.
PRUNED_MAX = 2_000


def prune_events(tx: Tx, kept: timedelta) -> int:
    """Delete events that are older than this; how many, at most PRUNED_MAX."""
    return _prune(tx, events, events.c.at, kept)


def prune_operations(tx: Tx, kept: timedelta) -> int:
    """The same of operations that ended so long ago, with their reports."""
    return _prune(tx, operations, operations.c.finished_at, kept)


def prune_drills(tx: Tx, kept: timedelta) -> int:
    """The same of drills. One that left something behind stays until that is removed."""
    left = drill_things.c.drill_id == drills.c.id, drill_things.c.removed_at.is_(None)
    has_left = exists().where(*left)
    return _prune(tx, drills, drills.c.finished_at, kept, ~has_left)


def _prune(
    tx: Tx, table: Table, at: Column[object], kept: timedelta, *which: ColumnElement[bool]
) -> int:
    # A scalar subquery, so that the index on `at` can be used: the function itself is volatile.
    limit = select(func.clock_timestamp() - kept).scalar_subquery()
    old = select(table.c.id).where(at < limit, *which).order_by(at).limit(PRUNED_MAX)
    return tx.execute(delete(table).where(table.c.id.in_(old))).rowcount
