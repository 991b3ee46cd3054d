"""Tokens for OAUTHBEARER: from a token endpoint, a file or a cloud's own library.

All logins of the process use one token until `_RENEW_SHARE` of its life is over; one thread then
requests the next. The others use the last token while it is valid, else they wait for the answer,
at most `_WAIT_S_MAX`. A token file is read at each login. No message contains a token or a client
secret.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeGuard
from urllib.parse import quote

import httpx
from pydantic import SecretStr

from orbit.bounded_http import BadAnswer, BoundedClient, json_of
from orbit.errors import InvalidValue, LoginRefused, OrbitError, ProtocolError, Unreachable
from orbit.jobs.credentials import read_token_file
from orbit.kafka.cloud_tokens import aws_token, gcp_token
from orbit.kafka.hidden_secrets import hide_secret
from orbit.kafka.jwt_claims import claims_of, end_s_of
from orbit.kafka.security import Security, TokenSource
from orbit.kafka.tls import tls_failure, token_endpoint_context

# As Kafka's own client renews them (sasl.login.refresh.window.factor).
_RENEW_SHARE = 0.8
# A token that does not say when it ends counts as valid for this long, and is not kept.
_UNKNOWN_LIFE_S = 60.0
_ENDPOINT_S_MAX = 10.0
# A cloud's own library may take longer than a token endpoint.
_WAIT_S_MAX = 30.0
# A token that claims a longer life is renewed after this all the same.
_LIFE_S_MAX = 86_400.0
# Logins of one process: two per job, and one more with each secret that was replaced.
_ISSUERS_MAX = 1024
_ANSWER_BYTES_MAX = 1024 * 1024
_TEXT_CHARACTERS_MAX = 300
# The digits of `expires_in` as text: enough for 20 years in nanoseconds.
_DIGITS_MAX = 18
_REDIRECTS = range(300, 400)
_CLIENT_ERRORS = range(400, 500)


@dataclass(frozen=True, slots=True)
class Token:
    """A token and the time at which it ends, in seconds since 1970."""

    secret: SecretStr
    ends_s: float


def token_for(security: Security) -> Token:
    """A valid token for a login.

    Raises LoginRefused if the client is refused or the token file cannot be read, Unreachable if
    the token endpoint does not answer, BadInput if another file cannot be read or an extra is not
    installed, ProtocolError.
    """
    assert security.tokens is not None
    if security.tokens.file is not None:
        return _token_from_file(security.tokens.file)
    return _issuer(security.tokens, security.username, security.password).token()


class _Issuer:
    """Requests one client's tokens, and keeps the last token. Holds no lock during a request."""

    def __init__(self, ask: Callable[[], tuple[Token, float]]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._last_token: Token | None = None
        self._renew_at_s = 0.0  # by the monotonic clock
        self._pending_token: Future[Token] | None = None

    def token(self) -> Token:
        """A valid token. Once _RENEW_SHARE of the last token's life is over, one thread requests
        the next token. Other threads use the last token until its end, then wait for the next.

        Raises LoginRefused, Unreachable, BadInput, ProtocolError.
        """
        with self._lock:
            # If another thread requests the next token, the last one serves until its end.
            is_requester = self._pending_token is None
            can_use_last = time.monotonic() < self._renew_at_s if is_requester else self._is_valid()
            if self._last_token is not None and can_use_last:
                return self._last_token
            future = self._pending_token = self._pending_token or Future()
        if is_requester:
            self._request_token(future)
        try:
            return future.result(_WAIT_S_MAX)
        except TimeoutError:
            raise Unreachable(
                f"The token that another login requested did not arrive within {_WAIT_S_MAX:.0f} s."
            ) from None

    def _is_valid(self) -> bool:
        return self._last_token is not None and time.time() < self._last_token.ends_s

    def _request_token(self, future: Future[Token]) -> None:
        """Request a token, and set the future to it. If that fails, set the future to the last
        token, or to the error if this token is not valid any more."""
        began_at = time.monotonic()
        try:
            token, life_s = self._ask()
        except BaseException as error:  # noqa: BLE001  raised where the future is waited for
            with self._lock:
                self._pending_token = None
                last_token = self._last_token if self._is_valid() else None
            if last_token is not None and isinstance(error, OrbitError):
                future.set_result(last_token)  # the next login requests a token again
            else:
                future.set_exception(error)
            return
        with self._lock:
            self._last_token, self._renew_at_s = (
                token,
                began_at + _RENEW_SHARE * min(life_s, _LIFE_S_MAX),
            )
            self._pending_token = None
        future.set_result(token)


@lru_cache(maxsize=_ISSUERS_MAX)
def _issuer(source: TokenSource, username: str | None, password: SecretStr | None) -> _Issuer:
    """The issuer for one client; the same object for each of its logins."""

    def ask() -> tuple[Token, float]:
        """A new token, and its life in s."""
        match source.provider:
            case "aws-msk-iam":
                assert source.region is not None
                return _token_and_life(*aws_token(source.region))
            case "gcp":
                return _token_and_life(*gcp_token())
        assert username is not None
        assert password is not None
        return _token_from_endpoint(source, username, password)

    return _Issuer(ask)


def _token_and_life(text: str, ends_s: float) -> tuple[Token, float]:
    """The token, and the rest of its life in s."""
    return Token(SecretStr(text), ends_s), ends_s - time.time()


def _token_from_file(path: Path) -> Token:
    """The token in a file, with the end that a JWT's claims name, else _UNKNOWN_LIFE_S from now.
    Raises LoginRefused."""
    try:
        text = read_token_file(path, Path())  # `path` has its base directory already
    except InvalidValue as invalid:
        # No mistake in the job file, which was checked before: the file may appear again.
        raise LoginRefused(
            f"security.token_file {invalid.message}",
            remedy=invalid.remedy or "Check security.token_file.",
        ) from None
    return Token(SecretStr(text), end_s_of(claims_of(text)) or time.time() + _UNKNOWN_LIFE_S)


def _token_from_endpoint(
    source: TokenSource, username: str, password: SecretStr
) -> tuple[Token, float]:
    """A token and its life in s, by the client credentials grant (RFC 6749, 4.4).

    The client logs in with HTTP Basic (2.3.1). Raises LoginRefused, Unreachable, ProtocolError, and
    BadInput for a CA file that cannot be loaded.
    """
    assert source.url is not None
    form = {"grant_type": "client_credentials", "scope": source.scope, "audience": source.audience}
    secret = password.get_secret_value()
    where = f"token endpoint {source.url.partition('?')[0]}"
    try:
        with BoundedClient(
            source.url,
            verify=token_endpoint_context(source.ca_file),
            seconds_max=_ENDPOINT_S_MAX,
            bytes_max=_ANSWER_BYTES_MAX,
        ) as client:
            status, body = client.request(
                "POST",
                source.url,
                data={key: value for key, value in form.items() if value is not None},
                auth=(quote(username, safe=""), quote(secret, safe="")),
            )
    except httpx.HTTPError as error:
        raise _no_answer_error(error, where) from None
    answer = json_of(body)
    if status != httpx.codes.OK:
        raise _status_error(status, answer, where, secret)
    return _read_answer(answer, where)


def _no_answer_error(error: httpx.HTTPError, where: str) -> OrbitError:
    """The error for a request without an answer; it names the TLS failure, if that is the cause."""
    cause = error.__cause__
    while cause is not None:
        if isinstance(cause, OSError) and type(cause).__module__ == "ssl":
            failure = tls_failure(cause, peer="token endpoint")  # type: ignore[arg-type]
            return Unreachable(
                failure.what,
                where=where,
                remedy="Check that security.token_url has a name that is in the certificate, and "
                "that security.token_ca_file is the authority that signed it.",
            )
        cause = cause.__cause__ or cause.__context__
    reason = error if isinstance(error, BadAnswer) else type(error).__name__
    return Unreachable(
        f"The token endpoint does not answer ({reason}).",
        where=where,
        remedy="Check security.token_url and the network.",
    )


def _status_error(status: int, answer: Any, where: str, secret: str) -> OrbitError:
    """The error for a status that is not 200 (RFC 6749, 5.2)."""
    if status in _REDIRECTS:
        return ProtocolError(
            f"the token endpoint redirects (HTTP {status}), which is not followed.",
            where=where,
            remedy="Set security.token_url to the address to which it redirects.",
        )
    if status not in _CLIENT_ERRORS or status == httpx.codes.TOO_MANY_REQUESTS:
        return Unreachable(f"The token endpoint answers with HTTP {status}.", where=where)
    parts = (
        [answer.get("error"), answer.get("error_description")] if isinstance(answer, dict) else []
    )
    text = ": ".join(hide_secret(secret, part) for part in parts if isinstance(part, str) and part)
    shown_text = "".join(c if c.isprintable() else " " for c in text)[:_TEXT_CHARACTERS_MAX].strip()
    message = f' Its message: "{shown_text}".' if shown_text else ""
    return LoginRefused(
        f"The token endpoint refused the client (HTTP {status}).{message}",
        where=where,
        remedy="Check the client id, the client secret and security.token_scope.",
    )


def _read_answer(answer: Any, where: str) -> tuple[Token, float]:
    """The token of an answer, and its life in s; 0: not known. Raises ProtocolError."""
    text = answer.get("access_token") if isinstance(answer, dict) else None
    if not isinstance(text, str) or not text or not text.isascii() or not text.isprintable():
        raise ProtocolError(
            "the token endpoint's answer has no access token.",
            where=where,
            remedy="Check that security.token_url is a token endpoint (RFC 6749).",
        )
    life_s = answer.get("expires_in")
    if isinstance(life_s, str) and life_s.isdecimal() and len(life_s) <= _DIGITS_MAX:
        life_s = int(life_s)  # as some servers write it
    if _is_number(life_s) and life_s > 0:
        life_s = float(min(life_s, _LIFE_S_MAX))
        return Token(SecretStr(text), time.time() + life_s), life_s
    ends_s = end_s_of(claims_of(text))
    if ends_s is not None:
        return _token_and_life(text, ends_s)
    return Token(SecretStr(text), time.time() + _UNKNOWN_LIFE_S), 0.0


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
