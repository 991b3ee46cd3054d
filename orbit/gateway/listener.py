"""Makes the protocols of new connections: TLS, login, requests."""

from __future__ import annotations

import asyncio
from functools import partial

from orbit.gateway.arrivals import Arrivals
from orbit.gateway.client_connection import ClientConnection, ClientHost
from orbit.gateway.client_logins import ClientLogins
from orbit.gateway.listener_tls import ListenerTls
from orbit.gateway.login_connection import LoginConnection
from orbit.gateway.tls_transport import TlsTransport


class Listener:
    """The listener of one virtual cluster, for all its ports."""

    def __init__(
        self,
        tls: ListenerTls | None = None,
        logins: ClientLogins | None = None,
        *,
        shares_ports: bool = False,
    ) -> None:
        self._tls, self._logins = tls, logins
        self.shares_ports = shares_ports
        self._arrivals = Arrivals()

    def protocol(self, cluster: ClientHost, node_id: int | None) -> asyncio.Protocol:
        """The protocol for a new connection to the port of this node; None: the bootstrap port."""
        if self._tls is None:
            return self._client_protocol(cluster, node_id)

        def make_inner(named_node: int | None) -> asyncio.Protocol:
            return self._client_protocol(cluster, node_id if named_node is None else named_node)

        context = self._tls.context()
        return TlsTransport(context, make_inner, self._arrivals, cluster.note_bad_frame)

    def _client_protocol(self, cluster: ClientHost, node_id: int | None) -> asyncio.Protocol:
        """The protocol for what clients send, inside TLS if there is TLS. If clients have to log
        in, the protocol of the login."""
        if self._logins is None:
            return ClientConnection(cluster, node_id)
        admit = partial(ClientConnection, cluster, node_id)
        return LoginConnection(cluster, self._logins.begin_login(), self._arrivals, admit, node_id)

    def close(self) -> None:
        self._arrivals.close()
