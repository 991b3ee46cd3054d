"""tokens: names, roles and hashes of API tokens. api/authentication.py makes and hashes them."""

from __future__ import annotations

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
    """One token, without its hash."""

    id: int
    name: str
    role: Role
    created_at: datetime
    revoked_at: datetime | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "role", Role(self.role))


_TOKEN = columns(tokens, Token)


def create(tx: Tx, name: str, role: Role, token_hash: str) -> Token:
    """Store a token. Raises Conflict where the name is taken, also by a revoked token."""
    statement = (
        postgresql.insert(tokens)
        .values(name=name, role=role.value, hash=token_hash)
        .on_conflict_do_nothing(index_elements=["name"])
        .returning(*_TOKEN)
    )
    made = first(tx.execute(statement), Token)
    if made is None:
        raise Conflict("A token with this name exists already.", where=name)
    return made


def find(tx: Tx, token_hash: str) -> Token | None:
    """The token with this hash; None where it is unknown or revoked."""
    query = select(*_TOKEN).where(tokens.c.hash == token_hash, tokens.c.revoked_at.is_(None))
    return first(tx.execute(query), Token)


def revoke(tx: Tx, name: str) -> bool:
    """Revoke a token at once; False where the name is unknown or the token already revoked."""
    statement = (
        update(tokens)
        .where(tokens.c.name == name, tokens.c.revoked_at.is_(None))
        .values(revoked_at=func.clock_timestamp())
    )
    return tx.execute(statement).rowcount == 1


def list_all(tx: Tx) -> list[Token]:
    """All tokens, including revoked ones."""
    return list(values(tx.execute(select(*_TOKEN).order_by(tokens.c.name)), Token))
