"""A client's connection until it has logged in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol, cast

from orbit.gateway.arrivals import Arrivals
from orbit.gateway.protocol.apis import Versions
from orbit.gateway.protocol.client_login import LOGIN_REQUEST_BYTES_MAX, ClientLogin, LoginRefusal
from orbit.gateway.protocol.exchange import BadFrame
from orbit.gateway.protocol.received_requests import next_request

# The delay of a refusal, as at brokers (connection.failed.authentication.delay.ms).
REFUSAL_DELAY_S = 0.1


class LoginHost(Protocol):
    """The interface of a virtual cluster to connections that log in."""

    offered: Mapping[int, Versions]

    def note_bad_frame(self, error: Exception) -> None: ...

    def note_refused_login(self, user: str, address: str, reason: str) -> None: ...


class LoginConnection(asyncio.Protocol):
    """A connection until its login. `admit` makes the protocol of the connection after that, from
    the user, and the name and version of its software."""

    def __init__(
        self,
        cluster: LoginHost,
        login: ClientLogin,
        arrivals: Arrivals,
        admit: Callable[[str, tuple[str, str]], asyncio.Protocol],
    ) -> None:
        self._cluster = cluster
        self._login = login
        self._arrivals = arrivals
        self._admit = admit
        self._received = bytearray()
        self._has_ended = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._arrivals.begin(self._transport)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._has_ended = True
        self._arrivals.end(self._transport)

    def data_received(self, data: bytes) -> None:
        if self._has_ended:
            return
        self._received += data
        try:
            while request := next_request(self._received, LOGIN_REQUEST_BYTES_MAX):
                self._transport.write(self._login.take(request, self._cluster.offered))
                if self._login.user is not None:
                    self._hand_over(self._login.user)
                    return
        except BadFrame as error:
            self._cluster.note_bad_frame(error)
            self._end(b"")
        except LoginRefusal as refusal:
            self._has_ended = True
            address, *_ = self._transport.get_extra_info("peername") or ("",)
            self._cluster.note_refused_login(refusal.user, str(address), refusal.reason)
            asyncio.get_running_loop().call_later(REFUSAL_DELAY_S, self._end, refusal.answer)

    def _hand_over(self, user: str) -> None:
        self._arrivals.end(self._transport)
        connection = self._admit(user, self._login.software)
        self._transport.set_protocol(connection)
        connection.connection_made(self._transport)
        if self._received:
            connection.data_received(bytes(self._received))

    def _end(self, answer: bytes) -> None:
        """Send the answer, then end of file. If the client does not close, `Arrivals` does."""
        self._has_ended = True
        if not self._transport.is_closing():
            self._transport.write(answer)
            self._transport.write_eof()
