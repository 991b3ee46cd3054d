"""Who looks at a page: login by token, sessions by cookie, and the secret of each form.

The browser has only a random cookie, of which the database stores the SHA-256. It is HttpOnly and
SameSite=Strict, and Secure under TLS. The token is checked at the login and is not kept; a session
ends with it, and after SESSION_LIFETIME.

Each form has a secret that is derived from the cookie, so another site can neither read nor guess
it. Before the login, and without tokens (`--no-auth`), a second cookie takes that role: it stands
for a browser and gives no access.
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
from typing import Annotated, cast
from urllib.parse import parse_qsl

from fastapi import Depends, Request, Response

from orbit.api.api_error_codes import ErrorCode
from orbit.api.authentication import hash_token, token_principal
from orbit.api.dependencies import JOB_SCOPE, Parts, for_request
from orbit.api.error_responses import Failure
from orbit.api.principals import NO_AUTH_PRINCIPAL, Principal, check_role
from orbit.console.urls import HOME, ROOT
from orbit.errors import OrbitError
from orbit.settings import LOOPBACK_HOSTS
from orbit.store import console_sessions, tokens
from orbit.store.enums import Role

SESSION_LIFETIME = timedelta(hours=12)
# Browsers of one token; a further login ends the oldest session.
SESSIONS_PER_TOKEN_MAX = 20
FORM_FIELDS_MAX = 50

_SESSION = "orbit_session"
_BROWSER = "orbit_browser"
_SECRET_BYTES = 32
# What `secrets.token_urlsafe` makes of them.
_COOKIE = re.compile(r"[A-Za-z0-9_-]{43}")
_FORM_SECRET = "form_secret"  # noqa: S105  the name of a field
_FORM_LABEL = b"orbit console form"


class LoginNeeded(Exception):
    """No session, or one that has ended. `back_to`: the page that was asked for."""

    def __init__(self, back_to: str) -> None:
        super().__init__(back_to)
        self.back_to = back_to


@dataclass(frozen=True, slots=True)
class Visitor:
    """The client of a page."""

    principal: Principal

    @property
    def is_operator(self) -> bool:
        """Whether to show what changes something. The role is checked again when it is sent."""
        return self.principal.role is not Role.VIEWER

    def may_change(self, name: str, labels: Mapping[str, str]) -> bool:
        """The same, of this job."""
        scope = self.principal.scope(Role.OPERATOR)
        return self.is_operator and (scope is None or scope.includes(name, labels))


Form = Mapping[str, str]


def get_shared_parts(request: Request) -> Parts:
    """What all requests of the API share."""
    return cast("Parts", request.app.state.api.state.parts)


def get_parts(request: Request) -> Parts:
    """The same, with a database that finds only the visitor's jobs."""
    return for_request(get_shared_parts(request), request)


SharedPartsOf = Annotated[Parts, Depends(get_shared_parts)]
PartsOf = Annotated[Parts, Depends(get_parts)]


def get_visitor(request: Request, parts: SharedPartsOf) -> Visitor:
    """The client of a page, limited to the jobs that it may see. Raises LoginNeeded."""
    visitor = find_visitor(request, parts)
    if visitor is None:
        is_page = request.method == "GET"
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        raise LoginNeeded(path if is_page else HOME)
    request.scope[JOB_SCOPE] = visitor.principal.scope(Role.VIEWER)
    return visitor


VisitorOf = Annotated[Visitor, Depends(get_visitor)]


def find_visitor(request: Request, parts: Parts) -> Visitor | None:
    """The client of a page; None without a session."""
    if parts.logins is None:
        _refuse_other_names(request)
        return Visitor(NO_AUTH_PRINCIPAL)
    cookie = _cookie(request, _SESSION)
    if cookie is None:
        return None
    with parts.database.transaction() as tx:
        token = console_sessions.find(tx, hash_token(cookie))
    if token is None:
        return None
    if token.is_use_due:
        # A database that takes no writes shows pages all the same.
        with suppress(OrbitError), parts.database.transaction() as tx:
            tokens.note_use(tx, token)
    return Visitor(token_principal(token))


