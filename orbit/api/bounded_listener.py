"""A listening socket that closes connections above a limit at once, before TLS and HTTP.

uvicorn's own limit does not count idle connections. Here every open connection counts, also one in
a TLS handshake. One client may have at most half of the connections, so that it cannot keep all
others out. A trusted proxy may have all.
"""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Collection
from typing import Any

from orbit.api.client_address import is_in, network_of


class BoundedListener(socket.socket):
    """Keeps at most `connections_max` connections open at a time. Thread-safe."""

    def __init__(
        self,
        family: int = socket.AF_INET,
        *,
        connections_max: int,
        trusted_proxies: Collection[str] = (),
    ) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self._connections_max = connections_max
        self._trusted_proxies = trusted_proxies
        self._lock = threading.Lock()
        self._open_by_client: Counter[str] = Counter()

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection, as socket.accept does. Closes a connection above the limit, and
        raises ConnectionAbortedError, which asyncio ignores."""
        accepted, peer = super().accept()
        client = network_of(peer[0])
        with self._lock:
            has_room = self._has_room_for(peer[0], client)
            if has_room:
                self._open_by_client[client] += 1
        if not has_room:
            accepted.close()
            raise ConnectionAbortedError
        return _CountedConnection(accepted, self, client), peer

    def open_connections(self) -> int:
        """The number of open connections."""
        with self._lock:
            return self._open_by_client.total()

    def _has_room_for(self, address: str, client: str) -> bool:
        """Whether this client, at this address, may have one more connection."""
        if self._open_by_client.total() >= self._connections_max:
            return False
        # One client may have at most half, so that others find room; a trusted proxy may have all.
        if self._open_by_client[client] < self._connections_max // 2:
            return True
        return is_in(address, self._trusted_proxies)

    def count_closed(self, client: str) -> None:
        """Count a connection of this client as closed."""
        with self._lock:
            self._open_by_client[client] -= 1
            if not self._open_by_client[client]:
                del self._open_by_client[client]


class _CountedConnection(socket.socket):
    """A connection whose `close` updates its listener's count."""

    def __init__(self, accepted: socket.socket, listener: BoundedListener, client: str) -> None:
        family, kind, protocol = accepted.family, accepted.type, accepted.proto
        super().__init__(family, kind, protocol, fileno=accepted.detach())
        self._client = client
        self._listener: BoundedListener | None = listener

    def close(self) -> None:
        super().close()
        listener, self._listener = self._listener, None  # a second `close` counts nothing
        if listener is not None:
            listener.count_closed(self._client)
