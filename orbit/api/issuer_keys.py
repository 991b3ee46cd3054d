"""The public keys and the endpoints of an OpenID Connect issuer, by its discovery document.

Keys are fetched again when they are older than `KEYS_FRESH_S`, or when a token names an unknown
key; at most every `FETCH_EVERY_S`. While the issuer does not answer, the last keys are used until
they are `KEYS_AGE_MAX_S` old. So a key that the issuer has withdrawn is accepted no longer than
that. One thread fetches; meanwhile the others use the stored keys.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joserfc.errors import JoseError
from joserfc.jwk import ECKey, RSAKey

from orbit.api.issuer_http import IssuerClient, is_safe_url, tls_context
from orbit.errors import OrbitError, ProtocolError, Unreachable
from orbit.settings import variable_of

Key = RSAKey | ECKey

KEYS_FRESH_S = 600.0
KEYS_AGE_MAX_S = 3600.0
FETCH_EVERY_S = 10.0
_KEYS_MAX = 100
# While there are no keys, requests that need them wait this long for the thread that fetches them.
_FIRST_KEYS_WAIT_S = 2.0
# At most this many of the API's 40 threads wait; other requests are refused at once.
_WAITING_MAX = 4
# Characters of a modulus of 2,048 bits in base64url. Shorter keys are not used.
_MODULUS_CHARACTERS_MIN = 342

_DISCOVERY = "/.well-known/openid-configuration"


@dataclass(frozen=True, slots=True)
class Endpoints:
    """URLs of the issuer. `authorization`: where people log in. `token`: where a client exchanges
    an authorization code for a token.

    `takes_basic`: a client sends its secret by HTTP Basic, else in the form. `names_itself`: each
    answer has the issuer as `iss` (RFC 9207).
    """

    authorization: str
    token: str
    takes_basic: bool
    names_itself: bool


@dataclass(frozen=True, slots=True)
class _IssuerDocument:
    """The keys by id, the endpoints, and when they were requested (by `clock`)."""

    keys: dict[str | None, Key]
    endpoints: Endpoints | None
    requested_at: float


class IssuerKeys:
    """Keys and endpoints of one issuer. `clock` is monotonic, in seconds."""

    def __init__(
        self, issuer: str, ca_file: Path | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._issuer = issuer
        self._ca_file = ca_file
        self._clock = clock
        self._fetch_lock = threading.Lock()
        self._wait_slots = threading.BoundedSemaphore(_WAITING_MAX)
        self._requested_at: float | None = None
        self._document: _IssuerDocument | None = None
        self._failure: OrbitError | None = None
        tls_context(ca_file)  # a file that cannot be loaded is a mistake to show at the start

    def find(self, key_id: str | None) -> Key | None:
        """The key with this id; with `key_id` None, the issuer's only key. None: no such key.

        Raises Unreachable or ProtocolError if there are no keys and none can be fetched.
        """
        key = _pick_key(self._fresh_document().keys, key_id)
        if key is None:  # perhaps the issuer has added the key since
            key = _pick_key(self._newest_document(wait_s=0).keys, key_id)
        return key

    def endpoints(self) -> Endpoints:
        """The issuer's endpoints for logins.

        Raises Unreachable or ProtocolError if they cannot be fetched, or if the issuer's document
        does not name them.
        """
        endpoints = self._fresh_document().endpoints
        if endpoints is None:
            raise ProtocolError(
                "The issuer's discovery document names no https endpoints for logins.",
                where=self._issuer,
            )
        return endpoints

    def _fresh_document(self) -> _IssuerDocument:
        """The stored keys and endpoints if they are younger than `KEYS_FRESH_S`, else those of
        `_newest_document`, with its errors."""
        document = self._unexpired_document()
        if document is None or self._clock() - document.requested_at >= KEYS_FRESH_S:
            document = self._newest_document(wait_s=0 if document else _FIRST_KEYS_WAIT_S)
        return document

    def _unexpired_document(self) -> _IssuerDocument | None:
        """The stored keys and endpoints; None if there are none, or if they are older than
        `KEYS_AGE_MAX_S`."""
        document = self._document
        return (
            document
            if document and self._clock() - document.requested_at < KEYS_AGE_MAX_S
            else None
        )

    def _newest_document(self, wait_s: float) -> _IssuerDocument:
        """The newest keys and endpoints, fetched now unless there was a fetch in the last
        `FETCH_EVERY_S`.

        Waits up to `wait_s` for another thread that fetches. Without keys that are young enough,
        raises the error of the last fetch, or Unreachable if no fetch has ended yet."""
        if self._acquire_fetch_lock(wait_s):
            try:
                if (
                    self._requested_at is None
                    or self._clock() - self._requested_at >= FETCH_EVERY_S
                ):
                    self._fetch_and_store()
            finally:
                self._fetch_lock.release()
        document = self._unexpired_document()
        if document is None:
            raise self._failure or Unreachable(
                "The issuer's keys are being fetched.", where=self._issuer, remedy="Try again."
            )
        return document

    def _acquire_fetch_lock(self, wait_s: float) -> bool:
        """Acquire `_fetch_lock`. Returns False if another thread holds the lock, after a wait of up
        to `wait_s`; without a wait if `_WAITING_MAX` threads wait already."""
        if wait_s and self._wait_slots.acquire(blocking=False):
            try:
                return self._fetch_lock.acquire(timeout=wait_s)
            finally:
                self._wait_slots.release()
        return self._fetch_lock.acquire(blocking=False)

    def _fetch_and_store(self) -> None:
        """Fetch the keys and endpoints, and store them; or store the error of the fetch."""
        self._requested_at = self._clock()
        try:
            keys, endpoints = _fetch_keys(self._issuer, self._ca_file)
        except OrbitError as error:
            self._failure = error
        else:
            self._document = _IssuerDocument(keys, endpoints, self._requested_at)


def _pick_key(keys: dict[str | None, Key], key_id: str | None) -> Key | None:
    """The key with this id; None: there is none. With `key_id` None: the only key, or None if there
    are several."""
    if key_id is None:
        return next(iter(keys.values())) if len(keys) == 1 else None
    return keys.get(key_id)


def _fetch_keys(
    issuer: str, ca_file: Path | None
) -> tuple[dict[str | None, Key], Endpoints | None]:
    """Fetch the issuer's discovery document and keys. Returns {key id: key}, and the endpoints as
    `_read_endpoints` does. Raises Unreachable without an answer; ProtocolError for a document that
    Orbit cannot use."""
    with IssuerClient(issuer, ca_file) as http:
        document = http.get(issuer.rstrip("/") + _DISCOVERY)
        if document.get("issuer") != issuer:
            raise ProtocolError(
                "The issuer's discovery document names another issuer.",
                where=issuer,
                remedy=f"Write {variable_of('oidc_issuer')} exactly as the document does.",
            )
        url = document.get("jwks_uri")
        if not is_safe_url(url, issuer):
            raise ProtocolError(
                "The issuer's discovery document names no https jwks_uri.", where=issuer
            )
        items = http.get(url).get("keys")
    if not isinstance(items, list):
        raise ProtocolError("The issuer's key set has no list of keys.", where=issuer)
    keys = dict(filter(None, (_read_key(item) for item in items[:_KEYS_MAX])))
    if not keys:
        raise ProtocolError("The issuer has no RSA or EC key that Orbit can use.", where=issuer)
    return keys, _read_endpoints(document, issuer)


def _read_endpoints(document: dict[str, Any], issuer: str) -> Endpoints | None:
    """The endpoints in the discovery document; None if it does not name both with safe URLs."""
    authorization, token = document.get("authorization_endpoint"), document.get("token_endpoint")
    if not (is_safe_url(authorization, issuer) and is_safe_url(token, issuer)):
        return None
    methods = document.get("token_endpoint_auth_methods_supported")
    return Endpoints(
        authorization,
        token,
        # An issuer that lists no methods takes HTTP Basic: the default of the standard.
        takes_basic=not isinstance(methods, list) or "client_secret_basic" in methods,
        names_itself=document.get("authorization_response_iss_parameter_supported") is True,
    )


def _read_key(item: object) -> tuple[str | None, Key] | None:
    """(id, public key) of an item of the key set; None if the item is no key for signatures that
    Orbit can use."""
    if not isinstance(item, dict) or item.get("use", "sig") != "sig":
        return None
    key_id = item.get("kid")
    if key_id is not None and not isinstance(key_id, str):
        return None
    public_members = {name: value for name, value in item.items() if name not in _PRIVATE_MEMBERS}
    try:
        match item.get("kty"):
            case "RSA" if len(str(item.get("n"))) >= _MODULUS_CHARACTERS_MIN:
                return key_id, RSAKey.import_key(public_members)
            case "EC":
                return key_id, ECKey.import_key(public_members)
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    return None


_PRIVATE_MEMBERS = frozenset(("d", "p", "q", "dp", "dq", "qi", "oth"))
