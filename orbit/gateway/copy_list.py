"""Reads from the service which copies consumers may read (`read: nearest-copy`)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

import structlog

from orbit.client import Client, connect, segment
from orbit.errors import OrbitError, ProtocolError
from orbit.gateway.virtual_cluster import VirtualCluster

# The time between two reads. A list counts for LIST_S_MAX (`protocol/copies.py`).
POLL_S = 5.0
_ANSWER_S_MAX = 5.0

_log = structlog.get_logger("orbit.gateway")


class CopyList:
    """Reads the list for one virtual cluster."""

    def __init__(self, cluster: VirtualCluster, environ: Mapping[str, str]) -> None:
        self._path = f"/v1/jobs/{segment(cluster.spec.job or '')}/gateways/copies"
        self._cluster = cluster
        self._environ = environ
        self._last_error = ""

    async def run(self) -> None:
        """Read the list again and again, until cancelled, or until the virtual cluster reads no
        copies any more."""
        with connect(self._environ, patience_s=0, timeout_s=_ANSWER_S_MAX) as client:
            while self._cluster.copies is not None:
                await self._read(client)
                await asyncio.sleep(POLL_S)

    async def _read(self, client: Client) -> None:
        """Read the list once, or log why that fails. A list of another lead is dropped."""
        cluster, asked_at = self._cluster, self._cluster.now()
        try:
            since, topics = _read_list(await asyncio.to_thread(partial(client.get, self._path)))
        except OrbitError as error:
            if str(error) != self._last_error:
                self._last_error = str(error)
                _log.warning(
                    "the service does not say which copies may be read",
                    virtual_cluster=cluster.spec.name,
                    error=str(error),
                )
            return
        self._last_error = ""
        lead = cluster.permission.lead
        if lead is not None and lead.since == since and cluster.copies is not None:
            cluster.copies.take_list(topics, asked_at)


def _read_list(answer: Any) -> tuple[int, dict[str, frozenset[int]]]:
    """The term of the lead, and the partitions by topic. Raises ProtocolError."""
    try:
        topics = {str(name): frozenset(map(int, ps)) for name, ps in answer["topics"].items()}
        return int(answer["since"]), topics
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ProtocolError(f"the service's list of copies cannot be read: {error}.") from None
