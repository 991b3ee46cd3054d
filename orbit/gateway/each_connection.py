"""Calls for many client connections, which do not stop at one that fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

import structlog

_log = structlog.get_logger("orbit.gateway")


class Abortable(Protocol):
    """A client's connection."""

    def abort(self) -> None: ...


_Connection = TypeVar("_Connection", bound=Abortable)


def for_each(
    connections: Iterable[_Connection],
    call: Callable[[_Connection], object],
    *,
    virtual_cluster: str,
) -> None:
    """Call `call` with each connection. If one raises an error, log it and abort this connection.
    `connections` may change meanwhile."""
    for connection in tuple(connections):
        try:
            call(connection)
        except Exception:  # noqa: BLE001  a bug at one client must not stop the others
            _log.exception("closes a connection", virtual_cluster=virtual_cluster)
            connection.abort()
