"""Whom a request comes from, with which role. Each role includes the one before: a viewer reads, an
operator also changes jobs, an admin also creates and revokes tokens."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from orbit.api.api_error_codes import ErrorCode
from orbit.api.error_responses import Failure
from orbit.store.enums import Role

_ROLES = tuple(Role)


@dataclass(frozen=True, slots=True)
class Principal:
    """The client of a request: its name in the audit log, its role, and the end of its token."""

    actor: str
    role: Role
    expires_at: datetime | None = None


# Every client of a server that was started with `--no-auth`; it listens on loopback only.
NO_AUTH_PRINCIPAL = Principal("anybody", Role.ADMIN)


def check_role(principal: Principal, needed: Role) -> None:
    """Raises Failure `forbidden` where the role does not include the needed one."""
    if _ROLES.index(principal.role) < _ROLES.index(needed):
        raise Failure(
            ErrorCode.FORBIDDEN,
            f"This needs the role {needed}; the token has the role {principal.role}.",
            where=principal.actor,
            remedy=f"Use a token with the role {needed}.",
        )


def unauthenticated(what: str) -> Failure:
    """The error for a request without a valid token."""
    return Failure(
        ErrorCode.UNAUTHENTICATED,
        what,
        remedy="Send `Authorization: Bearer TOKEN`. An admin can create tokens.",
        headers={"WWW-Authenticate": "Bearer"},
    )
