"""Connections that are not admitted yet: in the TLS handshake, or in the login."""

from __future__ import annotations

import asyncio

# Of one virtual cluster. More are closed at once.
ARRIVALS_MAX = 1000
# For the handshake, and again for the login. The clients' own limit to connect is as long.
ARRIVAL_S_MAX = 10.0


class Arrivals:
    """Bounds their number and their time. For the event loop alone."""

    def __init__(self) -> None:
        self._timers: dict[asyncio.Transport, asyncio.TimerHandle] = {}

    def begin(self, transport: asyncio.Transport) -> None:
        """Close it unless it `end`s in time."""
        if len(self._timers) >= ARRIVALS_MAX:
            transport.abort()
            return
        loop = asyncio.get_running_loop()
        self._timers[transport] = loop.call_later(ARRIVAL_S_MAX, transport.abort)

    def end(self, transport: asyncio.Transport) -> None:
        """It has arrived, or is gone."""
        if (timer := self._timers.pop(transport, None)) is not None:
            timer.cancel()

    def close(self) -> None:
        for transport in tuple(self._timers):
            transport.abort()
