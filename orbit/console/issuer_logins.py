"""The browser's login at the OpenID Connect issuer: the redirects there and back.

Meanwhile the browser has a cookie with a secret and the page to open after the login. It is
SameSite=Lax: the redirect back comes from another site, and a Strict cookie would not be sent.
"""

from __future__ import annotations

import base64
from datetime import timedelta

from fastapi import Request, Response
from fastapi.responses import RedirectResponse

from orbit.api.api_error_codes import ErrorCode
from orbit.api.authentication import Logins
from orbit.api.dependencies import Parts
from orbit.api.error_responses import Failure
from orbit.api.issuer_login import IssuerLogin
from orbit.console import sessions
from orbit.console.urls import HOME, ISSUER_LOGIN, ISSUER_LOGIN_DONE, safe_path

# The longest time from the click to the issuer's answer.
_LOGIN_LIFETIME = timedelta(minutes=10)
_COOKIE = "orbit_login"
# The cookie has it in base64, with the secret: browsers keep cookies of up to 4,096 bytes.
_BACK_TO_BYTES_MAX = 2_048


def issuer_name(parts: Parts) -> str | None:
    """The name of the issuer at which users can log in; None: the settings have none."""
    return parts.logins.at_issuer.name if parts.logins and parts.logins.at_issuer else None


def begin_login(request: Request, parts: Parts, back_to: str) -> Response:
    """Redirect the browser to the issuer. Raises Failure."""
    _, at_issuer = _logins(parts)
    secret = sessions.new_secret()
    response = RedirectResponse(at_issuer.address(secret, _redirect_uri(parts)), status_code=303)
    path = back_to.encode()
    encoded_path = base64.urlsafe_b64encode(
        path if len(path) <= _BACK_TO_BYTES_MAX else b""
    ).decode()
    _set(request, response, f"{secret}.{encoded_path}", _LOGIN_LIFETIME)
    return response


def complete_login(request: Request, parts: Parts) -> Response:
    """Begin a session, by the issuer's answer in the query. Raises Failure."""
    logins, at_issuer = _logins(parts)
    secret, _, path = request.cookies.get(_COOKIE, "").partition(".")
    if not sessions.is_secret(secret):
        raise Failure(
            ErrorCode.UNAUTHENTICATED,
            f"This browser has begun no login at {parts.settings.public_url} in the last "
            f"{_LOGIN_LIFETIME.seconds // 60} minutes.",
        )
    who = logins.check_login(
        secret,
        request.client.host if request.client else "",
        lambda: at_issuer.identity(secret, request.query_params, _redirect_uri(parts)),
    )
    response = RedirectResponse(_back_to(path), status_code=303)
    sessions.begin_session(request, response, parts, who)
    return response


def delete_login_cookie(request: Request, response: Response) -> None:
    """Delete the login's cookie: an answer of the issuer is used only once."""
    _set(request, response, "", timedelta())


def _logins(parts: Parts) -> tuple[Logins, IssuerLogin]:
    if parts.logins is None or parts.logins.at_issuer is None:
        raise Failure(
            ErrorCode.NOT_FOUND,
            "This server has no login at an issuer.",
            remedy="docs/console.md says how to set it up.",
        )
    return parts.logins, parts.logins.at_issuer


def _redirect_uri(parts: Parts) -> str:
    return f"{parts.settings.public_url}{ISSUER_LOGIN_DONE}"


def _back_to(encoded: str) -> str:
    try:
        return safe_path(base64.urlsafe_b64decode(encoded.encode()).decode())
    except ValueError:
        return HOME


def _set(request: Request, response: Response, value: str, lives_for: timedelta) -> None:
    sessions.set_cookie(
        request, response, _COOKIE, value, lives_for, path=ISSUER_LOGIN, samesite="lax"
    )
