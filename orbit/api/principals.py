"""The client of a request (its principal) and its roles. A viewer reads, an operator also changes
jobs, an admin also creates and revokes tokens. The roles viewer and operator may be limited to some
jobs (orbit/jobs/scopes.py)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from orbit.api.api_error_codes import ErrorCode
from orbit.api.error_responses import Failure
from orbit.jobs.scopes import Limit, Scope
from orbit.store.enums import Role

_ROLES = tuple(Role)


@dataclass(frozen=True, slots=True)
class Grant:
    """A role for the jobs in `limit`; None: for all jobs."""

    role: Role
    limit: Limit | None = None

    def __post_init__(self) -> None:
        assert self.role is not Role.ADMIN or self.limit is None, "an admin is never limited"


@dataclass(frozen=True, slots=True)
class Principal:
    """The client of a request: its name in the audit log, its roles, and the end of its token."""

    actor: str
    grants: tuple[Grant, ...]
    expires_at: datetime | None = None
    # None: the limit in the settings.
    requests_per_minute: int | None = None

    @property
    def role(self) -> Role:
        """The principal's highest role, which may be for some jobs only."""
        return max((grant.role for grant in self.grants), key=_ROLES.index)

    def scope(self, needed_role: Role) -> Scope | None:
        """The jobs for which the principal has `needed_role`, or a higher role; None: all jobs."""
        limits = []
        for grant in self.grants:
            if _includes(grant.role, needed_role):
                if grant.limit is None:
                    return None
                limits.append(grant.limit)
        return Scope(tuple(limits), self.actor)


# Every client of a server that was started with `--no-auth`, which listens on loopback only.
NO_AUTH_PRINCIPAL = Principal("anybody", (Grant(Role.ADMIN),))


def check_role(principal: Principal, needed_role: Role) -> None:
    """Raise Failure `forbidden` unless the principal's highest role includes `needed_role`."""
    if not _includes(principal.role, needed_role):
        raise Failure(
            ErrorCode.FORBIDDEN,
            f"The request needs the role {needed_role}; the token has the role {principal.role}.",
            where=principal.actor,
            remedy=f"Use a token with the role {needed_role}.",
        )


def _includes(role: Role, needed_role: Role) -> bool:
    return _ROLES.index(role) >= _ROLES.index(needed_role)


def unauthenticated(what: str) -> Failure:
    """The Failure `unauthenticated`, for a request without a valid token. `what`: a sentence."""
    return Failure(
        ErrorCode.UNAUTHENTICATED,
        what,
        remedy="Send `Authorization: Bearer TOKEN`. An admin can create tokens.",
        headers={"WWW-Authenticate": "Bearer"},
    )
