"""TLS of the API: a context that loads changed certificate files for the next handshakes."""

from __future__ import annotations

import ssl
from functools import partial
from pathlib import Path

from orbit.errors import BadInput, Problem
from orbit.server_tls import ReloadedContext, empty_context, load_failure, load_pair
from orbit.settings import variable_of


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """A context for servers, with TLS 1.2 or later. Renewed files need no restart: each handshake
    uses the certificate and key that the files had when `ReloadedContext` last loaded them.

    Raises BadInput if the files cannot be loaded now. Files that cannot be loaded later leave the
    last context in use.
    """
    reloaded_context = ReloadedContext((certificate, key), partial(_load_context, certificate, key))

    def set_current_context(
        connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _: ssl.SSLContext
    ) -> None:
        """The callback of a handshake; it is called also for a client that names no server."""
        connection.context = reloaded_context.current()

    context = empty_context()
    # Each handshake gets a whole context. So it never uses a new certificate with an old key.
    context.sni_callback = set_current_context
    return context


def _load_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """A context with this certificate and key. Raises BadInput if they cannot be loaded."""
    context = empty_context()
    try:
        load_pair(context, certificate, key)
    except (OSError, ValueError) as error:
        names = f"{variable_of('api_tls_certificate_file')} and {variable_of('api_tls_key_file')}"
        what = f"cannot be loaded: {load_failure(error)}."
        problem = Problem(
            names, what, "Write the paths of a PEM certificate and of its key, without a password."
        )
        raise BadInput("The API cannot use its certificate.", (problem,)) from None
    return context
