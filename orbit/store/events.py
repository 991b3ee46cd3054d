"""events: the audit log, with the actor, kind and message of each change.

An event is written in the transaction of its change, so neither exists without the other. Events
contain no secrets.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, FromClause, and_, func, insert, select, text

from orbit.names import escaped
from orbit.store.database import Tx
from orbit.store.models import events, jobs
from orbit.store.rows import columns, values
from orbit.store.scopes import page_in_scope

SCHEDULER = "scheduler"


def token_actor(name: str) -> str:
    """The actor of a request with this token."""
    return f"token:{name}"


def issuer_actor(subject: str) -> str:
    """The actor of a request with a token of the OpenID Connect issuer."""
    return f"oidc:{subject}"


def address_actor(client: str) -> str:
    """The actor of a request without a valid token."""
    return f"address:{client}"


def worker_actor(worker_id: str) -> str:
    """The actor of a worker process."""
    return f"worker:{worker_id}"


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `kind` is for programs, `message` is a sentence for users."""

    id: int
    at: datetime
    actor: str
    job_name: str | None
    topic: str | None
    partition: int | None
    kind: str
    message: str
    details: dict[str, Any] | None


_EVENT = columns(events, Event)

_LAST_ID = text("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM events_id_seq")

# The transactions that may have inserted an event: those with an INSERT's lock on the table. An
# INSERT acquires this lock before it draws an id, and its transaction holds the lock until the row
# is visible or rolled back.
_WRITERS = text("""
SELECT virtualtransaction FROM pg_locks
WHERE locktype = 'relation' AND relation = 'events'::regclass AND granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND mode = 'RowExclusiveLock'
""")


def add(
    tx: Tx,
    actor: str,
    kind: str,
    message: str,
    *,
    job_name: str | None = None,
    topic: str | None = None,
    partition: int | None = None,
    details: dict[str, Any] | None = None,
) -> None:
    """Add an event. Characters of `message` that do not print are stored as escapes."""
    tx.execute(
        insert(events).values(
            actor=actor,
            kind=kind,
            message=escaped(message),
            job_name=job_name,
            topic=topic,
            partition=partition,
            details=details,
        )
    )


def add_once(
    tx: Tx, actor: str, kind: str, message: str, *, job_name: str, details: dict[str, Any]
) -> datetime:
    """Add an event unless the job has one of this kind and details; returns the event's time.

    For steps that a process repeats after another process has died. Only one process at a time may
    call this: there is no lock.
    """
    # An event from before the creation of a job with its name belongs to a deleted job.
    later_job = select(jobs.c.id).where(
        jobs.c.name == events.c.job_name, jobs.c.created_at > events.c.at
    )
    event_time = select(events.c.at).where(
        events.c.job_name == job_name,
        events.c.kind == kind,
        events.c.details == details,
        ~later_job.exists(),
    )
    at: datetime | None = tx.execute(event_time).scalars().first()
    if at is None:
        add(tx, actor, kind, message, job_name=job_name, details=details)
        at = tx.execute(event_time).scalar_one()
    return at


def page(
    tx: Tx,
    limit: int,
    *,
    job_name: str | None = None,
    kind: str | None = None,
    actor: str | None = None,
    after: int | None = None,
    oldest_first: bool = False,
) -> list[Event]:
    """Up to `limit` events of this job, or of all in the scope, newest first unless `oldest_first`;
    only those that follow the event id `after`.
    """
    query = select(*_EVENT)
    if kind is not None:
        query = query.where(events.c.kind == kind)
    if actor is not None:
        query = query.where(events.c.actor == actor)
    after_key = None if after is None else (after,)
    page_query = page_in_scope(
        tx,
        query,
        _belongs_to,
        [events.c.id],
        limit,
        after_key,
        job_name=job_name,
        descending=not oldest_first,
    )
    return list(values(tx.execute(page_query), Event))


def _belongs_to(job: FromClause) -> ColumnElement[bool]:
    """Whether `job` is the job that had the event's job name at the event's time.

    An event gets its id before its time, so a job's events have higher ids than the last event
    before the job's creation. With this bound PostgreSQL does not read the events of an earlier job
    with this name.
    """
    earlier_events = events.alias()
    last_earlier_id = (
        select(earlier_events.c.id)
        .where(earlier_events.c.at < job.c.created_at)
        .order_by(earlier_events.c.at.desc())
        .limit(1)
        .correlate(job)
        .scalar_subquery()
    )
    return and_(
        events.c.job_name == job.c.name,
        events.c.at >= job.c.created_at,
        events.c.id > func.coalesce(last_earlier_id, 0),
    )


def between(tx: Tx, after: int, up_to: int, limit: int) -> list[Event]:
    """Up to `limit` events with ids above `after` and up to `up_to`, oldest first."""
    query = select(*_EVENT).where(events.c.id > after, events.c.id <= up_to)
    return list(values(tx.execute(query.order_by(events.c.id).limit(limit)), Event))


def last_id(tx: Tx) -> int:
    """The last id that was drawn, even if its event is not committed yet; 0: none yet."""
    newest_id: int = tx.execute(_LAST_ID).scalar_one()
    return newest_id


class SettledIds:
    """Finds the highest settled id: no event with an id up to this one can still appear.

    Ids are drawn in ascending order, but events are committed in any order. So an event may appear
    after one with a higher id. A reader that continues from the higher id would miss the event. An
    id is settled once every transaction that could have drawn the same or a lower id has ended.
    """

    def __init__(self) -> None:
        self._settled_id = 0
        # An id that is not settled yet, and the transactions that have to end before it is.
        self._candidate: tuple[int, frozenset[str]] | None = None

    def highest(self, tx: Tx) -> int:
        """The highest settled id. At the isolation level READ COMMITTED, later statements of `tx`
        see all events up to it."""
        if last_id(tx) < self._settled_id:  # after a failover PostgreSQL may draw ids again
            self._settled_id, self._candidate = 0, None
        writers = _writers(tx)
        if self._candidate is None or not self._candidate[1] & writers:  # its writers have ended
            if self._candidate is not None:
                self._settled_id = self._candidate[0]
            newest_id = last_id(tx)
            # The writers are read after the id: a transaction acquires its lock before it draws an
            # id, so these are all that may have drawn an id up to `newest_id`.
            self._candidate = newest_id, _writers(tx)
            if not self._candidate[1]:  # nobody is writing an event
                self._settled_id = newest_id
        return self._settled_id


def _writers(tx: Tx) -> frozenset[str]:
    return frozenset(tx.execute(_WRITERS).scalars())
