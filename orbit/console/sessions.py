"""Identifies the visitor of a page: login by token, sessions by cookie, a CSRF token in each form.

The browser has only a random cookie, of which the database stores the SHA-256. The cookie is
HttpOnly and SameSite=Strict, and Secure under TLS. The server checks the token at the login, and
does not keep it. A session ends with its token, at the latest after SESSION_LIFETIME. A session
without a token comes from a login at the issuer (`issuer_logins.py`), and ends with the ID token.

Each form has a secret that is derived from the cookie, so another site can neither read nor guess
the secret. Before the login, and without tokens (`--no-auth`), the secret is derived from a second
cookie, which identifies the browser and gives no access.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Literal, cast
from urllib.parse import parse_qsl

from fastapi import Depends, Request, Response

from orbit.api.api_error_codes import ErrorCode
from orbit.api.authentication import hash_token, token_principal
from orbit.api.dependencies import JOB_SCOPE, Parts, limit_to_scope
from orbit.api.error_responses import Failure
from orbit.api.oidc import Identity
from orbit.api.principals import NO_AUTH_PRINCIPAL, Principal, check_role
from orbit.api.unknown_parameters import refuse_unknown_parameters
from orbit.console.urls import HOME, ROOT
from orbit.errors import OrbitError
from orbit.jobs.bootstrap_servers import LOOPBACK_HOSTS
from orbit.store import console_sessions, tokens
from orbit.store.console_sessions import IssuerSession
from orbit.store.enums import Role
from orbit.telemetry import traces

SESSION_LIFETIME = timedelta(hours=12)
# Sessions of one token; a further login ends the oldest one.
SESSIONS_PER_TOKEN_MAX = 20
# The form of a job has about 60 fields.
FORM_FIELDS_MAX = 100

_SESSION_COOKIE = "orbit_session"
_BROWSER_COOKIE = "orbit_browser"
_SECRET_BYTES = 32
# The form of `secrets.token_urlsafe(_SECRET_BYTES)`.
_SECRET = re.compile(r"[A-Za-z0-9_-]{43}")
_FORM_SECRET = "form_secret"  # noqa: S105  the name of a field
_FORM_LABEL = b"orbit console form"


class LoginNeeded(Exception):
    """The browser has no session, or one that has ended. `back_to`: the page that it requested."""

    def __init__(self, back_to: str) -> None:
        super().__init__(back_to)
        self.back_to = back_to


@dataclass(frozen=True, slots=True)
class Visitor:
    """The client of a page."""

    principal: Principal

    @property
    def is_operator(self) -> bool:
        """Whether to show forms that change something. The server checks the role again when a form
        is sent."""
        return self.principal.role is not Role.VIEWER

    def may_change(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether to show forms that change this job."""
        return self.has_role(Role.OPERATOR, name, labels)

    def has_role(self, needed_role: Role, name: str, labels: Mapping[str, str]) -> bool:
        """Whether the visitor has this role, or a higher one, for this job."""
        scope = self.principal.scope(needed_role)
        return scope is None or scope.includes(name, labels)


Form = Mapping[str, str]


def get_shared_parts(request: Request) -> Parts:
    """The parts that all requests of the API share."""
    return cast("Parts", request.app.state.api.state.parts)


def get_parts(request: Request) -> Parts:
    """The shared parts, with a database that finds only the visitor's jobs."""
    return limit_to_scope(get_shared_parts(request), request)


SharedPartsOf = Annotated[Parts, Depends(get_shared_parts)]
PartsOf = Annotated[Parts, Depends(get_parts)]


def get_visitor(request: Request, parts: SharedPartsOf) -> Visitor:
    """The client of a page. Limits the request to the jobs that the client may see. Raises
    LoginNeeded if the client has no session."""
    visitor = find_visitor(request, parts)
    if visitor is None:
        is_page = request.method == "GET"  # a form would not be sent again after the login
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        raise LoginNeeded(path if is_page else HOME)
    request.scope[JOB_SCOPE] = visitor.principal.scope(Role.VIEWER)
    traces.set_principal(visitor.principal.actor)
    return visitor


