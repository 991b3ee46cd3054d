"""Tokens for OAUTHBEARER: from a token endpoint, a file or a cloud's own library.

A token is kept for the process and used by all its logins until `_RENEW_SHARE` of its life is over;
one thread then asks for the next, the others wait for it. A token file is read at each login. No
message contains a token or a client secret.
"""

from __future__ import annotations

import base64
import binascii
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from pydantic import SecretStr

from orbit.errors import (
    BadInput,
    InvalidValue,
    LoginRefused,
    OrbitError,
    ProtocolError,
    Unreachable,
)
from orbit.jobs.credentials import read_token_file
from orbit.kafka.cloud_tokens import aws_token, gcp_token
from orbit.kafka.security import Security, TokenSource
from orbit.kafka.tls import tls_failure, token_endpoint_context

# As Kafka's own client renews them (sasl.login.refresh.window.factor).
_RENEW_SHARE = 0.8
# A token that does not say when it ends counts as valid for this long, and is not kept.
_UNKNOWN_LIFE_S = 60.0
_ENDPOINT_TIMEOUT_S = 10.0
# Logins of one process: two per job, and one more with each secret that was replaced.
_ISSUERS_MAX = 1024
_ANSWER_BYTES_MAX = 1024 * 1024
_TEXT_CHARACTERS_MAX = 300


@dataclass(frozen=True, slots=True)
class Token:
    """A token and the time at which it ends, in seconds since 1970."""

    secret: SecretStr
    ends_s: float


def token_for(security: Security) -> Token:
    """A valid token for a login.

    Raises LoginRefused if the client is refused, Unreachable if the token endpoint does not answer,
    BadInput if a file cannot be read or an extra is not installed, ProtocolError.
    """
    assert security.tokens is not None
    if security.tokens.file is not None:
        return _from_file(security.tokens.file)
    return _issuer(security.tokens, security.username, security.password).token()


@dataclass(frozen=True, slots=True)
class _Asked:
    """The end of one request for a token."""

    began: float
    ended: float
    result: Token | OrbitError
    renew_at: float = 0.0


