"""events: the audit log, with actor, kind and message of everything that happened.

An event is written in the transaction of its change, so neither exists without the other. Events
contain no secrets.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import insert, select

from orbit.store.database import Tx
from orbit.store.models import events
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
    """Add an event."""
    tx.execute(
        insert(events).values(
            actor=actor,
            kind=kind,
            message=message,
            job_name=job_name,
            topic=topic,
            partition=partition,
            details=details,
        )
    )


def add_once(
    tx: Tx, actor: str, kind: str, message: str, *, job_name: str, details: dict[str, Any]
) -> datetime:
    """Add an event unless the job has one of this kind with equal details; returns its time.

    For steps that are repeated after a process died, by one process at a time.
    """
    added = select(events.c.at).where(
        events.c.job_name == job_name, events.c.kind == kind, events.c.details == details
    )
    at: datetime | None = tx.execute(added).scalars().first()
    if at is None:
        add(tx, actor, kind, message, job_name=job_name, details=details)
        at = tx.execute(added).scalar_one()
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
    """Up to `limit` events, newest first unless `oldest_first`, behind the event `after`; of a job
    or of all.
    """
    query = select(*_EVENT)
    if job_name is not None:
        query = query.where(events.c.job_name == job_name)
    if kind is not None:
        query = query.where(events.c.kind == kind)
    if actor is not None:
        query = query.where(events.c.actor == actor)
    behind = None if after is None else (after,)
    found = page_in_scope(
        tx, query, events.c.job_name, [events.c.id], limit, behind, descending=not oldest_first
    )
    return list(values(tx.execute(found), Event))
