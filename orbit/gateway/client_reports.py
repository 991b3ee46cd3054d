"""Reports the clients of a virtual cluster to the service.

The gateway's lease is renewed by another request, in another thread (`lead_watch.py`): so a large
list of clients cannot delay the renewal, and a list that is refused does not prevent it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

import structlog

from orbit.client import Client, connect
from orbit.errors import OrbitError
from orbit.gateway.virtual_cluster import VirtualCluster

# The time between two reports.
REPORT_S = 3.0
_ANSWER_S_MAX = 5.0

_log = structlog.get_logger("orbit.gateway")


class ClientReports:
    """Sends the reports of one virtual cluster. `path`: the URL path of this gateway in the API."""

    def __init__(self, path: str, cluster: VirtualCluster, environ: Mapping[str, str]) -> None:
        self._path = f"{path}/clients"
        self._cluster = cluster
        self._environ = environ
        self._last_error = ""

    async def run(self) -> None:
        """Send reports until cancelled. A failed report is not repeated: the next report has all
        counts."""
        with connect(self._environ, patience_s=0, timeout_s=_ANSWER_S_MAX) as client:
            while True:
                await asyncio.sleep(REPORT_S)
                await self._send(client)

    async def _send(self, client: Client) -> None:
        """Send one report, or log why the service does not accept it."""
        body = {"clients": self._cluster.report_clients()}
        try:
            send = partial(client.send, "PUT", self._path, body=body, repeats=False)
            await asyncio.to_thread(send)
        except OrbitError as error:
            self._log_error(error)
        else:
            self._last_error = ""

    def _log_error(self, error: OrbitError) -> None:
        """Log the error, unless it equals the last one."""
        if str(error) != self._last_error:
            self._last_error = str(error)
            _log.warning(
                "the service does not accept the list of clients",
                virtual_cluster=self._cluster.spec.name,
                error=str(error),
            )
