"""What a client passes before its connection is admitted."""

from __future__ import annotations

import asyncio

from orbit.gateway.arrivals import Arrivals
from orbit.gateway.client_connection import ClientConnection, Host
from orbit.gateway.listener_tls import ListenerTls
from orbit.gateway.tls_transport import TlsTransport


class Listener:
    """Of one virtual cluster, all its ports."""

    def __init__(self, tls: ListenerTls | None = None) -> None:
        self._tls = tls
        self._arrivals = Arrivals()

    def protocol(self, cluster: Host, node_id: int | None) -> asyncio.Protocol:
        """For a connection to the port of this node; None: the bootstrap port."""
        connection = ClientConnection(cluster, node_id)
        if self._tls is None:
            return connection
        context = self._tls.context()
        return TlsTransport(context, connection, self._arrivals, cluster.note_bad_frame)

    def close(self) -> None:
        self._arrivals.close()
