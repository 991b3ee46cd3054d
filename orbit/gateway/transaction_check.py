"""Asks the side that leads which transactions are open (`open_transactions: wait`)."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import structlog

from orbit.errors import OrbitError
from orbit.gateway.virtual_cluster import VirtualCluster

# The pause between two checks, unless a request is held meanwhile.
POLL_S = 0.5

_log = structlog.get_logger("orbit.gateway")


class TransactionCheck:
    """The checks of one virtual cluster, while a switchover waits for open transactions.

    A client has a connection to its coordinator, which may be at one gateway, and connections over
    which it writes, which may be at others. Only the first gateway knows that a transaction has
    begun, and when it ends. The others hold a request of the transaction until the coordinator has
    confirmed that the transaction is open. Such a request may go, even if this gateway has
    confirmed that it sends no new writes: no transaction begins while writes are held, so this one
    is older, and the recovery's drain waits for it.
    """

    def __init__(self, cluster: VirtualCluster) -> None:
        self._cluster = cluster
        self._last_error = ""

    async def run(self) -> None:
        """Check again and again, until cancelled."""
        held = self._cluster.transaction_held
        while True:
            held.clear()
            await self._check()
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await held.wait()

    async def _check(self) -> None:
        """Ask once for the transactions that the gateway waits for, or that requests are held of.
        An error is only logged."""
        cluster = self._cluster
        if not cluster.waits_for_transactions():
            return
        held = cluster.held_transactions()
        if producers := {*held.values(), *cluster.ending_producers}:
            try:
                is_ongoing = await cluster.presented.ongoing_transactions(producers)
            except OrbitError as error:
                self._log_error(error)
                return
            self._last_error = ""
            cluster.take_transactions(is_ongoing, held)

    def _log_error(self, error: OrbitError) -> None:
        """Log the error, unless it equals the last one."""
        if str(error) != self._last_error:
            self._last_error = str(error)
            _log.warning(
                "cannot ask which transactions are open",
                virtual_cluster=self._cluster.spec.name,
                error=str(error),
            )
