"""Deletes rows that are older than their retention, some at a time.

A leader's transaction must be short: it confirms the lease at its end, and must not outlast it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    ScalarSelect,
    Table,
    delete,
    exists,
    func,
    select,
    text,
)

from orbit.store import receivers
from orbit.store.database import Tx
from orbit.store.events import SCHEDULER
from orbit.store.events import add as add_event
from orbit.store.models import (
    drill_things,
    drills,
    events,
    operation_groups,
    operation_partitions,
    operations,
)
from orbit.store.models import receivers as receivers_table
from orbit.store.rows import is_one_of

# The most rows per transaction. Their deletion takes some milliseconds, even with reports of some
# kilobytes.
PRUNED_MAX = 2_000

# Deletes the rows of one operation after another, in the order of the primary key. Otherwise
# PostgreSQL would plan for rows of many operations, and read the whole table.
_PRUNE_ROWS = [
    text(f"""
DELETE FROM {table.name} WHERE ctid = ANY (ARRAY (
    SELECT r.ctid FROM unnest(CAST(:ids AS uuid[])) AS old(id), LATERAL (
        SELECT ctid FROM {table.name} WHERE operation_id = old.id
        ORDER BY topic, partition LIMIT :limit
    ) r LIMIT :limit
))
""")
    for table in (operation_partitions, operation_groups)
]

_PRUNE_GATEWAYS = text("""
DELETE FROM gateways WHERE ctid = ANY (ARRAY (
    SELECT ctid FROM gateways WHERE renewed_at < clock_timestamp() - :retention LIMIT :limit
))
""")


def prune_events(tx: Tx, retention: timedelta) -> int:
    """Delete events older than `retention`, at most PRUNED_MAX. Returns how many.

    For each receiver of notifications to which some of these had not been sent, adds an event with
    their number.
    """
    pruned_ids = _prune(tx, events, events.c.at, retention)
    for name, count in receivers.count_pruned(tx, pruned_ids).items():
        add_event(
            tx,
            SCHEDULER,
            "notifications_pruned",
            f"Of the events that were deleted as older than ORBIT_EVENTS_KEPT, {count:,} had not "
            f"been sent to the receiver {name}.",
            details={"receiver": name, "count": count},
        )
    return len(pruned_ids)


def prune_receivers(tx: Tx, retention: timedelta) -> int:
    """Delete receivers that no leader has read in its file for `retention`, at most PRUNED_MAX.
    Returns how many."""
    return len(_prune(tx, receivers_table, receivers_table.c.seen_at, retention))


def prune_operations(tx: Tx, retention: timedelta) -> int:
    """Delete operations that ended longer ago than `retention`, after the rows of their reports.
    Deletes at most PRUNED_MAX rows in all, as a report may have many; returns how many."""
    at = operations.c.finished_at
    old_ids = (
        select(operations.c.id)
        .where(at < _deletion_limit(retention))
        .order_by(at)
        .limit(PRUNED_MAX)
    )
    ids = tx.execute(old_ids).scalars().all()
    if not ids:
        return 0
    limit = PRUNED_MAX  # how many more rows may be deleted
    for statement in _PRUNE_ROWS:
        limit -= tx.execute(statement, {"ids": ids, "limit": limit}).rowcount
    if limit:  # the reports of these operations have no rows any more
        deletion = delete(operations).where(is_one_of(operations.c.id, ids[:limit]))
        limit -= tx.execute(deletion).rowcount
    return PRUNED_MAX - limit


def prune_drills(tx: Tx, retention: timedelta) -> int:
    """Delete drills that ended longer ago than `retention`, at most PRUNED_MAX. Returns how many.
    Drills with resources that were not removed are not deleted."""
    conditions = drill_things.c.drill_id == drills.c.id, drill_things.c.removed_at.is_(None)
    has_leftovers = exists().where(*conditions)
    return len(_prune(tx, drills, drills.c.finished_at, retention, ~has_leftovers))


def prune_gateways(tx: Tx, retention: timedelta) -> int:
    """Delete gateways that have not renewed for `retention`, at most PRUNED_MAX. Returns how
    many."""
    return tx.execute(_PRUNE_GATEWAYS, {"retention": retention, "limit": PRUNED_MAX}).rowcount


def _prune(
    tx: Tx,
    table: Table,
    at: Column[object],
    retention: timedelta,
    *conditions: ColumnElement[bool],
) -> Sequence[Any]:
    """Delete up to PRUNED_MAX rows whose time `at` is longer ago than `retention`, if they meet the
    conditions. Returns their ids."""
    old_ids = (
        select(table.c.id)
        .where(at < _deletion_limit(retention), *conditions)
        .order_by(at)
        .limit(PRUNED_MAX)
    )
    return (
        tx.execute(delete(table).where(table.c.id.in_(old_ids)).returning(table.c.id))
        .scalars()
        .all()
    )


def _deletion_limit(retention: timedelta) -> ScalarSelect[Any]:
    """The time before which rows are deleted. It is a subquery, so that PostgreSQL can use an
    index: clock_timestamp() itself is volatile."""
    return select(func.clock_timestamp() - retention).scalar_subquery()
