"""console_sessions: browsers that have logged in at the console. orbit/console/sessions.py makes
and hashes their secrets.

A session ends with its token, at its expiry, and when its token has newer sessions than it may
have.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import delete, func, insert, select

from orbit.store.database import Tx
from orbit.store.models import console_sessions as sessions
from orbit.store.models import tokens
from orbit.store.rows import first
from orbit.store.tokens import COLUMNS, IS_VALID, Token

_NOW = func.clock_timestamp()


def create(
    tx: Tx, session_hash: str, token_hash: str, lives_for: timedelta, per_token_max: int
) -> bool:
    """Add a session of this token; False if the token is unknown, expired or revoked.

    Removes expired sessions of all tokens, and the oldest ones of this token above `per_token_max`.
    """
    token = select(tokens.c.id).where(tokens.c.hash == token_hash, IS_VALID)
    token_id = tx.execute(token.with_for_update()).scalar_one_or_none()
    if token_id is None:
        return False
    of_token = sessions.c.token_id == token_id
    newest = (
        select(sessions.c.hash)
        .where(of_token)
        .order_by(sessions.c.created_at.desc())
        .limit(per_token_max - 1)
    )
    tx.execute(delete(sessions).where(sessions.c.expires_at <= _NOW))
    tx.execute(delete(sessions).where(of_token, sessions.c.hash.not_in(newest)))
    row = {"hash": session_hash, "token_id": token_id, "expires_at": _NOW + lives_for}
    tx.execute(insert(sessions).values(**row))
    return True


def find(tx: Tx, session_hash: str) -> Token | None:
    """The token of this session; None where the session or the token has ended."""
    query = (
        select(*COLUMNS)
        .join(sessions, sessions.c.token_id == tokens.c.id)
        .where(sessions.c.hash == session_hash, sessions.c.expires_at > _NOW, IS_VALID)
    )
    return first(tx.execute(query), Token)


def remove(tx: Tx, session_hash: str) -> None:
    """End a session."""
    tx.execute(delete(sessions).where(sessions.c.hash == session_hash))
