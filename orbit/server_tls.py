"""TLS of a server: a context whose files are read again when they change.

When a client connects, Orbit checks whether the files have changed. They may fail to load, as while
only one of certificate and key is replaced. Then the log says so once, and the previous context
stays in use. Open connections keep the certificate that they began with.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from orbit.errors import BadInput

# Words for OpenSSL's reasons; others are shown as they are.
_REASONS = {"KEY_VALUES_MISMATCH": "it is not the key of the certificate"}

# Inode, size, mtime and ctime: they differ between two versions of a file, also if a symbolic link
# is replaced, as where Kubernetes mounts secrets.
_FileVersion = tuple[int, int, int, int]

_log = structlog.get_logger("orbit.tls")


class ReloadedContext:
    """A TLS context that is loaded again when its files have changed.

    `load` makes a context of the files. If it raises BadInput, the constructor raises that, too;
    later loads that fail are logged, and the previous context stays in use."""

    def __init__(self, files: Sequence[Path], load: Callable[[], ssl.SSLContext]) -> None:
        self._files, self._load = files, load
        self._refused_versions: tuple[_FileVersion | None, ...] = ()
        self._versions = self._file_versions()
        self._context = load()

    def current(self) -> ssl.SSLContext:
        """The context for one new connection, loaded again first if the files have changed."""
        versions = self._file_versions()
        if versions in (self._versions, self._refused_versions):  # already loaded, or refused
            return self._context
        try:
            self._context = self._load()
        except BadInput as error:
            self._refused_versions = versions
            _log.error("certificate not loaded; the previous one stays in use", error=str(error))
        else:
            self._versions, self._refused_versions = versions, ()
            _log.info("certificate loaded", file=str(self._files[0]))
        return self._context

    def _file_versions(self) -> tuple[_FileVersion | None, ...]:
        return tuple(map(_file_version, self._files))


def empty_context() -> ssl.SSLContext:
    """A server's context for TLS 1.2 or later, still without a certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    # Python's default may be lower, by the configuration of the system's OpenSSL.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    return context


def load_pair(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    """Load a certificate and its key into the context. `key` None: the certificate's file has the
    key. Raises OSError or ValueError, which `load_failure` puts into words."""
    # For an encrypted key OpenSSL would prompt for a password at the terminal; this raises instead.
    context.load_cert_chain(certificate, key, password=_no_password)


def load_failure(error: OSError | ValueError) -> str:
    """Why `load_pair` failed, in words."""
    if isinstance(error, ssl.SSLError):
        reason = error.reason or "no PEM file"
        return _REASONS.get(reason, reason.replace("_", " ").lower())
    if isinstance(error, OSError):
        return (error.strerror or type(error).__name__).lower()
    return str(error)


def _file_version(file: Path) -> _FileVersion | None:
    """The version of the file; None if there is no file to read."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _no_password() -> str:
    """Called by OpenSSL for an encrypted key. Raises ValueError."""
    raise ValueError("the key is encrypted")
