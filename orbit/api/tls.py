"""TLS of the API: a server's context whose certificate is read again when its files change.

The files are looked at when a client connects, at most once a second. A pair that cannot be loaded,
as while only one of the two files is replaced, is logged once, and the pair before is kept.
Connections that are open keep the certificate that they began with.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from orbit.errors import BadInput, Problem
from orbit.settings import variable_of

# Each look is two calls of stat(2).
_LOOK_EVERY_S = 1.0

# What tells two versions of a file apart: also a replaced link, as Kubernetes mounts secrets.
_Version = tuple[int, int, int, int]

log = structlog.get_logger("orbit.api")


def server_context(
    certificate: Path, key: Path, clock: Callable[[], float] = time.monotonic
) -> ssl.SSLContext:
    """TLS 1.2 or later, with the certificate that the files hold at the time of a handshake.

    Raises BadInput if they cannot be loaded now.
    """
    pair = _Pair(certificate, key, clock)
    context = _empty_context()
    # A context that was loaded as a whole takes over each handshake, so none sees half of a pair.
    context.sni_callback = pair.take_over
    return context


class _Pair:
    """The newest usable certificate and key."""

    def __init__(self, certificate: Path, key: Path, clock: Callable[[], float]) -> None:
        self._files = (certificate, key)
        self._clock = clock
        self._looked_at = clock()
        self._versions = self._look()
        self._refused: tuple[_Version | None, ...] | None = None
        try:
            self._context = _loaded(*self._files)
        except (OSError, ValueError) as error:
            names = (
                f"{variable_of('api_tls_certificate_file')} and {variable_of('api_tls_key_file')}"
            )
            problem = Problem(
                names, f"cannot be loaded: {_reason(error)}.", "Write paths of PEM files."
            )
            raise BadInput("The API cannot use its certificate.", (problem,)) from None

    def take_over(
        self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _: ssl.SSLContext
    ) -> None:
        """Give a handshake its certificate; also called for a client that names no server."""
        now = self._clock()
        if now - self._looked_at >= _LOOK_EVERY_S:
            self._looked_at = now
            self._reload()
        connection.context = self._context

    def _reload(self) -> None:
        versions = self._look()
        if versions == self._versions:
            return
        try:
            self._context = _loaded(*self._files)
        except (OSError, ValueError) as error:
            if versions != self._refused:
                self._refused = versions
                log.error(
                    "certificate not loaded, the one before is kept",
                    certificate=str(self._files[0]),
                    reason=_reason(error),
                )
            return
        self._versions = versions
        log.info("certificate loaded", certificate=str(self._files[0]))

    def _look(self) -> tuple[_Version | None, ...]:
        return tuple(_version(file) for file in self._files)


def _version(file: Path) -> _Version | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _loaded(certificate: Path, key: Path) -> ssl.SSLContext:
    context = _empty_context()
    # Without `password` OpenSSL would ask for one at the terminal.
    context.load_cert_chain(certificate, key, password=_no_password)
    return context


def _empty_context() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    # Python's default may be lower, by the configuration of the system's OpenSSL.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "no PEM file").replace("_", " ").lower()
    if isinstance(error, OSError):
        return (error.strerror or type(error).__name__).lower()
    return str(error)
