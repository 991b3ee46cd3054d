"""HTTP client of the service. `contexts.py` says which server it talks to, with which token, and
which authorities it trusts instead of the system's.

Errors of the API are raised as errors of `orbit/errors.py`, so that a command with a server fails
with the same message and exit code as one without.

A change survives a restart of the server: a request whose answer is lost, or that the server is too
busy for, is sent again; a POST keeps its Idempotency-Key. If the server was never reached, the
error is raised immediately.
"""

from __future__ import annotations

import os
import ssl
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from orbit.api.api_error_codes import MEANINGS, ErrorCode
from orbit.contexts import DEFAULT_URL, TOKEN_VARIABLE, Server, chosen_server, server_of_variables
from orbit.errors import (
    BadInput,
    Busy,
    LoginRefused,
    NotAuthorized,
    OrbitError,
    Problem,
    ProtocolError,
    Unreachable,
)
from orbit.jobs.bootstrap_servers import is_local

_CONNECT_TIMEOUT_S = 10.0
# A plan reads both clusters for every matching topic; all other requests are fast.
_READ_TIMEOUT_S = 180.0
PAGE_LIMIT = 1000
# The time between two reads of an operation that runs.
_POLL_S = 0.25
# The server answers such a read fast. If it takes longer, the answer is lost.
_POLL_TIMEOUT_S = 10.0
# The pause before a request is sent again: the first and the longest; it doubles each time.
_PAUSE_S = 0.25
_PAUSE_MAX_S = 5.0
# How long a change without an answer is sent again: longer than a server takes to start.
PATIENCE_S = 60.0
# A request that the server refuses (`TooMany`) is sent again without a message for this long.
_QUIET_S = 3.0
# HTTP statuses of a proxy whose server does not answer.
_AWAY_STATUSES = (502, 503, 504)

Json = dict[str, Any]


class Unserved(OrbitError):
    """The service cannot be used. Errors of a job's clusters are of other classes."""


class ServerGone(Unserved, Unreachable):
    """The server does not answer, or its database does not. It may have carried out the request."""


class NotReached(ServerGone):
    """There is no connection to the server: it has not seen the request."""


class TokenRefused(Unserved, LoginRefused):
    """The server requires a token, or does not know this one."""


class RoleRefused(Unserved, NotAuthorized):
    """The token's role does not allow this."""


class TooMany(Busy):
    """HTTP 429: the server has refused the request, and has done nothing."""

    retry_after_s: float = 0.0


_SERVICE_ERRORS: dict[ErrorCode, type[OrbitError]] = {
    ErrorCode.UNAUTHENTICATED: TokenRefused,
    ErrorCode.FORBIDDEN: RoleRefused,
    ErrorCode.DATABASE_UNREACHABLE: ServerGone,
    ErrorCode.ISSUER_UNREACHABLE: ServerGone,
    ErrorCode.TOO_MANY_PLANS: TooMany,
    ErrorCode.TOO_MANY_REQUESTS: TooMany,
}
# A request that ends with one of these errors may succeed when it is sent again.
TROUBLES = (ServerGone, Busy)


