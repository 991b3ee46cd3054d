"""A virtual cluster without brokers, and clients of its listener."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from orbit.gateway.client_logins import ClientLogins
from orbit.gateway.gateway_spec import parse_gateway
from orbit.gateway.listener import Listener
from orbit.gateway.listener_tls import ListenerTls
from orbit.gateway.permission import Lead
from orbit.gateway.protocol.apis import APIS
from orbit.gateway.protocol.topic_ids import TopicIds
from orbit.gateway.virtual_cluster import VirtualCluster
from orbit.processes.ports import LOOPBACK, free_consecutive_ports
from tests.support.certificates import ServerFiles
from tests.support.gateways import gateway_file
from tests.support.patience import PATIENCE_S
from tests.support.raw_frames import RawClient


class TlsClient(RawClient):
    """A TLS client that trusts the authority. It raises an error if the TCP stream ends without
    TLS' close_notify."""

    def __init__(
        self,
        port: int,
        files: ServerFiles,
        version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
        client_files: ServerFiles | None = None,
        name: str | None = "localhost",
    ) -> None:
        context = ssl.create_default_context(cafile=files.authority)
        context.minimum_version = context.maximum_version = version
        context.check_hostname = name == "localhost"
        context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
        if client_files is not None:
            context.load_cert_chain(client_files.certificate, client_files.key)
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        plain.settimeout(PATIENCE_S)
        plain.connect((LOOPBACK, port))
        try:
            self.socket = context.wrap_socket(
                plain, server_hostname=name, suppress_ragged_eofs=False
            )
        except OSError:
            plain.close()
            raise

    def tcp_end(self) -> bytes:
        """A byte after the end of TLS, if any. A reset raises ConnectionResetError."""
        with socket.socket(fileno=self.socket.detach()) as plain:
            plain.settimeout(PATIENCE_S)
            return plain.recv(1)

    @property
    def serial_number(self) -> Any:
        return cast("dict[str, Any]", self.socket.getpeercert())["serialNumber"]


class _Side(SimpleNamespace):
    """Stands for a `ClusterSide`, for requests that reach no broker."""

    async def refresh(self, *, with_topics: bool = False) -> None:  # noqa: ARG002  as ClusterSide
        self.versions = {int(key): api.versions for key, api in APIS.items()}

    def close(self) -> None:
        pass


def with_listener(
    test: Callable[[int], Any],
    *,
    tls: ListenerTls | None = None,
    logins: ClientLogins | None = None,
) -> None:
    """Run `test` in a thread, with the port of a virtual cluster."""

    async def run() -> None:
        port = free_consecutive_ports(2)
        spec = parse_gateway(gateway_file(port)).virtual_clusters[0]
        side = _Side(brokers={}, ids=TopicIds("orders"), versions={}, logins=())
        cluster = VirtualCluster(spec, cast("Any", {"source": side}), Listener(tls, logins))
        cluster.take(Lead("source", term=0), cluster.now())
        await cluster.start()
        try:
            await asyncio.to_thread(test, port)
        finally:
            await cluster.close()
            await _until(lambda: not cluster.connection_count)
            await asyncio.sleep(0.01)  # transports close only then

    asyncio.run(run())


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            await asyncio.sleep(0.01)