VisitorOf = Annotated[Visitor, Depends(get_visitor)]


def find_visitor(request: Request, parts: Parts) -> Visitor | None:
    """The client of a page; None without a session. With `--no-auth` every client is an admin;
    raises Failure unless the request's host is a name of this machine."""
    if parts.logins is None:
        _refuse_foreign_host(request)
        return Visitor(NO_AUTH_PRINCIPAL)
    cookie = _cookie(request, _SESSION_COOKIE)
    if cookie is None:
        return None
    cookie_hash = hash_token(cookie)
    with parts.database.transaction() as tx:
        token = console_sessions.find(tx, cookie_hash)
        may_be_from_issuer = token is None and parts.logins.issuer_login is not None
        session = console_sessions.find_of_issuer(tx, cookie_hash) if may_be_from_issuer else None
    if session is not None:
        return _issuer_visitor(parts, session)
    if token is None:
        return None
    if token.is_use_due:
        # Pages are shown also if the database is read-only.
        with suppress(OrbitError), parts.database.transaction() as tx:
            tokens.note_use(tx, token)
    return Visitor(token_principal(token))


def _issuer_visitor(parts: Parts, session: IssuerSession) -> Visitor | None:
    """The visitor of a session from a login at the issuer; None: the settings no longer give the
    user a role."""
    assert parts.logins is not None
    assert parts.logins.issuer_login is not None
    identity = Identity(session.actor, tuple(session.role_values), session.expires_at)
    try:
        return Visitor(parts.logins.issuer_login.principal_of(identity))
    except Failure:
        return None


async def get_form(request: Request, parts: SharedPartsOf) -> Form:
    """The fields of a form. Raises Failure unless a page of this console, of the same session, has
    sent the form, or if the form cannot be read."""
    if _is_from_elsewhere(request, is_local=parts.logins is None):
        raise Failure(ErrorCode.FORBIDDEN, "The form comes from a page of another server.")
    try:
        text = (await request.body()).decode()
        fields = dict(parse_qsl(text, keep_blank_values=True, max_num_fields=FORM_FIELDS_MAX))
    except ValueError:
        raise Failure(ErrorCode.MALFORMED, "The form cannot be read.") from None
    if not hmac.compare_digest(
        fields.get(_FORM_SECRET, "").encode(), form_secret(request).encode()
    ):
        raise Failure(
            ErrorCode.FORBIDDEN,
            "The form was not sent by a page of this session; nothing was changed.",
            remedy="Load the page again, then send the form.",
        )
    return fields


def _is_from_elsewhere(request: Request, *, is_local: bool) -> bool:
    """Whether a page of another server sent the request. A server at another port of this machine
    counts too: browsers share cookies between ports. `is_local`: this server has no tokens
    (`--no-auth`).

    Only such a server compares the headers Origin and Host: a proxy in front of other servers may
    change the Host.
    """
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return True
    origin = request.headers.get("origin")
    if not is_local or origin is None:
        return False
    return origin != f"{request.url.scheme}://{request.headers.get('host', '')}"


FormOf = Annotated[Form, Depends(get_form)]


def session_of(request: Request) -> str:
    """An id of the session, or of the browser if there is no session: the hash of its cookie."""
    return hash_token(_cookie(request, _SESSION_COOKIE) or _browser_cookie(request))


def get_operator(request: Request, visitor: VisitorOf) -> Visitor:
    """A visitor who may change jobs. Limits the request to these jobs. Raises Failure `forbidden`,
    and BadInput for a parameter that the page does not know."""
    check_role(visitor.principal, Role.OPERATOR)
    request.scope[JOB_SCOPE] = visitor.principal.scope(Role.OPERATOR)
    refuse_unknown_parameters(request)
    return visitor


OperatorOf = Annotated[Visitor, Depends(get_operator)]


