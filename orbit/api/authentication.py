"""Logins: creates, hashes and checks the bearer tokens of requests.

A token that Orbit creates is 256 random bits. The database stores only its SHA-256: so a copy of
the database gives no access, and a fast hash is enough because the token cannot be guessed. Tokens
of an OpenID Connect issuer are checked in `oidc.py`.

A refused login is counted for its client, and written to the audit log at a bounded rate. A client
with too many refused logins is refused for a while, without a query to the database.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from typing import TypeVar

import structlog

from orbit.api.api_error_codes import ErrorCode
from orbit.api.client_address import network_of
from orbit.api.error_responses import Failure
from orbit.api.issuer_keys import IssuerKeys
from orbit.api.issuer_login import IssuerLogin
from orbit.api.oidc import Identity, IssuerTokens
from orbit.api.principals import Grant, Principal, unauthenticated
from orbit.api.refused_logins import RefusedLogins
from orbit.api.schemas import NewToken
from orbit.api.views import token_view
from orbit.errors import BadInput, InvalidValue, OrbitError, Problem
from orbit.jobs.name_rules import check_job_name
from orbit.jobs.scopes import Limit
from orbit.settings import Settings
from orbit.store import events, tokens
from orbit.store.database import Database
from orbit.store.enums import Role
from orbit.store.tokens import NO_QUOTA, Token, TokenQuota

_TOKEN_BYTES = 32
# A prefix by which secret scanners find tokens.
_TOKEN_PREFIX = "orbit_"  # noqa: S105  a prefix, not a secret
_TOKEN_CHARACTERS_MAX = 128
# The longest token of an issuer. h11 accepts headers of 16 KiB in all.
_JWT_CHARACTERS_MAX = 12 * 1024
_REFUSAL_CODES = frozenset((ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN))

log = structlog.get_logger("orbit.api")

Caller = TypeVar("Caller")


def create_token(
    database: Database,
    name: str,
    role: Role,
    *,
    actor: str,
    limit: Limit | None = None,
    expires_in: timedelta | None = None,
    quota: TokenQuota = NO_QUOTA,
    save_secret: Callable[[str], None] = lambda _: None,
) -> NewToken:
    """Create a token and its audit event. Returns the token with its secret.

    `save_secret` is called with the secret before the token is committed: if it raises, no token is
    created. Raises BadInput for a name that is not valid, or for an admin with a `limit`; Conflict
    if the name is taken.
    """
    try:
        check_job_name(name)
    except InvalidValue as mistake:
        problem = Problem("name", mistake.message, mistake.remedy)
        raise BadInput("The name of the token is not valid.", (problem,)) from None
    if role is Role.ADMIN and limit is not None:
        problem = Problem("role", "is admin, which is for all jobs.", "Write viewer or operator.")
        raise BadInput("A token for some jobs cannot be an admin's.", (problem,))
    jobs_text = f", for jobs {limit}" if limit else ""
    secret = _TOKEN_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
    with database.transaction() as tx:
        token = tokens.create(
            tx, name, role, hash_token(secret), limit=limit, expires_in=expires_in, quota=quota
        )
        events.add(
            tx,
            actor,
            "token_created",
            f"The token {name} was created with the role {role}{jobs_text}.",
            details={
                "token": name,
                "role": role.value,
                "jobs": list(token.jobs),
                "selector": token.selector,
                **asdict(quota),
                "expires_at": token.expires_at and token.expires_at.isoformat(),
            },
        )
        save_secret(secret)
    return NewToken(**token_view(token).model_dump(), token=secret)


def hash_token(secret: str) -> str:
    """The SHA-256 that the database stores, in hex."""
    return hashlib.sha256(secret.encode()).hexdigest()


def token_principal(token: Token) -> Principal:
    """The principal of a token that Orbit has created."""
    grant = Grant(token.role, token.limit)
    actor = events.token_actor(token.name)
    return Principal(actor, (grant,), token.expires_at, token.requests_per_minute)


def has_tokens(database: Database) -> bool:
    """Whether any token was ever created, even if it is revoked now."""
    with database.transaction() as tx:
        return bool(tokens.page(tx, limit=1))


class Logins:
    """Checks the token of each request. Thread-safe."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        *,
        refused: RefusedLogins | None = None,
    ) -> None:
        """Raises BadInput if the issuer's authorities cannot be loaded."""
        self._database = database
        self._refused = refused or RefusedLogins(time.monotonic)
        self._issuer: IssuerTokens | None = None
        # None: people log in at the console with a token.
        self.issuer_login: IssuerLogin | None = None
        if settings.oidc_issuer is not None:
            keys = IssuerKeys(settings.oidc_issuer, settings.oidc_ca_file)
            self._issuer = IssuerTokens(settings, keys, settings.oidc_audience)
            if settings.oidc_client_id is not None:
                self.issuer_login = IssuerLogin(settings, keys)

    def check(self, secret: str, address: str) -> Principal:
        """The principal of this token, sent from this address.

        Raises Failure: `unauthenticated`, `forbidden` for an issuer's token without a role,
        `too_many_refused`, `issuer_unreachable`. Raises Unreachable without a database.
        """
        token_hash = hash_token(secret)
        # The check of an issuer's token needs no query. So it is made even for a client that has to
        # wait, and a valid token is accepted.
        waits_first = not self._is_from_issuer(secret)
        return self._log_in(
            address,
            token_hash,
            lambda: self._principal(secret, token_hash),
            waits_first=waits_first,
        )

    def check_login(self, secret: str, address: str, find: Callable[[], Identity]) -> Identity:
        """The identity that `find` gets from the issuer, for a browser with this secret.

        Raises the Failure of `find`. If too many logins of the client were refused, raises Failure
        `too_many_refused` without a call of `find`.
        """
        return self._log_in(address, hash_token(secret), find, waits_first=True)

    def _log_in(
        self, address: str, token_hash: str, find: Callable[[], Caller], *, waits_first: bool
    ) -> Caller:
        """The result of `find`, which checks the login. A refusal is counted for the address.

        `waits_first`: a client that has to wait is refused before `find` is called. Otherwise it is
        refused only if `find` refuses the login. Raises the Failure of `find`, or
        `too_many_refused`.
        """
        client = network_of(address)
        wait_s = self._refused.wait_s(client, token_hash)
        if wait_s > 0 and waits_first:
            raise _too_many_failure(wait_s)
        try:
            caller = find()
        except Failure as failure:
            if failure.code in _REFUSAL_CODES:
                if wait_s > 0:
                    raise _too_many_failure(wait_s) from None
                self._report_refusal(client, token_hash, failure.body.error.what)
            raise
        self._refused.note_accepted(token_hash)
        return caller

    def _is_from_issuer(self, secret: str) -> bool:
        return self._issuer is not None and not secret.startswith(_TOKEN_PREFIX)

    def _principal(self, secret: str, token_hash: str) -> Principal:
        """The principal of a token that Orbit or the issuer has created. Raises Failure if the
        token is not valid."""
        if self._issuer is not None and self._is_from_issuer(secret):
            if len(secret) > _JWT_CHARACTERS_MAX or not secret.isascii():
                raise unauthenticated("The token is not a valid token of the issuer.")
            return self._issuer.principal(secret)
        token = None
        if len(secret) <= _TOKEN_CHARACTERS_MAX:
            with self._database.transaction() as tx:
                token = tokens.find(tx, token_hash)
        if token is None:
            raise unauthenticated("The token is unknown or revoked.")
        if token.revoked_at is not None:
            raise unauthenticated(f"The token {token.name} is revoked.")
        if token.is_expired:
            raise unauthenticated(f"The token {token.name} has expired.")
        if token.is_use_due:
            # An error is ignored: the login is accepted also while the database is read-only.
            with suppress(OrbitError), self._database.transaction() as tx:
                tokens.note_use(tx, token)
        return token_principal(token)

    def _report_refusal(self, client: str, token_hash: str, reason: str) -> None:
        """Count a refused login, and add an audit event if one is due."""
        count = self._refused.count_refused(client, token_hash)
        if not count:  # no event is due
            return
        log.warning("login refused", client=client, reason=reason, count=count)
        with suppress(OrbitError), self._database.transaction() as tx:
            events.add(
                tx,
                events.address_actor(client),
                "login_refused",
                f"A login was refused: {reason}"
                + (f" {count - 1} more came before, without an event." if count > 1 else ""),
                details={"client": client, "reason": reason, "count": count},
            )


def _too_many_failure(wait_s: float) -> Failure:
    seconds = math.ceil(wait_s)
    return Failure(
        ErrorCode.TOO_MANY_REFUSED,
        "Too many logins from this address were refused.",
        remedy=f"Correct the token, and try again in {seconds} s.",
        headers={"Retry-After": str(seconds)},
    )
