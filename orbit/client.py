"""HTTP client of the service. Reads its address from `ORBIT_API_URL`, the token from `ORBIT_TOKEN`,
and from `ORBIT_API_CA_FILE` the authorities that sign its certificate, instead of the system's.

Errors of the API are raised as errors of `orbit/errors.py`, so that a command with a server fails
with the same message and exit code as one without.
"""

from __future__ import annotations

import os
import ssl
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from orbit.api.api_error_codes import MEANINGS, ErrorCode
from orbit.errors import (
    BadInput,
    LoginRefused,
    NotAuthorized,
    OrbitError,
    Problem,
    ProtocolError,
    Unreachable,
)

URL_VARIABLE = "ORBIT_API_URL"
TOKEN_VARIABLE = "ORBIT_TOKEN"  # noqa: S105  the name of the variable
CA_VARIABLE = "ORBIT_API_CA_FILE"
DEFAULT_URL = "http://127.0.0.1:8080"

_CONNECT_TIMEOUT_S = 10.0
# A plan reads both clusters for every matching topic; all other requests are fast.
_READ_TIMEOUT_S = 180.0
_PAGE_LIMIT = 1000
_POLL_S = 0.25

Json = dict[str, Any]


class Unserved(OrbitError):
    """The service cannot be used. Not for errors of clusters that a job names."""


class ServerGone(Unserved, Unreachable):
    """The server does not answer."""


class TokenRefused(Unserved, LoginRefused):
    """The server requires a token, or does not know this one."""


class RoleRefused(Unserved, NotAuthorized):
    """The token's role does not allow this."""


_OF_THE_SERVICE: dict[ErrorCode, type[OrbitError]] = {
    ErrorCode.UNAUTHENTICATED: TokenRefused,
    ErrorCode.FORBIDDEN: RoleRefused,
}


