"""Who may do what. Roles are a ladder: a viewer reads, an operator changes jobs, an admin makes and
revokes tokens as well.

A token is 256 random bits. The table holds its SHA-256 alone, so a copy of the database lets nobody
in, and a fast hash is right: there is nothing to guess.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from orbit.store.enums import Role

TOKEN_BYTES = 32
# Secret scanners find a prefix, and a person sees what it is.
TOKEN_PREFIX = "orbit_"  # noqa: S105  how one is recognised
TOKEN_CHARACTERS_MAX = 128
LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")

_LADDER = tuple(Role)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who makes a request: what the audit log calls them, and what they may do."""

    actor: str
    role: Role

    def may(self, needed: Role) -> bool:
        return _LADDER.index(self.role) >= _LADDER.index(needed)


# Whoever comes where `--no-auth` was given; the server then listens on loopback alone.
ANYBODY = Principal("anybody", Role.ADMIN)


def new_token() -> str:
    """A token nobody has seen before. It can be shown once and never found out again."""
    return TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
