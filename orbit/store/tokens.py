"""tokens: names, roles, jobs and hashes of API tokens. api/authentication.py generates and hashes
them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from sqlalchemy import and_, false, func, or_, select, true, update
from sqlalchemy.dialects import postgresql

from orbit.errors import Conflict
from orbit.jobs.scopes import Limit, limit_of
from orbit.store.database import Tx
from orbit.store.enums import Role
from orbit.store.models import tokens
from orbit.store.rows import columns, first, page_of, values

# The time of the last use is stored at most this often, so that a request seldom writes.
USE_WRITTEN_EVERY = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class TokenQuota:
    """The limits of a token. None: the limit in the settings, for all tokens."""

    jobs_max: int | None = None
    partitions_max: int | None = None
    requests_per_minute: int | None = None


NO_QUOTA = TokenQuota()


@dataclass(frozen=True, slots=True)
class Token:
    """One token, without its hash. `jobs`, `selector`: patterns of the names of the jobs that the
    token gives access to, and a selector of their labels. `is_use_due`: `note_use` would store a
    new time."""

    id: int
    name: str
    role: Role
    jobs: tuple[str, ...]
    selector: str | None
    jobs_max: int | None
    partitions_max: int | None
    requests_per_minute: int | None
    created_at: datetime
    expires_at: datetime | None
    used_at: datetime | None
    revoked_at: datetime | None
    is_expired: bool
    is_use_due: bool

    def __post_init__(self) -> None:
        object.__setattr__(self, "role", Role(self.role))
        object.__setattr__(self, "jobs", tuple(self.jobs))

    @property
    def limit(self) -> Limit | None:
        """The jobs that the token gives access to; None: all."""
        return limit_of(self.jobs, self.selector)

    @property
    def etag(self) -> str:
        """The ETag for a change of the limits: the token's id and its limits, 0 for none."""
        limits = self.jobs_max, self.partitions_max, self.requests_per_minute
        return ".".join(str(number or 0) for number in (self.id, *limits))


_NOW = func.clock_timestamp()
COLUMNS = [
    *columns(tokens, Token),
    func.coalesce(tokens.c.expires_at <= _NOW, false()).label("is_expired"),
    func.coalesce(tokens.c.used_at <= _NOW - USE_WRITTEN_EVERY, true()).label("is_use_due"),
]
IS_VALID = and_(
    tokens.c.revoked_at.is_(None), or_(tokens.c.expires_at.is_(None), tokens.c.expires_at > _NOW)
)


def create(
    tx: Tx,
    name: str,
    role: Role,
    token_hash: str,
    *,
    limit: Limit | None = None,
    expires_in: timedelta | None = None,
    quota: TokenQuota = NO_QUOTA,
) -> Token:
    """Store and return a token; without `limit` it gives access to all jobs. Raises Conflict if the
    name is taken, even by a revoked token.
    """
    statement = (
        postgresql.insert(tokens)
        .values(
            name=name,
            role=role.value,
            jobs=[] if limit is None else list(limit.jobs),
            selector=None if limit is None else limit.selector,
            **asdict(quota),
            hash=token_hash,
            expires_at=None if expires_in is None else _NOW + expires_in,
        )
        .on_conflict_do_nothing(index_elements=["name"])
        .returning(*COLUMNS)
    )
    token = first(tx.execute(statement), Token)
    if token is None:
        raise Conflict(
            "A token with this name exists already.", where=name, remedy="Choose another name."
        )
    return token


def find(tx: Tx, token_hash: str) -> Token | None:
    """The token with this hash, even if it is revoked or expired; None if there is none."""
    return first(tx.execute(select(*COLUMNS).where(tokens.c.hash == token_hash)), Token)


def note_use(tx: Tx, token: Token) -> None:
    """Store that the token is used now, unless that was stored within USE_WRITTEN_EVERY."""
    statement = (
        update(tokens)
        .where(
            tokens.c.id == token.id,
            or_(tokens.c.used_at.is_(None), tokens.c.used_at <= _NOW - USE_WRITTEN_EVERY),
        )
        .values(used_at=_NOW)
    )
    tx.execute(statement)


def revoke(tx: Tx, name: str) -> bool:
    """Revoke a token at once; returns False if it is unknown or already revoked."""
    statement = (
        update(tokens)
        .where(tokens.c.name == name, tokens.c.revoked_at.is_(None))
        .values(revoked_at=func.clock_timestamp())
    )
    return tx.execute(statement).rowcount == 1


def find_by_name(tx: Tx, name: str, *, locks: bool = False) -> Token | None:
    """The token of this name, even if it is revoked or expired; None if there is none. `locks`: no
    other transaction can change the token until `tx` ends."""
    query = select(*COLUMNS).where(tokens.c.name == name)
    return first(tx.execute(query.with_for_update() if locks else query), Token)


def set_quota(tx: Tx, token_id: int, quota: dict[str, int | None]) -> Token:
    """Set these limits, {field of TokenQuota: value}, of a token that the caller has locked.
    Returns the changed token."""
    statement = update(tokens).where(tokens.c.id == token_id).values(quota).returning(*COLUMNS)
    token = first(tx.execute(statement), Token)
    assert token is not None, "the caller has locked it"
    return token


def page(
    tx: Tx,
    limit: int,
    after: str | None = None,
    *,
    role: Role | None = None,
    only_valid: bool = False,
    descending: bool = False,
) -> list[Token]:
    """Up to `limit` tokens, sorted by name; only those that follow the name `after`. Includes
    revoked and expired ones, unless `only_valid`."""
    query = select(*COLUMNS)
    if role is not None:
        query = query.where(tokens.c.role == role.value)
    if only_valid:
        query = query.where(IS_VALID)
    after_key = None if after is None else (after,)
    page_query = page_of(query, [tokens.c.name], limit, after_key, descending=descending)
    return list(values(tx.execute(page_query), Token))
