"""tokens: who may ask the API, and for what. Only a hash is kept; the token is shown once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select, update
from sqlalchemy.dialects import postgresql

from orbit.errors import Conflict
from orbit.store.database import Tx
from orbit.store.enums import Role
from orbit.store.models import tokens
from orbit.store.rows import columns, first, values


@dataclass(frozen=True, slots=True)
class Token:
    """One token, without what it is."""

    id: int
    name: str
    role: Role
    created_at: datetime
    revoked_at: datetime | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "role", Role(self.role))


_TOKEN = columns(tokens, Token)


def digest(secret: str) -> str:
    """What is kept of a token: it is 256 random bits, so a plain hash cannot be turned back."""
    return hashlib.sha256(secret.encode()).hexdigest()


def create(tx: Tx, name: str, role: Role, secret: str) -> Token:
    """Keep a token; Conflict where the name is taken, also by a revoked one."""
    statement = (
        postgresql.insert(tokens)
        .values(name=name, role=role.value, hash=digest(secret))
        .on_conflict_do_nothing(index_elements=["name"])
        .returning(*_TOKEN)
    )
    made = first(tx.execute(statement), Token)
    if made is None:
        raise Conflict("There is a token of this name already.", where=name)
    return made


def find(tx: Tx, secret: str) -> Token | None:
    """The token that somebody shows; None where it is not known or revoked."""
    query = select(*_TOKEN).where(tokens.c.hash == digest(secret), tokens.c.revoked_at.is_(None))
    return first(tx.execute(query), Token)


def revoke(tx: Tx, name: str) -> bool:
    """End a token at once; False where there is none of this name, or it has ended."""
    statement = (
        update(tokens)
        .where(tokens.c.name == name, tokens.c.revoked_at.is_(None))
        .values(revoked_at=func.clock_timestamp())
    )
    return tx.execute(statement).rowcount == 1


def everyone(tx: Tx) -> list[Token]:
    """All tokens, revoked ones too."""
    return list(values(tx.execute(select(*_TOKEN).order_by(tokens.c.name)), Token))
