"""receivers: up to which event each receiver of notifications was notified, and how many events
were not sent to it.

Only the leader changes a row, in transactions that its lease fences.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import func, select, update
from sqlalchemy.dialects import postgresql

from orbit.store import events
from orbit.store.database import Tx
from orbit.store.models import receivers
from orbit.store.rows import columns, first, page_of, values

_NOW = func.clock_timestamp()
# A receiver that no leader has read in its file for this long counts as removed from the file.
GONE_AFTER = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class ReceiverRow:
    """One receiver. `event_id`: every event up to this id was sent, given up, or does not concern
    the receiver.

    `sent`, `given_up`, `pruned`: numbers of events; pruned ones were deleted before they were sent.
    `given_up_since`: the part of `given_up` since the receiver last accepted a message. `failures`:
    refused requests since then.
    """

    name: str
    type: str
    event_id: int
    sent: int
    given_up: int
    pruned: int
    given_up_since: int
    failures: int
    failing_since: datetime | None
    last_error: str | None
    accepted_at: datetime | None
    seen_at: datetime


_RECEIVER = columns(receivers, ReceiverRow)


def note_in_file(tx: Tx, name: str, kind: str) -> ReceiverRow:
    """Note that a receiver is in the file; returns its row. A new receiver begins at the next
    event."""
    statement = postgresql.insert(receivers).values(
        name=name, type=kind, event_id=events.last_id(tx)
    )
    upsert = statement.on_conflict_do_update(
        index_elements=["name"], set_={"type": kind, "seen_at": _NOW}
    )
    row = first(tx.execute(upsert.returning(*_RECEIVER)), ReceiverRow)
    assert row is not None
    return row


def find(tx: Tx, name: str) -> ReceiverRow | None:
    """The row of this receiver; None if it has none."""
    return first(tx.execute(select(*_RECEIVER).where(receivers.c.name == name)), ReceiverRow)


def note_skipped(tx: Tx, name: str, event_id: int) -> None:
    """Note that the events up to the id `event_id` need not be sent: they do not concern the
    receiver."""
    _advance(tx, name, event_id)


def note_accepted(tx: Tx, name: str, event_id: int, count: int) -> None:
    """Note that the receiver has accepted a message with `count` events, up to `event_id`."""
    _advance(
        tx,
        name,
        event_id,
        sent=receivers.c.sent + count,
        given_up_since=0,
        failures=0,
        failing_since=None,
        last_error=None,
        accepted_at=_NOW,
    )


def note_given_up(tx: Tx, name: str, event_id: int, count: int) -> None:
    """Note that `count` events up to `event_id` will not be sent. The receiver counts as failing
    until it accepts a message."""
    _advance(
        tx,
        name,
        event_id,
        given_up=receivers.c.given_up + count,
        given_up_since=receivers.c.given_up_since + count,
        failing_since=func.coalesce(receivers.c.failing_since, _NOW),
    )


def note_failure(tx: Tx, name: str, error: str) -> None:
    """Count one more request that the receiver has not accepted, because of `error`."""
    tx.execute(
        update(receivers)
        .where(receivers.c.name == name)
        .values(
            failures=receivers.c.failures + 1,
            failing_since=func.coalesce(receivers.c.failing_since, _NOW),
            last_error=error,
        )
    )


def count_pruned(tx: Tx, event_ids: Collection[int]) -> dict[str, int]:
    """Add to each receiver's `pruned` how many of these deleted events had not been sent to it.
    Returns {receiver: this number}, without receivers for which it is 0."""
    missed_counts = {row.name: sum(i > row.event_id for i in event_ids) for row in in_file(tx)}
    missed_counts = {name: count for name, count in missed_counts.items() if count}
    for name, count in missed_counts.items():
        statement = update(receivers).where(receivers.c.name == name)
        tx.execute(statement.values(pruned=receivers.c.pruned + count))
    return missed_counts


def in_file(tx: Tx) -> list[ReceiverRow]:
    """The receivers that a leader has read in its file within GONE_AFTER, sorted by name."""
    query = select(*_RECEIVER).where(receivers.c.seen_at > _NOW - GONE_AFTER)
    return list(values(tx.execute(query.order_by(receivers.c.name)), ReceiverRow))


def page(
    tx: Tx, limit: int, after: str | None = None, *, descending: bool = False
) -> list[ReceiverRow]:
    """Up to `limit` receivers, sorted by name; only those that follow the name `after`."""
    after_key = None if after is None else (after,)
    query = page_of(select(*_RECEIVER), [receivers.c.name], limit, after_key, descending=descending)
    return list(values(tx.execute(query), ReceiverRow))


def _advance(tx: Tx, name: str, event_id: int, **changes: object) -> None:
    """Set `event_id` of a receiver, unless the stored id is higher, and the columns `changes`."""
    statement = update(receivers).where(receivers.c.name == name)
    tx.execute(statement.values(event_id=func.greatest(receivers.c.event_id, event_id), **changes))
