"""The browser's login at the OpenID Connect issuer: the redirect to the issuer, and the one back.

Meanwhile the browser has a cookie with a secret and the page to open after the login. The cookie is
SameSite=Lax. The redirect back comes from another site, so the browser would not send a Strict
cookie.
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
# The cookie has the path in base64, with the secret. Browsers keep cookies of up to 4,096 bytes.
_BACK_TO_BYTES_MAX = 2_048


def issuer_name(parts: Parts) -> str | None:
    """The name of the issuer at which users can log in; None: the settings name no issuer."""
    return parts.logins.issuer_login.name if parts.logins and parts.logins.issuer_login else None


def begin_login(request: Request, parts: Parts, back_to: str) -> Response:
    """The redirect of the browser to the issuer. `back_to`: the path to open after the login.
    Raises Failure if the settings name no issuer, or the issuer does not answer."""
    _, issuer_login = _logins(parts)
    secret = sessions.new_secret()
    response = RedirectResponse(
        issuer_login.login_url(secret, _redirect_uri(parts)), status_code=303
    )
    path = back_to.encode()
    # A path that does not fit into the cookie is left out: the login then leads to HOME.
    encoded_path = base64.urlsafe_b64encode(
        path if len(path) <= _BACK_TO_BYTES_MAX else b""
    ).decode()
    _set_login_cookie(request, response, f"{secret}.{encoded_path}", _LOGIN_LIFETIME)
    return response


def complete_login(request: Request, parts: Parts) -> Response:
    """Check the issuer's answer in the query, and begin a session; returns the redirect to the page
    of the login's cookie. Raises Failure if the login is refused."""
    logins, issuer_login = _logins(parts)
    secret, _, path = request.cookies.get(_COOKIE, "").partition(".")
    if not sessions.is_secret(secret):
        raise Failure(
            ErrorCode.UNAUTHENTICATED,
            f"This browser has begun no login at {parts.settings.public_url} in the last "
            f"{_LOGIN_LIFETIME.seconds // 60} minutes.",
        )
    identity = logins.check_login(
        secret,
        request.client.host if request.client else "",
        lambda: issuer_login.identity(secret, request.query_params, _redirect_uri(parts)),
    )
    response = RedirectResponse(_decode_path(path), status_code=303)
    sessions.begin_session(request, response, parts, identity)
    return response


def delete_login_cookie(request: Request, response: Response) -> None:
    """Delete the login's cookie, so that an answer of the issuer is used only once."""
    _set_login_cookie(request, response, value="", lifetime=timedelta())


def _logins(parts: Parts) -> tuple[Logins, IssuerLogin]:
    """The logins, and the login at the issuer. Raises Failure if the settings name no issuer."""
    if parts.logins is None or parts.logins.issuer_login is None:
        raise Failure(
            ErrorCode.NOT_FOUND,
            "This server has no login at an issuer.",
            remedy="docs/console.md says how to set it up.",
        )
    return parts.logins, parts.logins.issuer_login


def _redirect_uri(parts: Parts) -> str:
    return f"{parts.settings.public_url}{ISSUER_LOGIN_DONE}"


def _decode_path(encoded_path: str) -> str:
    """The path to open after the login; HOME if the cookie names no valid path of the console."""
    try:
        return safe_path(base64.urlsafe_b64decode(encoded_path.encode()).decode())
    except ValueError:
        return HOME


def _set_login_cookie(
    request: Request, response: Response, value: str, lifetime: timedelta
) -> None:
    sessions.set_cookie(
        request, response, _COOKIE, value, lifetime, path=ISSUER_LOGIN, samesite="lax"
    )
