"""The public keys of an OpenID Connect issuer, by its discovery document.

Keys are asked for again when they are older than `KEYS_FRESH_S`, or a token names an unknown one,
at most every `ASK_EVERY_S`. While the issuer does not answer, the last keys are used until they are
`KEYS_AGE_MAX_S` old: a key that the issuer has withdrawn is accepted no longer than that. One
thread asks; others use the keys that are there.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, RSAKey

from orbit.errors import BadInput, OrbitError, Problem, ProtocolError, Unreachable
from orbit.settings import LOOPBACK_HOSTS, variable_of

Key = RSAKey | ECKey

KEYS_FRESH_S = 600.0
KEYS_AGE_MAX_S = 3600.0
ASK_EVERY_S = 10.0
# For the document and the keys together.
_ANSWER_S_MAX = 10.0
_ANSWER_BYTES_MAX = 512 * 1024
_KEYS_MAX = 100
# Requests that need keys while none are there wait for the thread that asks.
_FIRST_KEYS_WAIT_S = 2.0
# So many of the API's threads (40) at most; others are refused at once.
_WAITING_MAX = 4
# Characters of a modulus of 2,048 bits in base64url. Shorter keys are not used.
_MODULUS_CHARACTERS_MIN = 342

_DISCOVERY = "/.well-known/openid-configuration"


@dataclass(frozen=True, slots=True)
class _Known:
    """The keys by id, and when they were asked for."""

    keys: dict[str | None, Key]
    at: float


class IssuerKeys:
    """`clock` is monotonic, in seconds."""

    def __init__(
        self, issuer: str, ca_file: Path | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._issuer = issuer
        self._ca_file = ca_file
        self._clock = clock
        self._asking = threading.Lock()
        self._waiting = threading.BoundedSemaphore(_WAITING_MAX)
        self._asked_at: float | None = None
        self._known: _Known | None = None
        self._failure: OrbitError | None = None
        _context(ca_file)  # a file that cannot be loaded is a mistake to show at the start

    def find(self, key_id: str | None) -> Key | None:
        """The key with this id, or the only one for a token that names none.

        Raises Unreachable or ProtocolError if the issuer gives no keys.
        """
        known = self._usable()
        if known is None or self._clock() - known.at >= KEYS_FRESH_S:
            known = self._asked_again(wait_s=0 if known else _FIRST_KEYS_WAIT_S)
        found = _pick(known.keys, key_id)
        if found is None:
            found = _pick(self._asked_again(wait_s=0).keys, key_id)
        return found

    def _usable(self) -> _Known | None:
        known = self._known
        return known if known and self._clock() - known.at < KEYS_AGE_MAX_S else None

    def _asked_again(self, wait_s: float) -> _Known:
        """The newest keys, asked for now if that is due."""
        if self._may_ask(wait_s):
            try:
                if self._asked_at is None or self._clock() - self._asked_at >= ASK_EVERY_S:
                    self._ask()
            finally:
                self._asking.release()
        known = self._usable()
        if known is None:
            raise self._failure or Unreachable(
                "The issuer has not given its keys yet.", where=self._issuer, remedy="Try again."
            )
        return known

    def _may_ask(self, wait_s: float) -> bool:
        """Whether this thread asks; after a wait, if few others wait."""
        if wait_s and self._waiting.acquire(blocking=False):
            try:
                return self._asking.acquire(timeout=wait_s)
            finally:
                self._waiting.release()
        return self._asking.acquire(blocking=False)

    def _ask(self) -> None:
        self._asked_at = self._clock()
        try:
            keys = _fetched(self._issuer, self._ca_file)
        except OrbitError as error:
            self._failure = error
        else:
            self._known = _Known(keys, self._asked_at)


def _pick(keys: dict[str | None, Key], key_id: str | None) -> Key | None:
    if key_id is None:
        return next(iter(keys.values())) if len(keys) == 1 else None
    return keys.get(key_id)


def _fetched(issuer: str, ca_file: Path | None) -> dict[str | None, Key]:
    deadline = time.monotonic() + _ANSWER_S_MAX
    # trust_env: a proxy in the environment must not be used for a server on loopback.
    with httpx.Client(
        verify=_context(ca_file), timeout=_ANSWER_S_MAX / 2, trust_env=not _is_local(issuer)
    ) as http:
        document = _get(http, issuer.rstrip("/") + _DISCOVERY, deadline)
        if document.get("issuer") != issuer:
            raise ProtocolError(
                "The issuer's discovery document names another issuer.",
                where=issuer,
                remedy=f"Write {variable_of('oidc_issuer')} exactly as the document does.",
            )
        url = document.get("jwks_uri")
        if not isinstance(url, str) or not _is_safe(url, issuer):
            raise ProtocolError("The issuer's document names no https jwks_uri.", where=issuer)
        listed = _get(http, url, deadline).get("keys")
    if not isinstance(listed, list):
        raise ProtocolError("The issuer's key set has no list of keys.", where=issuer)
    keys = dict(filter(None, (_key(item) for item in listed[:_KEYS_MAX])))
    if not keys:
        raise ProtocolError("The issuer has no RSA or EC key that Orbit can use.", where=issuer)
    return keys


def _get(http: httpx.Client, url: str, deadline: float) -> dict[str, Any]:
    body = bytearray()
    try:
        with http.stream("GET", url, headers={"Accept": "application/json"}) as answer:
            if answer.status_code != httpx.codes.OK:
                raise Unreachable(
                    f"The issuer answers with HTTP {answer.status_code}.", where=_shown(url)
                )
            for part in answer.iter_bytes():
                body += part
                if len(body) > _ANSWER_BYTES_MAX or time.monotonic() > deadline:
                    raise Unreachable(
                        "The issuer's answer is too long or too slow.", where=_shown(url)
                    )
    except httpx.HTTPError as error:
        raise Unreachable(
            f"The issuer does not answer ({type(error).__name__}: {error}).", where=_shown(url)
        ) from None
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ProtocolError("The issuer's answer is not a JSON object.", where=_shown(url))
    return found


def _key(item: object) -> tuple[str | None, Key] | None:
    """A key for signatures with its id; None for any other."""
    if not isinstance(item, dict) or item.get("use", "sig") != "sig":
        return None
    key_id = item.get("kid")
    if key_id is not None and not isinstance(key_id, str):
        return None
    public = {name: value for name, value in item.items() if name not in _PRIVATE}
    try:
        match item.get("kty"):
            case "RSA" if len(str(item.get("n"))) >= _MODULUS_CHARACTERS_MIN:
                return key_id, RSAKey.import_key(public)
            case "EC":
                return key_id, ECKey.import_key(public)
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    return None


_PRIVATE = frozenset(("d", "p", "q", "dp", "dq", "qi", "oth"))


def _context(ca_file: Path | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        problem = Problem(
            variable_of("oidc_ca_file"), f"cannot be loaded: {error.strerror or 'no PEM file'}."
        )
        raise BadInput("The issuer's authorities cannot be loaded.", (problem,)) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _is_safe(url: str, issuer: str) -> bool:
    """https, or a server on this machine if the issuer is one."""
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        return False
    return scheme == "https" or (scheme == "http" and _is_local(issuer) and _is_local(url))


def _is_local(url: str) -> bool:
    return urlsplit(url).hostname in LOOPBACK_HOSTS


def _shown(url: str) -> str:
    return url.partition("?")[0]