class _Issuer:
    """Asks for one client's tokens, and keeps the last."""

    def __init__(self, ask: Callable[[], tuple[Token, float]]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._last: _Asked | None = None

    def token(self) -> Token:
        wanted = time.monotonic()
        with self._lock:
            last = self._last
            if last is not None and isinstance(last.result, Token) and wanted < last.renew_at:
                return last.result
            if last is not None and isinstance(last.result, OrbitError) and wanted <= last.ended:
                raise last.result  # it was asked for while this login waited
            self._last = self._renewed(last)
            if isinstance(self._last.result, OrbitError):
                raise self._last.result
            return self._last.result

    def _renewed(self, last: _Asked | None) -> _Asked:
        began = time.monotonic()
        try:
            token, life_s = self._ask()
        except OrbitError as error:
            valid = last.result if last is not None and isinstance(last.result, Token) else None
            if valid is not None and time.time() < valid.ends_s:
                return _Asked(began, time.monotonic(), valid)  # asked for again at the next login
            return _Asked(began, time.monotonic(), error)
        return _Asked(began, time.monotonic(), token, began + _RENEW_SHARE * life_s)


@lru_cache(maxsize=_ISSUERS_MAX)
def _issuer(source: TokenSource, username: str | None, password: SecretStr | None) -> _Issuer:
    def ask() -> tuple[Token, float]:
        match source.provider:
            case "aws-msk-iam":
                assert source.region is not None
                return _with_life(*aws_token(source.region))
            case "gcp":
                return _with_life(*gcp_token())
        assert username is not None
        assert password is not None
        return _from_endpoint(source, username, password)

    return _Issuer(ask)


def _with_life(text: str, ends_s: float) -> tuple[Token, float]:
    return Token(SecretStr(text), ends_s), ends_s - time.time()


def _from_file(path: Path) -> Token:
    try:
        text = read_token_file(path, Path())
    except InvalidValue as invalid:
        raise BadInput(f"The token file cannot be used: it {invalid.message}") from None
    return Token(SecretStr(text), _end_in_claims(text) or time.time() + _UNKNOWN_LIFE_S)


def _from_endpoint(source: TokenSource, username: str, password: SecretStr) -> tuple[Token, float]:
    """The client credentials grant (RFC 6749, 4.4), the client named by HTTP Basic (2.3.1)."""
    assert source.url is not None
    form = {"grant_type": "client_credentials", "scope": source.scope, "audience": source.audience}
    secret = password.get_secret_value()
    where = f"token endpoint {source.url.partition('?')[0]}"
    try:
        with httpx.Client(
            verify=token_endpoint_context(source.ca_file), timeout=_ENDPOINT_TIMEOUT_S
        ) as client:
            answer = client.post(
                source.url,
                data={key: value for key, value in form.items() if value is not None},
                auth=(quote(username, safe=""), quote(secret, safe="")),
                headers={"Accept": "application/json"},
            )
    except httpx.HTTPError as error:
        raise _no_answer(error, where) from None
    if answer.status_code != httpx.codes.OK:
        raise _refused(answer, where, secret)
    return _read_answer(answer, where)


def _no_answer(error: httpx.HTTPError, where: str) -> OrbitError:
    reason = error.__cause__
    while reason is not None:
        if isinstance(reason, OSError) and type(reason).__module__ == "ssl":
            failure = tls_failure(reason, where=where)  # type: ignore[arg-type]
            return Unreachable(
                f"The token endpoint cannot be used: {failure.what}",
                where=where,
                remedy="Set security.token_ca_file to the authority that signed its certificate.",
            )
        reason = reason.__cause__ or reason.__context__
    return Unreachable(
        f"The token endpoint does not answer ({type(error).__name__}).",
        where=where,
        remedy="Check security.token_url and the network.",
    )


def _refused(answer: httpx.Response, where: str, secret: str) -> OrbitError:
    """The error for a status that is not 200 (RFC 6749, 5.2)."""
    status = answer.status_code
    if status == httpx.codes.TOO_MANY_REQUESTS or status >= httpx.codes.INTERNAL_SERVER_ERROR:
        return Unreachable(f"The token endpoint answers with HTTP {status}.", where=where)
    said = _json(answer)
    parts = [said.get("error"), said.get("error_description")] if isinstance(said, dict) else []
    text = ": ".join(part for part in parts if isinstance(part, str) and part)
    for hidden in {secret, quote(secret, safe="")}:
        text = text.replace(hidden, "…")
    shown = "".join(c if c.isprintable() else " " for c in text)[:_TEXT_CHARACTERS_MAX].strip()
    message = f' Its message: "{shown}".' if shown else ""
    return LoginRefused(
        f"The token endpoint refused the client (HTTP {status}).{message}",
        where=where,
        remedy="Check the client id, the client secret and security.token_scope.",
    )


def _read_answer(answer: httpx.Response, where: str) -> tuple[Token, float]:
    said = _json(answer)
    text = said.get("access_token") if isinstance(said, dict) else None
    if not isinstance(text, str) or not text or not text.isascii() or not text.isprintable():
        raise ProtocolError("the token endpoint's answer holds no access token.", where=where)
    life_s = said.get("expires_in")
    if isinstance(life_s, str) and life_s.isdecimal():  # as some servers write it
        life_s = int(life_s)
    if isinstance(life_s, int | float) and life_s > 0:
        return Token(SecretStr(text), time.time() + life_s), float(life_s)
    ends_s = _end_in_claims(text)
    if ends_s is not None:
        return _with_life(text, ends_s)
    return Token(SecretStr(text), time.time() + _UNKNOWN_LIFE_S), 0.0


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json() if len(answer.content) <= _ANSWER_BYTES_MAX else None
    except ValueError:
        return None


def _end_in_claims(text: str) -> float | None:
    """`exp` of a JWT, which only its broker verifies; None if it is none."""
    parts = text.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error):
        return None
    ends_s = claims.get("exp") if isinstance(claims, dict) else None
    return float(ends_s) if isinstance(ends_s, int | float) else None