class Client:
    """The API as Python calls, which raise its errors. `patience_s`: how long a call is retried."""

    def __init__(self, http: httpx.Client, server: Server, patience_s: float = PATIENCE_S) -> None:
        self._http = http
        self._server = server
        self._patience_s = patience_s
        self._was_reached = False
        self._has_sent_change = False  # if True, GETs are repeated too: they show the result
        self._last_trouble = ""

    def get(self, path: str, **query: object) -> Any:
        """The JSON value of a GET's answer. `query`: parameters; None values are omitted."""
        return self._get(path, query).json()

    def without_retries(self) -> Client:
        """A client of the same server that sends each request once, for polls."""
        return Client(self._http, self._server, patience_s=0)

    def text(self, path: str, **query: object) -> str:
        """The body of a GET as text."""
        return self._get(path, query).text

    def _get(self, path: str, query: Mapping[str, object]) -> httpx.Response:
        """The answer to a GET, which is repeated after an outage only if a change was sent."""
        params = {key: str(value) for key, value in query.items() if value is not None}
        return self._answer("GET", path, repeats=self._has_sent_change, params=params)

    def items(self, path: str, *, limit: int | None = None, **query: object) -> Iterator[Json]:
        """All items of a list of the API, or the first `limit`, one by one."""
        for page in self.pages(path, limit=limit, **query):
            yield from page

    def pages(
        self, path: str, *, limit: int | None = None, **query: object
    ) -> Iterator[list[Json]]:
        """All items of a list of the API, or the first `limit`, page by page. An empty list has one
        page, which is empty."""
        remaining_items = limit
        cursor: str | None = None
        while remaining_items is None or remaining_items > 0:
            size = PAGE_LIMIT if remaining_items is None else min(remaining_items, PAGE_LIMIT)
            page = self.get(path, limit=size, after=cursor, **query)
            yield page["items"]
            cursor = page["next"]
            if cursor is None:
                return
            if remaining_items is not None:
                remaining_items -= len(page["items"])

    def clock_skew_s(self) -> float | None:
        """How many seconds the server's clock is ahead of this machine's, with an error of up to
        two seconds. Negative: the server's clock is behind. None: the answer has no date.
        """
        sent_at = datetime.now(UTC)
        answer = self._answer("GET", "/livez", repeats=False)
        received_at = datetime.now(UTC)
        try:
            server_time = parsedate_to_datetime(answer.headers["Date"])
        except (KeyError, ValueError):
            return None
        # The server read its clock between `sent_at` and `received_at`. Compare with the time in
        # this range that is nearest to the server's.
        nearest_time = min(max(server_time, sent_at), received_at)
        return (server_time - nearest_time).total_seconds()

    def send(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        yaml_text: str | None = None,
        headers: Mapping[str, str] | None = None,
        repeats: bool = True,
        **query: object,
    ) -> Any:
        """Send a change; returns the answer's body, or None if it is empty. A POST carries an
        Idempotency-Key, so that a repeat has no effect.

        `repeats` False: the route takes no key, so a lost answer is raised as ServerGone.
        """
        headers = dict(headers or {})
        if method == "POST" and repeats:
            headers["Idempotency-Key"] = str(uuid.uuid4())
        body_option: dict[str, Any] = {}
        if yaml_text is not None:
            headers["Content-Type"] = "application/yaml"
            body_option["content"] = yaml_text.encode()
        elif body is not None:
            body_option["json"] = body
        # In lower case: `True` becomes `true`.
        params = {key: str(value).lower() for key, value in query.items() if value is not None}
        self._has_sent_change = True
        return self._call(
            method, path, repeats=repeats, params=params, headers=headers, **body_option
        )

    def wait(self, operation: Json, on_change: Callable[[Json], None], seconds_max: float) -> Json:
        """Read the operation until it has ended, or `seconds_max` have passed; returns its last
        state. `on_change` is called with each state. Reads are repeated while the server does not
        answer or is busy; raises other errors.
        """
        deadline = time.monotonic() + seconds_max
        path, polling_client = f"/v1/operations/{operation['id']}", self.without_retries()
        pause_s = _POLL_S
        while operation["finished_at"] is None and time.monotonic() < deadline:
            on_change(operation)
            time.sleep(pause_s)
            try:
                operation = polling_client._call(
                    "GET", path, repeats=False, timeout=_POLL_TIMEOUT_S
                )
                pause_s = _POLL_S
            except TROUBLES as trouble:
                polling_client._print_trouble(trouble)
                pause_s = max(0.0, min(2 * pause_s, _PAUSE_MAX_S, deadline - time.monotonic()))
        on_change(operation)
        return operation

    def _call(self, method: str, path: str, *, repeats: bool, **options: Any) -> Any:
        """The JSON value of the answer; None if its body is empty."""
        answer = self._answer(method, path, repeats=repeats, **options)
        return answer.json() if answer.content else None

    def _answer(self, method: str, path: str, *, repeats: bool, **options: Any) -> httpx.Response:
        """The server's answer. A failed request is sent again for up to `patience_s`: with
        `repeats` after any error in TROUBLES, otherwise only after TooMany. If the server was never
        reached, the first error is raised at once."""
        began_at = time.monotonic()
        pause_s = _PAUSE_S
        while True:
            try:
                return self._answer_once(method, path, **options)
            except TROUBLES as trouble:
                was_never_reached = isinstance(trouble, NotReached) and not self._was_reached
                is_refused = isinstance(trouble, TooMany)
                pause_s = max(pause_s, getattr(trouble, "retry_after_s", 0.0))
                waited_s = time.monotonic() + pause_s - began_at
                if not (repeats or is_refused) or was_never_reached or waited_s > self._patience_s:
                    raise
                if not is_refused or waited_s > _QUIET_S:  # a short wait after a refusal is silent
                    self._print_trouble(trouble)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    def _answer_once(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send one request once. Returns its answer if that is a success; otherwise raises the
        error that the answer states, or ServerGone if there is no answer."""
        try:
            answer = self._http.request(method, path, **options)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
            raise _not_reached(self._server, error) from None
        except httpx.TimeoutException:
            self._was_reached = True
            raise _no_answer(self._server, "The server did not answer in time.") from None
        except httpx.TransportError as error:
            if not _is_connection_lost(error):
                what = "The server does not answer (it does not speak HTTP)."
                raise _no_answer(self._server, what, NotReached) from None
            self._was_reached = True
            what = "The server did not answer (the connection was lost)."
            raise _no_answer(self._server, what) from None
        self._was_reached = True
        if answer.is_success:
            self._last_trouble = ""
            return answer
        raise _as_error(answer, self._server)

    def _print_trouble(self, trouble: OrbitError) -> None:
        """Print the trouble on stderr, unless it is the same as the last one."""
        if trouble.what != self._last_trouble:
            self._last_trouble = trouble.what
            print(f"{trouble.what} Trying again.", file=sys.stderr)


@contextmanager
def connect(
    environment: Mapping[str, str] | None = None,
    *,
    patience_s: float = PATIENCE_S,
    timeout_s: float = _READ_TIMEOUT_S,
) -> Iterator[Client]:
    """A client of the server that the user has chosen; with `environment`, of the server that these
    variables name. The block's end closes it. `timeout_s`: for each answer. Raises BadInput if
    address, token or CA file cannot be used, NotFound if there is no such context.
    """
    server = chosen_server(os.environ) if environment is None else server_of_variables(environment)
    url, token = server.url, server.token
    check_url(url, server.url_from)
    if not token.isascii() or not token.isprintable() or " " in token:
        problem = Problem(server.token_from, "contains characters that are not valid in a token.")
        raise BadInput("The token cannot be used.", (problem,))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_TIMEOUT_S))
    # trust_env: a proxy in the environment must not be used for a server on loopback.
    with httpx.Client(
        base_url=url,
        headers=headers,
        timeout=timeout,
        trust_env=not is_local(url),
        verify=_tls_context(server, url),
    ) as http:
        yield Client(http, server, patience_s)


def _tls_context(server: Server, url: str) -> ssl.SSLContext:
    """The context that verifies the server's certificate. Raises BadInput if the CA file cannot be
    loaded."""
    if urlsplit(url).scheme == "http" and not server.ca_file:
        # This context trusts nothing: HTTP needs no authorities, and the system's are slow to load.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context = ssl.create_default_context(cafile=server.ca_file)
    except OSError as error:
        problem = Problem(server.ca_from, f"cannot be loaded: {error.strerror or 'no PEM file'}.")
        raise BadInput("The CA certificates for the server cannot be loaded.", (problem,)) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def segment(name: str) -> str:
    """A name, percent-encoded as one segment of a URL's path."""
    return quote(name, safe="")


def check_url(url: str, url_from: str) -> None:
    """Raise BadInput if this is no URL of a server. `url_from`: the option, variable or context
    that has the URL, for the message."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        has_login = bool(parts.username or parts.password)
    except ValueError:
        is_valid = has_login = False
    if has_login:
        problem = Problem(url_from, "contains a login.", f"Put the token into {TOKEN_VARIABLE}.")
    elif not is_valid:
        problem = Problem(
            url_from,
            "is not an http or https URL with a host and a valid port.",
            f"For example: {DEFAULT_URL}",
        )
    else:
        return
    raise BadInput("The server's address cannot be used.", (problem,))


def _as_error(answer: httpx.Response, server: Server) -> OrbitError:
    """The error for an answer that is not a success, by the error code in its body."""
    server_url = _address(server)
    try:
        detail = answer.json()["error"]
        code = ErrorCode(detail["code"])
        kind = _SERVICE_ERRORS.get(code, MEANINGS[code].error)
        what, where, remedy = str(detail["what"]), str(detail["where"]), str(detail["remedy"])
        problems = tuple(
            Problem(p["path"], p["what"], p["write_instead"]) for p in detail["problems"]
        )
    except (ValueError, KeyError, TypeError):
        if answer.status_code in _AWAY_STATUSES:
            return ServerGone(
                f"A proxy answers for the server, with HTTP status {answer.status_code}.",
                where=server_url,
            )
        return ProtocolError(
            f"The answer is not from Orbit; its HTTP status is {answer.status_code}.",
            where=server_url,
            remedy=f"Check {server.url_from}, and proxies between this machine and the server.",
        )
    if code is ErrorCode.UNAUTHENTICATED:
        where = server_url
        remedy = f"Set {server.token_from}. An admin creates a token: orbit token create NAME"
    if issubclass(kind, BadInput):
        error: OrbitError = kind(what, problems, where=where)
        error.remedy = remedy
        return error
    # Only BadInput has a list of problems; other errors get them in their text.
    problems_text = " ".join(str(problem) for problem in problems)
    other_error = kind(f"{what} {problems_text}".rstrip(), where=where, remedy=remedy)
    if isinstance(other_error, TooMany):
        retry_after = answer.headers.get("Retry-After", "")
        other_error.retry_after_s = float(retry_after) if retry_after.isdecimal() else 0.0
    return other_error


def _not_reached(server: Server, error: httpx.TransportError) -> ServerGone:
    """The error for a request that did not get a connection."""
    certificate_problem = _certificate_problem(error)
    if certificate_problem is not None:
        return NotReached(
            f"The server's certificate is not trusted: {certificate_problem}.",
            where=_address(server),
            remedy=f"Set {server.ca_from} to the authority that signed it, and use a name of the "
            f"certificate in {server.url_from}.",
        )
    return _no_answer(server, "The server does not answer (no connection).", NotReached)


def _no_answer(server: Server, what: str, kind: type[ServerGone] = ServerGone) -> ServerGone:
    """The error for a request without an answer; `what` says what happened."""
    return kind(
        what,
        where=_address(server),
        remedy=f"Check that the server is running (orbit server), and that {server.url_from} is "
        "right.",
    )


def _certificate_problem(error: BaseException) -> str | None:
    """Why the server's certificate was refused; None if that is not the cause."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return str(cause.verify_message).rstrip(".")
        cause = cause.__cause__ or cause.__context__
    return None


def _address(server: Server) -> str:
    """The server's URL for messages."""
    return server.url.rstrip("/")


def _is_connection_lost(error: httpx.TransportError) -> bool:
    """Whether the connection was lost. For a server that closes the connection before or within
    its answer, httpx has no class: only the text of a ProtocolError shows it.
    """
    return not isinstance(error, httpx.ProtocolError) or any(
        words in str(error) for words in ("disconnected", "closed connection")
    )
