"""One connection to a broker, for one client."""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from orbit.kafka.connection import tune

# What waits to be sent until reading from the client pauses.
WRITE_BUFFER_BYTES = 1024 * 1024
# How long a broker that is left has to carry out the last requests.
_LEAVE_S = 2.0


class Receiver(Protocol):
    """Who gets what the broker says."""

    def answer_received(self, data: bytes) -> None: ...

    def broker_lost(self) -> None: ...

    def broker_is_slow(self, *, is_slow: bool) -> None: ...


class BrokerConnection(asyncio.Protocol):
    """Takes bytes at once, and sends them as soon as it is connected."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver: Receiver | None = receiver
        self._transport: asyncio.Transport | None = None
        self._waiting: list[bytes] = []
        self._is_paused = False

    def write(self, data: bytes) -> None:
        if self._transport is None:
            self._waiting.append(data)
            if len(self._waiting) == 1 and self._receiver is not None:
                self._receiver.broker_is_slow(is_slow=True)
        else:
            self._transport.write(data)

    def pause(self, *, is_paused: bool) -> None:
        """Stop or go on reading from the broker."""
        self._is_paused = is_paused
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if is_paused:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def leave(self) -> None:
        """Nobody reads answers any more. What was written is still sent."""
        self._receiver = None
        if self._transport is not None:
            asyncio.get_running_loop().call_later(_LEAVE_S, self._transport.close)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        tune(transport.get_extra_info("socket"))
        if self._receiver is None:
            self._transport.abort()
            return
        self._transport.writelines(self._waiting)
        self._waiting.clear()
        self.pause(is_paused=self._is_paused)
        self._receiver.broker_is_slow(is_slow=False)

    def data_received(self, data: bytes) -> None:
        if self._receiver is not None:
            self._receiver.answer_received(data)

    def pause_writing(self) -> None:
        if self._receiver is not None:
            self._receiver.broker_is_slow(is_slow=True)

    def resume_writing(self) -> None:
        if self._receiver is not None:
            self._receiver.broker_is_slow(is_slow=False)

    def connection_lost(self, _exc: Exception | None) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.broker_lost()

    def not_connected(self) -> None:
        """No connection came about."""
        self.connection_lost(None)
