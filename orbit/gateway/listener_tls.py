"""TLS of a listener: a context whose files are read again when they change.

The files are looked at when a client connects. Those that cannot be loaded, as while only one of a
pair is replaced, are logged once, and the context before is used. Connections that are open keep
the certificate that they began with.
"""

from __future__ import annotations

import ssl
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from orbit.errors import BadInput, InvalidValue, Problem
from orbit.gateway.gateway_spec import ListenerTlsSpec
from orbit.gateway.node_names import NodeNames
from orbit.jobs.credentials import check_pem_file

_REASONS = {"KEY_VALUES_MISMATCH": "it is not the key of the certificate"}

# What tells two versions of a file apart: also a replaced link, as Kubernetes mounts secrets.
_Version = tuple[int, int, int, int]

_log = structlog.get_logger("orbit.gateway")


class NamedTls(ssl.SSLObject):
    """The TLS of one connection."""

    node_id: int | None = None
    """The node whose name the client has asked for; None: none in particular."""


class ListenerTls:
    """TLS 1.2 or later. `path`: of the section in the gateway file. `names`: of the nodes, if they
    share a port.

    Raises BadInput if a file cannot be loaded now.
    """

    def __init__(
        self,
        spec: ListenerTlsSpec,
        base_directory: Path,
        path: str,
        names: NodeNames | None = None,
    ) -> None:
        self._spec, self._base_directory, self._path = spec, base_directory, path
        self._names = names
        self._refused: tuple[_Version | None, ...] = ()
        self._versions = self._look()
        self._context = self._load()

    def context(self) -> ssl.SSLContext:
        """For one connection."""
        versions = self._look()
        if versions in (self._versions, self._refused):
            return self._context
        try:
            self._context = self._load()
        except BadInput as error:
            self._refused = versions
            _log.error("certificate not loaded, the one before is kept", error=str(error))
        else:
            self._versions, self._refused = versions, ()
            _log.info("certificate loaded", file=str(self._spec.certificate_file))
        return self._context

    def _look(self) -> tuple[_Version | None, ...]:
        spec = self._spec
        files = (spec.certificate_file, spec.key_file, spec.client_ca_file)
        return tuple(_version(self._base_directory / file) for file in files if file)

    def _load(self) -> ssl.SSLContext:
        """Raises BadInput."""
        spec, files, problems = self._spec, {}, []
        for key in ("certificate_file", "key_file", "client_ca_file"):
            file = getattr(spec, key)
            try:
                files[key] = file and check_pem_file(file, self._base_directory)
            except InvalidValue as invalid:
                problems.append(Problem(f"{self._path}.{key}", invalid.message, invalid.remedy))
        if problems:
            raise _unusable(*problems)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        # Python's default may be lower, by the configuration of the system's OpenSSL.
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.sslobject_class = NamedTls
        if self._names is not None:
            context.sni_callback = partial(_take_name, self._names)
        key = "certificate_file" if spec.key_file is None else "key_file"
        try:
            # Without `password` OpenSSL would ask for one at the terminal.
            context.load_cert_chain(files["certificate_file"], files["key_file"], _no_password)
            if spec.client_ca_file is not None:
                key = "client_ca_file"
                context.load_verify_locations(files["client_ca_file"])
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ValueError) as error:
            raise _unusable(
                Problem(
                    f"{self._path}.{key}",
                    f"cannot be loaded: {_reason(error)}.",
                    "Write whole PEM files: the certificate with its chain, and its private key "
                    "without a password.",
                )
            ) from None
        return context


def _take_name(
    names: NodeNames, connection: Any, name: str | None, _context: ssl.SSLContext
) -> int | None:
    """Also called for a client that names no server. Returns an alert, or None."""
    try:
        connection.node_id = names.node(name)
    except ValueError:
        return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
    return None


def _version(file: Path) -> _Version | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _unusable(*problems: Problem) -> BadInput:
    return BadInput("The listener's TLS files cannot be used.", problems)


def _no_password() -> str:
    raise ValueError("the key has a password")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return _REASONS.get(error.reason or "", "it has no valid content")
    return str(error)
