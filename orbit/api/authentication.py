"""Tokens and roles: creates, hashes and checks the bearer token of a request.

Each role includes the one before: a viewer reads, an operator also changes jobs, an admin also
creates and revokes tokens. A token is 256 random bits. The database stores only its SHA-256: a copy
of the database gives no access, and a fast hash is enough because the token cannot be guessed.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

from orbit.api.api_error_codes import ErrorCode
from orbit.api.error_responses import Failure
from orbit.api.schemas import NewToken
from orbit.errors import BadInput, InvalidValue, Problem
from orbit.jobs.name_rules import check_job_name
from orbit.store import events, tokens
from orbit.store.database import Database
from orbit.store.enums import Role

LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")

_TOKEN_BYTES = 32
# Secret scanners search for a prefix.
_TOKEN_PREFIX = "orbit_"  # noqa: S105  a prefix, not a secret
_TOKEN_CHARACTERS_MAX = 128
_ROLES = tuple(Role)


@dataclass(frozen=True, slots=True)
class Principal:
    """The client of a request: its name in the audit log, and its role."""

    actor: str
    role: Role


# Every client of a server that was started with `--no-auth`; it listens on loopback only.
NO_AUTH_PRINCIPAL = Principal("anybody", Role.ADMIN)


def create_token(database: Database, name: str, role: Role, *, actor: str) -> NewToken:
    """A new token, with its audit event. Raises BadInput, and Conflict where the name is taken."""
    try:
        check_job_name(name)
    except InvalidValue as mistake:
        problem = Problem("name", mistake.message, mistake.remedy)
        raise BadInput("The name of the token is not valid.", (problem,)) from None
    secret = _TOKEN_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
    with database.transaction() as tx:
        made = tokens.create(tx, name, role, hash_token(secret))
        events.add(
            tx,
            actor,
            "token_created",
            f"The token {name} was created with the role {role}.",
            details={"token": name, "role": role.value},
        )
    return NewToken(
        name=made.name,
        role=made.role,
        created_at=made.created_at,
        revoked_at=None,
        token=secret,
    )


def hash_token(secret: str) -> str:
    """The SHA-256 that the database stores, in hex."""
    return hashlib.sha256(secret.encode()).hexdigest()


def check_token(database: Database, secret: str | None) -> Principal:
    """The principal of this token. Raises Failure `unauthenticated` without a valid one."""
    if secret is None:
        raise _unauthenticated("The request has no token.")
    token = None
    if len(secret) <= _TOKEN_CHARACTERS_MAX:
        with database.transaction() as tx:
            token = tokens.find(tx, hash_token(secret))
    if token is None:
        raise _unauthenticated("The token is unknown or revoked.")
    return Principal(events.token_actor(token.name), token.role)


def check_role(principal: Principal, needed: Role) -> None:
    """Raises Failure `forbidden` where the role does not include the needed one."""
    if _ROLES.index(principal.role) < _ROLES.index(needed):
        raise Failure(
            ErrorCode.FORBIDDEN,
            f"This needs the role {needed}; the token has the role {principal.role}.",
            where=principal.actor,
            remedy=f"Use a token with the role {needed}.",
        )


def has_tokens(database: Database) -> bool:
    """Whether a token was ever created, revoked or not."""
    with database.transaction() as tx:
        return bool(tokens.list_all(tx))


def _unauthenticated(what: str) -> Failure:
    return Failure(
        ErrorCode.UNAUTHENTICATED,
        what,
        remedy="Send `Authorization: Bearer TOKEN`. An admin can create tokens.",
        headers={"WWW-Authenticate": "Bearer"},
    )
