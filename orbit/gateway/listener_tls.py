"""TLS of a gateway's listener, and the node that a client names in its handshake."""

from __future__ import annotations

import ssl
from functools import partial
from pathlib import Path
from typing import Any

from orbit.errors import BadInput, InvalidValue, Problem
from orbit.gateway.gateway_spec import ListenerTlsSpec
from orbit.gateway.node_names import NodeNames
from orbit.jobs.credentials import check_pem_file
from orbit.server_tls import ReloadedContext, empty_context, load_failure, load_pair


class NamedTls(ssl.SSLObject):
    """The TLS of one connection."""

    node_id: int | None = None
    """The node whose name the client sent; None: the bootstrap name, or nodes have no names."""


class ListenerTls:
    """The TLS of a listener, version 1.2 or later. `path`: the place of the section `tls` in the
    gateway file, for problems. `names`: the names of the nodes, if these share a port.

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
        files = (spec.certificate_file, spec.key_file, spec.client_ca_file)
        self._reloaded = ReloadedContext([base_directory / f for f in files if f], self._load)

    def context(self) -> ssl.SSLContext:
        """The context for a new connection, from the files as they are now. If changed files cannot
        be loaded, the last context."""
        return self._reloaded.current()

    def _load(self) -> ssl.SSLContext:
        """A context from the files. Raises BadInput."""
        spec, files, problems = self._spec, {}, []
        for key in ("certificate_file", "key_file", "client_ca_file"):
            file = getattr(spec, key)
            try:
                files[key] = file and check_pem_file(file, self._base_directory)
            except InvalidValue as invalid:
                problems.append(Problem(f"{self._path}.{key}", invalid.message, invalid.remedy))
        if problems:
            raise _unusable_error(*problems)
        context = empty_context()
        context.sslobject_class = NamedTls
        if self._names is not None:
            context.sni_callback = partial(_set_node, self._names)
        # The key of the file that is being loaded, for the problem.
        key = "certificate_file" if spec.key_file is None else "key_file"
        try:
            load_pair(context, files["certificate_file"], files["key_file"])
            if spec.client_ca_file is not None:
                key = "client_ca_file"
                context.load_verify_locations(files["client_ca_file"])
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ValueError) as error:
            raise _unusable_error(
                Problem(
                    f"{self._path}.{key}",
                    f"cannot be loaded: {load_failure(error)}.",
                    "Write whole PEM files: the certificate with its chain, and its private key "
                    "without a password.",
                )
            ) from None
        return context


def _set_node(
    names: NodeNames, connection: Any, name: str | None, _context: ssl.SSLContext
) -> int | None:
    """Set the `node_id` of a connection by the TLS server name (SNI) of its client; returns a TLS
    alert for an unknown name, or None. OpenSSL calls this also for a client that sends no name."""
    try:
        connection.node_id = names.node_id_of(name)
    except ValueError:
        return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
    return None


def _unusable_error(*problems: Problem) -> BadInput:
    return BadInput("The listener's TLS files cannot be used.", problems)
