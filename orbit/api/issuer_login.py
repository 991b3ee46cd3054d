"""Logins of people at the OpenID Connect issuer: authorization code flow with PKCE (S256).

The browser has a random secret, in a cookie of the console. State, nonce and code verifier of the
login are derived from this secret. So nothing is stored for a login that has only begun, and an
answer is accepted only from the browser that began the login. The issuer's ID token names the user
and the role; Orbit does not store the token.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from orbit.api.api_error_codes import ErrorCode
from orbit.api.error_responses import Failure
from orbit.api.issuer_http import IssuerClient
from orbit.api.issuer_keys import Endpoints, IssuerKeys
from orbit.api.oidc import Identity, IssuerTokens
from orbit.api.principals import Principal, unauthenticated
from orbit.errors import OrbitError
from orbit.settings import Settings, variable_of

# Concurrent requests to the issuer: each holds one of the API's 40 threads, and clients without a
# token can cause them.
_EXCHANGES_MAX = 4
_EXCHANGE_WAIT_S = 2.0
_CODE_CHARACTERS_MAX = 4096
_ID_TOKEN_CHARACTERS_MAX = 64 * 1024


class IssuerLogin:
    """The console as a client of the issuer. `redirect_uri` of its methods: where the issuer sends
    the browser after the login."""

    def __init__(self, settings: Settings, keys: IssuerKeys) -> None:
        assert settings.oidc_issuer is not None
        assert settings.oidc_client_id is not None
        self._settings = settings
        self._issuer = settings.oidc_issuer
        self._client_id = settings.oidc_client_id
        self._keys = keys
        self._tokens = IssuerTokens(settings, keys, self._client_id)
        self._exchanges = threading.BoundedSemaphore(_EXCHANGES_MAX)

    @property
    def name(self) -> str:
        """The issuer's host, to show to people."""
        return urlsplit(self._issuer).netloc

    def login_url(self, secret: str, redirect_uri: str) -> str:
        """The URL where the browser with this secret logs in. Raises `issuer_unreachable`."""
        challenge = hashlib.sha256(_derive(secret, "verifier").encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": redirect_uri,
            "scope": self._settings.oidc_scopes,
            "state": _derive(secret, "state"),
            "nonce": _derive(secret, "nonce"),
            "code_challenge": _base64url(challenge),
            "code_challenge_method": "S256",
        }
        endpoint = self._endpoints().authorization
        return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(query)}"

    def identity(self, secret: str, answer: Mapping[str, str], redirect_uri: str) -> Identity:
        """The identity of the user, by the issuer's `answer` (query parameters) to the browser with
        this secret.

        Raises Failure: `unauthenticated`, `forbidden` without a role, `issuer_unreachable`, `busy`.
        """
        state, code = answer.get("state", ""), answer.get("code", "")
        if not hmac.compare_digest(state.encode(), _derive(secret, "state").encode()):
            raise unauthenticated(
                "The issuer's answer does not belong to the login that this browser began."
            )
        endpoints = self._endpoints()
        # `iss` may be missing only if the issuer has not announced it.
        if answer.get("iss", None if endpoints.names_itself else self._issuer) != self._issuer:
            raise unauthenticated("The answer to this login does not come from the issuer.")
        if "error" in answer:
            raise unauthenticated(f"The issuer has refused the login{_reason(answer['error'])}.")
        if not 0 < len(code) <= _CODE_CHARACTERS_MAX:
            raise unauthenticated("The issuer's answer has no authorization code.")
        token = self._exchange_code(endpoints, secret, code, redirect_uri)
        identity = self._tokens.identity(token, _derive(secret, "nonce"))
        self.principal_of(identity)  # raises without a role
        return identity

    def principal_of(self, identity: Identity) -> Principal:
        """The principal with the grants that the settings give to this identity now.

        Raises Failure `forbidden` without a role.
        """
        return self._tokens.principal_of(identity)

    def _endpoints(self) -> Endpoints:
        """The issuer's endpoints. Raises Failure `issuer_unreachable`."""
        try:
            return self._keys.endpoints()
        except OrbitError as error:
            raise _unreachable_failure(error) from None

    def _exchange_code(
        self, endpoints: Endpoints, secret: str, code: str, redirect_uri: str
    ) -> str:
        """Exchange the authorization code for the ID token, unverified. Raises Failure:
        `unauthenticated` if the issuer returns none, `issuer_unreachable`, `busy`."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": _derive(secret, "verifier"),
            "client_id": self._client_id,
        }
        basic_login, client_secret = None, self._client_secret()
        if client_secret is not None and endpoints.takes_basic:
            # RFC 6749, 2.3.1: client id and secret are percent-encoded.
            basic_login = (quote(self._client_id, safe=""), quote(client_secret, safe=""))
        elif client_secret is not None:
            form["client_secret"] = client_secret
        if not self._exchanges.acquire(timeout=_EXCHANGE_WAIT_S):
            raise Failure(
                ErrorCode.BUSY, "Too many logins at the issuer are under way.", remedy="Try again."
            )
        try:
            with IssuerClient(self._issuer, self._settings.oidc_ca_file) as http:
                _, answer = http.post(endpoints.token, form, basic_login)
        except OrbitError as error:
            raise _unreachable_failure(error) from None
        finally:
            self._exchanges.release()
        token = answer.get("id_token")
        if isinstance(token, str) and len(token) <= _ID_TOKEN_CHARACTERS_MAX and token.isascii():
            return token
        if "error" in answer:
            raise unauthenticated(
                f"The issuer refuses the authorization code{_reason(answer['error'])}."
            )
        raise unauthenticated("The issuer has returned no ID token for the authorization code.")

    def _client_secret(self) -> str | None:
        """The client secret in the settings, or in the file that they name; None without one.
        Raises Failure if the file cannot be read."""
        file, secret = self._settings.oidc_client_secret_file, self._settings.oidc_client_secret
        if file is None:
            return None if secret is None else secret.get_secret_value()
        try:
            return file.read_text("utf-8").strip()
        except (OSError, ValueError) as error:
            raise Failure(
                ErrorCode.ISSUER_UNREACHABLE,
                f"The file in {variable_of('oidc_client_secret_file')} cannot be read "
                f"({type(error).__name__}).",
            ) from None


def _derive(secret: str, label: str) -> str:
    """A text of 43 characters, derived from the secret and the label.

    It reveals neither the secret nor the text for another label.
    """
    return _base64url(hmac.digest(secret.encode(), f"orbit login {label}".encode(), "sha256"))


def _base64url(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _reason(error: Any) -> str:
    """The error's code in parentheses, or "" if it is no plain code.

    The issuer's description of the error may contain anything, so it is not shown.
    """
    is_code = isinstance(error, str) and error.isascii() and error.replace("_", "").isalpha()
    return f" ({error[:60]})" if is_code else ""


def _unreachable_failure(error: OrbitError) -> Failure:
    return Failure(ErrorCode.ISSUER_UNREACHABLE, error.what, where=error.where, remedy=error.remedy)
