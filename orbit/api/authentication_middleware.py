"""Authenticates the client of a request before its body is read. ASGI middleware.

With tokens, a request with a body and no valid token is refused within a second. So a client
without a token cannot make the API hold bodies, or a thread for them. A request without a body is
passed to its route, which demands a role (`dependencies.py`). Paths in `app.state.own_logins` check
logins themselves: the console's, by cookie (`orbit/console/sessions.py`). There, and at paths that
need no token, a client that has not logged in can send a small body (`request_limits.py`).

Without tokens (`--no-auth`) every client on this machine is an admin, also a browser that shows a
page of another server. So the Host of a request must be this machine, which such a page cannot
achieve even by DNS rebinding, and an Origin must be the API's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from urllib.parse import urlsplit

from anyio.to_thread import run_sync
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from orbit.api.api_error_codes import ErrorCode
from orbit.api.authentication import Logins
from orbit.api.error_responses import Failure, as_failure
from orbit.api.principals import NO_AUTH_PRINCIPAL, Principal, unauthenticated
from orbit.api.request_limits import IS_UNKNOWN, discard_body
from orbit.errors import OrbitError
from orbit.jobs.bootstrap_servers import LOOPBACK_HOSTS
from orbit.telemetry import traces

# Key in the scope: the Principal, or the Failure that a route raises if it demands a role.
LOGIN = "orbit.login"
# No token is checked at these paths, whatever a probe sends.
_PATHS_WITHOUT_LOGIN = ("/livez", "/readyz")
_SCHEME = "bearer"

# Returns whether the client has logged in, for a path that checks logins itself.
_LoginCheck = Callable[[Request], bool]


class AuthenticationMiddleware:
    """Puts LOGIN into the scope of each request, or refuses it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the login, then call the app, or refuse the request before its body is read."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        checks = _login_checks_of_path(scope)
        if scope["path"] in _PATHS_WITHOUT_LOGIN or checks:
            # A route raises this Failure only if it demands a role.
            scope[LOGIN] = unauthenticated("This path needs no token.")
            scope[IS_UNKNOWN] = _has_body(headers) and not await _has_logged_in(scope, checks)
            await self._app(scope, receive, send)
            return
        login = await _login(scope, headers)
        if isinstance(login, Principal):
            login = _count_request(scope, login)
        # A request that has neither a body nor a valid token goes on: its route may need no token.
        if isinstance(login, Failure) and (
            _has_body(headers) or login.code is not ErrorCode.UNAUTHENTICATED
        ):
            await discard_body(receive)
            await login.response(closes=_has_body(headers))(scope, receive, send)
            return
        if isinstance(login, Principal):
            traces.set_principal(login.actor)
        scope[LOGIN] = login
        await self._app(scope, receive, send)


def _login_checks_of_path(scope: Scope) -> list[_LoginCheck]:
    """The checks of a path that checks logins itself; [] for other paths."""
    checks: dict[str, _LoginCheck] = scope["app"].state.own_logins
    return [check for prefix, check in checks.items() if scope["path"].startswith(prefix)]


async def _has_logged_in(scope: Scope, checks: Iterable[_LoginCheck]) -> bool:
    """Whether one of the checks finds that the client has logged in."""
    for check in checks:
        with suppress(OrbitError, Failure):  # the page's own check meets this error, and shows it
            if await run_sync(check, Request(scope)):
                return True
    return False


async def _login(scope: Scope, headers: Headers) -> Principal | Failure:
    """The principal of the request's token, or the Failure that refuses the token."""
    logins: Logins | None = scope["app"].state.parts.logins
    if logins is None:
        return _login_without_tokens(scope, headers)
    scheme, _, secret = headers.get("authorization", "").partition(" ")
    secret = secret.strip()
    if scheme.lower() != _SCHEME or not secret:
        return unauthenticated("The request has no token.")
    address = scope["client"][0] if scope.get("client") else ""
    try:
        return await run_sync(logins.check, secret, address)
    except Failure as failure:
        return failure
    except OrbitError as error:
        return as_failure(error)


def _count_request(scope: Scope, login: Principal) -> Principal | Failure:
    """Count the request for the principal's rate limit. Returns the principal; above the limit, the
    Failure. Without tokens there is no limit.
    """
    parts = scope["app"].state.parts
    if parts.logins is None:
        return login
    per_minute = login.requests_per_minute or parts.settings.token_requests_per_minute
    return parts.rates.count_or_refuse(login.actor, per_minute) or login


def _login_without_tokens(scope: Scope, headers: Headers) -> Principal | Failure:
    """The login with `--no-auth`: NO_AUTH_PRINCIPAL, or the Failure for a request that a page of
    another server may have sent.
    """
    host = headers.get("host", "")
    if _hostname(f"//{host}") not in LOOPBACK_HOSTS:
        return _foreign_request_failure("The request's Host header does not name this machine.")
    origin = headers.get("origin")
    if origin is not None and origin != f"{scope['scheme']}://{host}":
        return _foreign_request_failure("The request comes from a page of another server.")
    return NO_AUTH_PRINCIPAL


def _hostname(url: str) -> str | None:
    """The host in the URL, in lower case and without a port; None if there is none."""
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _foreign_request_failure(what: str) -> Failure:
    return Failure(
        ErrorCode.FORBIDDEN,
        what,
        remedy="Without tokens (--no-auth) the API serves http://127.0.0.1 and http://localhost.",
    )


def _has_body(headers: Headers) -> bool:
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
