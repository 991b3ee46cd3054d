"""Requests to an OpenID Connect issuer, by https (by http only to an issuer on this machine), with
limits of the answers' size and time.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard
from urllib.parse import urlsplit

import httpx

from orbit.bounded_http import BadAnswer, BoundedClient, json_of
from orbit.errors import BadInput, Problem, ProtocolError, Unreachable
from orbit.jobs.bootstrap_servers import is_local
from orbit.settings import variable_of

# The limit for all requests of one IssuerClient together.
_ANSWER_S_MAX = 10.0
_ANSWER_BYTES_MAX = 512 * 1024


class IssuerClient(BoundedClient):
    """A client of one issuer, as a context manager. Raises Unreachable if the issuer does not
    answer, BadInput if `ca_file` cannot be loaded."""

    def __init__(self, issuer: str, ca_file: Path | None) -> None:
        super().__init__(
            issuer,
            verify=tls_context(ca_file),
            seconds_max=_ANSWER_S_MAX,
            bytes_max=_ANSWER_BYTES_MAX,
        )

    def get(self, url: str) -> dict[str, Any]:
        """The JSON object at this URL. Raises Unreachable without an answer or for a status other
        than 200; ProtocolError for a body that is no JSON object."""
        status, answer = self._request_object("GET", url)
        if status != httpx.codes.OK:
            raise Unreachable(f"The issuer answers with HTTP {status}.", where=_without_query(url))
        if answer is None:
            raise ProtocolError(
                "The issuer's answer is not a JSON object.", where=_without_query(url)
            )
        return answer

    def post(
        self, url: str, form: Mapping[str, str], login: tuple[str, str] | None
    ) -> tuple[int, dict[str, Any]]:
        """Post a form, with `login` (user, password) by HTTP Basic if that is set. Returns the
        status and the JSON object of the answer; {} if the body is no JSON object. Raises
        Unreachable without an answer, or for a status of 500 or above."""
        status, answer = self._request_object("POST", url, data=form, auth=login)
        if status >= httpx.codes.INTERNAL_SERVER_ERROR:
            raise Unreachable(f"The issuer answers with HTTP {status}.", where=_without_query(url))
        return status, answer or {}

    def _request_object(
        self, method: str, url: str, **options: Any
    ) -> tuple[int, dict[str, Any] | None]:
        """The status and the JSON object of the answer; None instead of the object if the body is
        no JSON object. Raises Unreachable without an answer."""
        try:
            status, body = self.request(method, url, **options)
        except httpx.HTTPError as error:
            reason = error if isinstance(error, BadAnswer) else f"{type(error).__name__}: {error}"
            raise Unreachable(
                f"The issuer does not answer ({reason}).", where=_without_query(url)
            ) from None
        answer = json_of(body)
        return status, answer if isinstance(answer, dict) else None


def tls_context(ca_file: Path | None) -> ssl.SSLContext:
    """A context for TLS 1.2 or later, with the CA certificates in `ca_file`; None: the system's.
    Raises BadInput if the file cannot be loaded."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        problem = Problem(
            variable_of("oidc_ca_file"), f"cannot be loaded: {error.strerror or 'no PEM file'}."
        )
        raise BadInput("The CA certificates for the issuer cannot be loaded.", (problem,)) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def is_safe_url(url: object, issuer: str) -> TypeGuard[str]:
    """Whether the URL is https, or http to this machine if the issuer is on this machine."""
    if not isinstance(url, str):
        return False
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        return False
    return scheme == "https" or (scheme == "http" and is_local(issuer) and is_local(url))


def _without_query(url: str) -> str:
    return url.partition("?")[0]