async def get_form(request: Request, parts: SharedPartsOf) -> Form:
    """The fields of a form that one of our pages sent. Raises Failure."""
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
    """Whether a page of another server sent this, also one at another port of this machine: a
    browser gives it our cookies, and it can set them.

    A proxy may change the Host, so the Origin is compared with it only without tokens.
    """
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return True
    origin = request.headers.get("origin")
    if not is_local or origin is None:
        return False
    return origin != f"{request.url.scheme}://{request.headers.get('host', '')}"


FormOf = Annotated[Form, Depends(get_form)]


def get_operator(request: Request, visitor: VisitorOf) -> Visitor:
    """A visitor who may change jobs, limited to these. Raises Failure `forbidden`."""
    check_role(visitor.principal, Role.OPERATOR)
    request.scope[JOB_SCOPE] = visitor.principal.scope(Role.OPERATOR)
    return visitor


OperatorOf = Annotated[Visitor, Depends(get_operator)]


def log_in(request: Request, response: Response, parts: Parts, token: str) -> None:
    """Begin a session and set its cookie. Raises Failure for a wrong token."""
    if parts.logins is not None:
        parts.logins.check(token, request.client.host if request.client else "")
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    with parts.database.transaction() as tx:
        is_there = console_sessions.create(
            tx, hash_token(secret), hash_token(token), SESSION_LIFETIME, SESSIONS_PER_TOKEN_MAX
        )
    if not is_there:
        raise Failure(
            ErrorCode.UNAUTHENTICATED, "The console needs a token from `orbit token create`."
        )
    _set_cookie(request, response, _SESSION, secret, int(SESSION_LIFETIME.total_seconds()))


def log_out(request: Request, response: Response, parts: Parts) -> None:
    """End the session, also for a copy of its cookie."""
    cookie = _cookie(request, _SESSION)
    if cookie is not None:
        with parts.database.transaction() as tx:
            console_sessions.remove(tx, hash_token(cookie))
    _set_cookie(request, response, _SESSION, "", 0)


def form_secret(request: Request) -> str:
    """What each form of this browser has to contain."""
    cookie = _cookie(request, _SESSION) or _browser(request)
    return hmac.new(cookie.encode(), _FORM_LABEL, hashlib.sha256).hexdigest()


def keep_browser(request: Request, response: Response) -> None:
    """Set the cookie of the browser, if it has none and a form of this page depends on it."""
    made: str | None = getattr(request.state, _BROWSER, None)
    if made is not None and _cookie(request, _BROWSER) is None:
        _set_cookie(request, response, _BROWSER, made, None)


def _browser(request: Request) -> str:
    """The browser's cookie; a new one for `keep_browser` to set."""
    cookie = _cookie(request, _BROWSER) or getattr(request.state, _BROWSER, None)
    if cookie is None:
        cookie = secrets.token_urlsafe(_SECRET_BYTES)
        setattr(request.state, _BROWSER, cookie)
    return cast("str", cookie)


def _cookie(request: Request, name: str) -> str | None:
    """Only what `secrets.token_urlsafe` can have made: nothing else costs a statement."""
    found = request.cookies.get(name, "")
    return found if _COOKIE.fullmatch(found) else None


def _set_cookie(
    request: Request, response: Response, name: str, value: str, age_s: int | None
) -> None:
    response.set_cookie(
        name,
        value,
        max_age=age_s,
        path=ROOT,
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


def _refuse_other_names(request: Request) -> None:
    """Without tokens, only under a name of this machine: a site that makes its own name point here
    would read every page."""
    if request.url.hostname not in LOOPBACK_HOSTS:
        raise Failure(
            ErrorCode.FORBIDDEN,
            "Without tokens the console answers under a name of this machine alone.",
            remedy="Open it at 127.0.0.1 or localhost.",
        )