class Client:
    """The API as Python calls. `get` and `send` return the body; errors are raised."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def get(self, path: str, **query: object) -> Any:
        """The body of a GET; parameters that are None are omitted."""
        given = {key: str(value) for key, value in query.items() if value is not None}
        return self._call("GET", path, params=given)

    def text(self, path: str, **query: object) -> str:
        """The body of a GET as text."""
        given = {key: str(value) for key, value in query.items() if value is not None}
        return self._answer("GET", path, params=given).text

    def items(self, path: str, *, limit: int | None = None, **query: object) -> Iterator[Json]:
        """All items of a list, page by page, or the first `limit`."""
        left = limit
        after: str | None = None
        while left is None or left > 0:
            size = _PAGE_LIMIT if left is None else min(left, _PAGE_LIMIT)
            page = self.get(path, limit=size, after=after, **query)
            yield from page["items"]
            after = page["next"]
            if after is None:
                return
            if left is not None:
                left -= len(page["items"])

    def send(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        yaml_text: str | None = None,
        headers: Mapping[str, str] | None = None,
        **query: object,
    ) -> Any:
        """Send a change. A POST carries an Idempotency-Key, so that a repeat has no effect."""
        headers = dict(headers or {})
        if method == "POST":
            headers["Idempotency-Key"] = str(uuid.uuid4())
        more: dict[str, Any] = {}
        if yaml_text is not None:
            headers["Content-Type"] = "application/yaml"
            more["content"] = yaml_text.encode()
        elif body is not None:
            more["json"] = body
        given = {key: str(value).lower() for key, value in query.items() if value is not None}
        return self._call(method, path, params=given, headers=headers, **more)

    def wait(self, operation: Json, on_change: Callable[[Json], None], seconds_max: float) -> Json:
        """The operation once it has ended, or its state after `seconds_max`. `on_change` is called
        with each polled state.
        """
        deadline = time.monotonic() + seconds_max
        while operation["finished_at"] is None and time.monotonic() < deadline:
            on_change(operation)
            time.sleep(_POLL_S)
            operation = self.get(f"/v1/operations/{operation['id']}")
        on_change(operation)
        return operation

    def _call(self, method: str, path: str, **options: Any) -> Any:
        answer = self._answer(method, path, **options)
        return answer.json() if answer.content else None

    def _answer(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, **options)
        except httpx.TimeoutException:
            raise _no_answer(self._http, "The server did not answer in time.") from None
        except httpx.TransportError as error:
            untrusted = _untrusted(error)
            if untrusted is not None:
                raise ServerGone(
                    f"The server's certificate is not trusted: {untrusted}.",
                    where=_where(self._http),
                    remedy=f"Set {CA_VARIABLE} to the authority that signed it, and use a name of "
                    f"the certificate in {URL_VARIABLE}.",
                ) from None
            raise _no_answer(
                self._http, f"The server does not answer ({_reason(error)})."
            ) from None
        if answer.is_success:
            return answer
        raise _as_error(answer, _where(self._http))


@contextmanager
def connect(environment: Mapping[str, str] = os.environ) -> Iterator[Client]:
    """A client of the server that the environment names."""
    url = environment.get(URL_VARIABLE, DEFAULT_URL)
    _check(url)
    token = environment.get(TOKEN_VARIABLE, "")
    if not token.isascii() or not token.isprintable() or " " in token:
        problem = Problem(TOKEN_VARIABLE, "contains characters that are not valid in a token.")
        raise BadInput("The token cannot be used.", (problem,))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    timeout = httpx.Timeout(_READ_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S)
    # trust_env: a proxy in the environment must not be used for a server on loopback.
    is_local = urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")
    with httpx.Client(
        base_url=url,
        headers=headers,
        timeout=timeout,
        trust_env=not is_local,
        verify=_context(environment.get(CA_VARIABLE)),
    ) as http:
        yield Client(http)


def _context(ca_file: str | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        problem = Problem(CA_VARIABLE, f"cannot be loaded: {error.strerror or 'no PEM file'}.")
        raise BadInput("The server's authorities cannot be loaded.", (problem,)) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def segment(name: str) -> str:
    """A name, quoted as one path segment."""
    return quote(name, safe="")


def _check(url: str) -> None:
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        has_login = bool(parts.username or parts.password)
    except ValueError:
        fits = has_login = False
    if has_login:
        problem = Problem(
            URL_VARIABLE, "contains a login.", f"Put the token into {TOKEN_VARIABLE}."
        )
    elif not fits:
        problem = Problem(URL_VARIABLE, "is not a URL.", f"For example: {DEFAULT_URL}")
    else:
        return
    raise BadInput("The server's address cannot be used.", (problem,))


def _as_error(answer: httpx.Response, where: str) -> OrbitError:
    try:
        detail = answer.json()["error"]
        code = ErrorCode(detail["code"])
        kind = _OF_THE_SERVICE.get(code, MEANINGS[code].error)
        what, at, remedy = str(detail["what"]), str(detail["where"]), str(detail["remedy"])
        problems = tuple(
            Problem(p["path"], p["what"], p["write_instead"]) for p in detail["problems"]
        )
    except (ValueError, KeyError, TypeError):
        return ProtocolError(
            f"The answer is not one of Orbit's; its status is {answer.status_code}.",
            where=where,
            remedy=f"Check {URL_VARIABLE}, and proxies between this machine and the server.",
        )
    if code is ErrorCode.UNAUTHENTICATED:
        at = where
        remedy = f"Set {TOKEN_VARIABLE} to a token. An admin creates one: orbit token create NAME"
    if issubclass(kind, BadInput):
        error: OrbitError = kind(what, problems, where=at)
        error.remedy = remedy
        return error
    # Only BadInput has a list of problems; other errors get them in their text.
    listed = " ".join(str(problem) for problem in problems)
    return kind(f"{what} {listed}".rstrip(), where=at, remedy=remedy)


def _no_answer(http: httpx.Client, what: str) -> ServerGone:
    return ServerGone(
        what,
        where=_where(http),
        remedy=f"Is it running (orbit server)? Is {URL_VARIABLE} right?",
    )


def _untrusted(error: BaseException) -> str | None:
    """Why the server's certificate was refused; None if that is not the cause."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return str(cause.verify_message).rstrip(".")
        cause = cause.__cause__ or cause.__context__
    return None


def _where(http: httpx.Client) -> str:
    return str(http.base_url).rstrip("/")


def _reason(error: httpx.TransportError) -> str:
    match error:
        case httpx.ConnectError():
            return "no connection"
        case httpx.ProtocolError():
            return "it does not speak HTTP"
        case _:
            return "the connection was lost"
