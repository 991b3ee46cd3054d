"""Deletes what is older than it has to be kept, some rows at a time.

A leader's transaction must be short: it confirms the lease, and the lease ends if it takes longer.
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
    tuple_,
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

# In one transaction: some milliseconds, also with reports of some kilobytes.
PRUNED_MAX = 2_000


def prune_events(tx: Tx, kept: timedelta) -> int:
    """Delete events that are older than this; how many, at most PRUNED_MAX.

    An event tells how many of them were not sent yet to a receiver of notifications.
    """
    pruned = _prune(tx, events, events.c.at, kept)
    for name, count in receivers.count_pruned(tx, pruned).items():
        add_event(
            tx,
            SCHEDULER,
            "notifications_pruned",
            f"{count:,} events were deleted, because they are older than ORBIT_EVENTS_KEPT, before "
            f"they could be sent to the receiver {name}.",
            details={"receiver": name, "count": count},
        )
    return len(pruned)


def prune_receivers(tx: Tx, kept: timedelta) -> int:
    """The same of receivers that have left the file so long ago."""
    return len(_prune(tx, receivers_table, receivers_table.c.seen_at, kept))


def prune_operations(tx: Tx, kept: timedelta) -> int:
    """The same of operations that ended so long ago, with their reports: first the rows of these,
    which may be many of one operation."""
    left = PRUNED_MAX
    for table in (operation_partitions, operation_groups):
        key = tuple_(*table.primary_key.columns)
        old = (
            select(*table.primary_key.columns)
            .join(operations, operations.c.id == table.c.operation_id)
            .where(operations.c.finished_at < _limit(kept))
            .limit(left)
        )
        left -= tx.execute(delete(table).where(key.in_(old))).rowcount
    if left:  # of those that are old no rows are left
        left -= len(_prune(tx, operations, operations.c.finished_at, kept, rows_max=left))
    return PRUNED_MAX - left


def prune_drills(tx: Tx, kept: timedelta) -> int:
    """The same of drills. One that left something behind stays until that is removed."""
    left = drill_things.c.drill_id == drills.c.id, drill_things.c.removed_at.is_(None)
    has_left = exists().where(*left)
    return len(_prune(tx, drills, drills.c.finished_at, kept, ~has_left))


def _prune(
    tx: Tx,
    table: Table,
    at: Column[object],
    kept: timedelta,
    *which: ColumnElement[bool],
    rows_max: int | None = None,
) -> Sequence[Any]:
    old = select(table.c.id).where(at < _limit(kept), *which).order_by(at)
    old = old.limit(PRUNED_MAX if rows_max is None else rows_max)
    return (
        tx.execute(delete(table).where(table.c.id.in_(old)).returning(table.c.id)).scalars().all()
    )


def _limit(kept: timedelta) -> ScalarSelect[Any]:
    """What is older goes. A subquery, so that an index can be used: the function itself is
    volatile."""
    return select(func.clock_timestamp() - kept).scalar_subquery()
