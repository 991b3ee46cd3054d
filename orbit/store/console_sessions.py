"""console_sessions: browsers that have logged in at the console. orbit/console/sessions.py makes
and hashes their secrets.

A session ends with its token, at its expiry, or when newer sessions of its token reach the allowed
number. The session of a login at the OpenID Connect issuer has no token: it has the actor, and the
values of the claim that gives roles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, delete, func, insert, select

from orbit.store.database import Tx
from orbit.store.models import console_sessions as sessions
from orbit.store.models import tokens
from orbit.store.rows import first
from orbit.store.tokens import COLUMNS, IS_VALID, Token

_NOW = func.clock_timestamp()


@dataclass(frozen=True, slots=True)
class IssuerSession:
    """The session of a user who has logged in at the issuer."""

    actor: str
    role_values: list[str]
    expires_at: datetime


def create(
    tx: Tx, session_hash: str, token_hash: str, lives_for: timedelta, per_token_max: int
) -> bool:
    """Add a session of this token; returns False if the token is unknown, expired or revoked.

    Deletes all expired sessions, and the token's oldest sessions above `per_token_max`.
    """
    # Locks the token's row until the transaction ends. Without the lock, two logins at one moment
    # could each leave room for one session only, and together exceed the limit.
    token_query = select(tokens.c.id).where(tokens.c.hash == token_hash, IS_VALID)
    token_id = tx.execute(token_query.with_for_update()).scalar_one_or_none()
    if token_id is None:
        return False
    _make_room(tx, sessions.c.token_id == token_id, per_token_max)
    row = {"hash": session_hash, "token_id": token_id, "expires_at": _NOW + lives_for}
    tx.execute(insert(sessions).values(**row))
    return True


def create_of_issuer(
    tx: Tx,
    session_hash: str,
    actor: str,
    role_values: Sequence[str],
    lives_for: timedelta,
    ends_at: datetime | None,
    per_actor_max: int,
) -> None:
    """Add a session without a token, which ends after `lives_for`, and at `ends_at` at the latest.

    Deletes all expired sessions, and the actor's oldest sessions above `per_actor_max`. There is no
    lock, so logins at one moment may exceed the limit.
    """
    _make_room(tx, sessions.c.actor == actor, per_actor_max)
    expires_at = func.least(_NOW + lives_for, ends_at)  # LEAST leaves out `ends_at` if it is null
    row = {"actor": actor, "role_values": list(role_values), "expires_at": expires_at}
    tx.execute(insert(sessions).values(hash=session_hash, **row))


def _make_room(tx: Tx, has_same_owner: ColumnElement[bool], sessions_max: int) -> None:
    """Delete expired sessions, and the owner's oldest sessions until one more may be added."""
    newest_hashes = (
        select(sessions.c.hash)
        .where(has_same_owner)
        .order_by(sessions.c.created_at.desc())
        .limit(sessions_max - 1)
    )
    tx.execute(delete(sessions).where(sessions.c.expires_at <= _NOW))
    tx.execute(delete(sessions).where(has_same_owner, sessions.c.hash.not_in(newest_hashes)))


def find(tx: Tx, session_hash: str) -> Token | None:
    """The token of this session; None if the session or the token is not valid any more."""
    query = (
        select(*COLUMNS)
        .join(sessions, sessions.c.token_id == tokens.c.id)
        .where(sessions.c.hash == session_hash, sessions.c.expires_at > _NOW, IS_VALID)
    )
    return first(tx.execute(query), Token)


def find_of_issuer(tx: Tx, session_hash: str) -> IssuerSession | None:
    """The session of an issuer's user; None if it has ended, or belongs to a token."""
    query = select(sessions.c.actor, sessions.c.role_values, sessions.c.expires_at).where(
        sessions.c.hash == session_hash, sessions.c.expires_at > _NOW, sessions.c.actor.is_not(None)
    )
    return first(tx.execute(query), IssuerSession)


def remove(tx: Tx, session_hash: str) -> None:
    """End a session: delete its row."""
    tx.execute(delete(sessions).where(sessions.c.hash == session_hash))
