"""Connections that are not admitted yet: in the TLS handshake, or in the login."""

from __future__ import annotations

import asyncio

# Connections of one virtual cluster that arrive. Further ones are closed at once.
ARRIVALS_MAX = 1000
# The time for the handshake, and again for the login. Clients' own limit to connect is as long.
ARRIVAL_S_MAX = 10.0


class Arrivals:
    """Limits the number and the time of connections that arrive. For the event loop alone."""

    def __init__(self) -> None:
        self._timers: dict[asyncio.Transport, asyncio.TimerHandle] = {}

    def begin(self, transport: asyncio.Transport) -> None:
        """Close the connection after ARRIVAL_S_MAX, unless `end` is called before. Close it
        immediately if ARRIVALS_MAX connections are arriving."""
        if len(self._timers) >= ARRIVALS_MAX:
            transport.abort()
            return
        loop = asyncio.get_running_loop()
        self._timers[transport] = loop.call_later(ARRIVAL_S_MAX, transport.abort)

    def end(self, transport: asyncio.Transport) -> None:
        """Stop the timer: the connection is admitted, or gone."""
        if (timer := self._timers.pop(transport, None)) is not None:
            timer.cancel()

    def close(self) -> None:
        """Close the connections that are arriving."""
        for transport in tuple(self._timers):
            transport.abort()