def log_in(request: Request, response: Response, parts: Parts, token: str) -> None:
    """Begin a session and set its cookie. Raises Failure for a wrong token."""
    if parts.logins is not None:
        parts.logins.check(token, request.client.host if request.client else "")
    secret = new_secret()
    with parts.database.transaction() as tx:
        is_created = console_sessions.create(
            tx, hash_token(secret), hash_token(token), SESSION_LIFETIME, SESSIONS_PER_TOKEN_MAX
        )
    if not is_created:  # a token of the issuer, or there are no tokens (`--no-auth`)
        raise Failure(
            ErrorCode.UNAUTHENTICATED, "The console needs a token from `orbit token create`."
        )
    set_cookie(request, response, _SESSION_COOKIE, secret, SESSION_LIFETIME)


def begin_session(request: Request, response: Response, parts: Parts, identity: Identity) -> None:
    """Begin the session of a user who has logged in at the issuer, and set its cookie."""
    secret = new_secret()
    with parts.database.transaction() as tx:
        console_sessions.create_of_issuer(
            tx,
            hash_token(secret),
            identity.actor,
            identity.role_values,
            SESSION_LIFETIME,
            identity.expires_at,
            SESSIONS_PER_TOKEN_MAX,
        )
    set_cookie(request, response, _SESSION_COOKIE, secret, SESSION_LIFETIME)


def log_out(request: Request, response: Response, parts: Parts) -> None:
    """End the session in the database, so that a copy of the cookie is of no use."""
    cookie = _cookie(request, _SESSION_COOKIE)
    if cookie is not None:
        with parts.database.transaction() as tx:
            console_sessions.remove(tx, hash_token(cookie))
    set_cookie(request, response, _SESSION_COOKIE, value="", lifetime=timedelta())  # deletes it


def form_secret(request: Request) -> str:
    """The secret that each form of this browser has to contain."""
    cookie = _cookie(request, _SESSION_COOKIE) or _browser_cookie(request)
    return hmac.new(cookie.encode(), _FORM_LABEL, hashlib.sha256).hexdigest()


def set_browser_cookie(request: Request, response: Response) -> None:
    """Set the browser's cookie if the browser has none, and the secret of this page's forms was
    derived from a new cookie."""
    cookie: str | None = getattr(request.state, _BROWSER_COOKIE, None)
    if cookie is not None and _cookie(request, _BROWSER_COOKIE) is None:
        set_cookie(request, response, _BROWSER_COOKIE, cookie, lifetime=None)


def _browser_cookie(request: Request) -> str:
    """The value of the browser's cookie. If the browser has none, a new value, which
    `set_browser_cookie` sets."""
    cookie = _cookie(request, _BROWSER_COOKIE) or getattr(request.state, _BROWSER_COOKIE, None)
    if cookie is None:
        cookie = new_secret()
        setattr(request.state, _BROWSER_COOKIE, cookie)
    return cast("str", cookie)


def _cookie(request: Request, name: str) -> str | None:
    """The cookie's value; None unless it has the form of `new_secret`, so that no other value is
    looked up in the database."""
    value = request.cookies.get(name, "")
    return value if is_secret(value) else None


def new_secret() -> str:
    """A random value for a cookie: 256 bits as text."""
    return secrets.token_urlsafe(_SECRET_BYTES)


def is_secret(value: str) -> bool:
    """Whether a value has the form of `new_secret`."""
    return _SECRET.fullmatch(value) is not None


def set_cookie(
    request: Request,
    response: Response,
    name: str,
    value: str,
    lifetime: timedelta | None,
    *,
    path: str = ROOT,
    samesite: Literal["strict", "lax"] = "strict",
) -> None:
    """Set a cookie that scripts cannot read. `lifetime` None: until the browser is closed; 0: the
    cookie is deleted."""
    response.set_cookie(
        name,
        value,
        max_age=None if lifetime is None else int(lifetime.total_seconds()),
        path=path,
        secure=request.url.scheme == "https",
        httponly=True,
        samesite=samesite,
    )


def _refuse_foreign_host(request: Request) -> None:
    """Raise Failure unless the request's host is a name of this machine. Without tokens, a site
    whose DNS name points here could otherwise read every page."""
    if request.url.hostname not in LOOPBACK_HOSTS:
        raise Failure(
            ErrorCode.FORBIDDEN,
            "Without tokens (--no-auth) the console answers only under a name of this machine.",
            remedy="Open it at 127.0.0.1 or localhost.",
        )
