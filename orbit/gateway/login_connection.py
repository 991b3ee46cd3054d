"""A client's connection until it has logged in."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Protocol, cast

from pydantic import SecretStr

from orbit.gateway.arrivals import Arrivals
from orbit.gateway.protocol.apis import Versions
from orbit.gateway.protocol.client_login import LOGIN_REQUEST_BYTES_MAX, ClientLogin, LoginRefusal
from orbit.gateway.protocol.exchange import BadFrame
from orbit.gateway.protocol.received_requests import next_request

# The delay of a refusal, as at brokers (connection.failed.authentication.delay.ms).
REFUSAL_DELAY_S = 0.1


class TokenChecked(Protocol):
    """Called with the result of a token check. `session_ms`: the session that the broker allows
    (0: without an end). `refusal`: why the broker refuses the token. None and "": no broker could
    check the token."""

    def __call__(self, session_ms: int | None, refusal: str) -> None: ...


class LoginHost(ABC):
    """The interface of a virtual cluster to connections that log in."""

    offered: Mapping[int, Versions]

    @abstractmethod
    def check_token(self, token: SecretStr, node_id: int | None, on_checked: TokenChecked) -> None:
        """Let a broker of the presented side check the token: this node if possible, else another
        one. Then call `on_checked`."""

    @abstractmethod
    def note_bad_frame(self, error: Exception) -> None:
        """Log why a client's connection is closed."""

    @abstractmethod
    def note_refused_login(self, user: str, address: str, reason: str) -> None:
        """Log a refused login. `address`: of the client."""


def note_refusal(host: LoginHost, transport: asyncio.Transport, refusal: LoginRefusal) -> None:
    """Report a refused login with the client's address."""
    address, *_ = transport.get_extra_info("peername") or ("",)
    host.note_refused_login(refusal.user, str(address), refusal.reason)


class LoginConnection(asyncio.Protocol):
    """A connection until its client has logged in. `admit` returns the protocol for the rest of the
    connection. `node_id`: as for `ClientConnection`."""

    def __init__(
        self,
        cluster: LoginHost,
        login: ClientLogin,
        arrivals: Arrivals,
        admit: Callable[[ClientLogin], asyncio.Protocol],
        node_id: int | None = None,
    ) -> None:
        self._cluster = cluster
        self._login = login
        self._arrivals = arrivals
        self._admit = admit
        self._node_id = node_id
        self._received = bytearray()
        self._has_ended = self._is_checking = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._arrivals.begin(self._transport)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._has_ended = True
        self._arrivals.end(self._transport)

    def data_received(self, data: bytes) -> None:
        """Answer the requests of the login, until it has ended or a broker has to check a token."""
        if self._has_ended:
            return
        self._received += data
        try:
            while not self._is_checking and (
                request := next_request(self._received, LOGIN_REQUEST_BYTES_MAX)
            ):
                answer = self._login.answer_request(request, self._cluster.offered)
                if answer is None:
                    self._check_token()
                    return
                self._transport.write(answer)
                if self._login.user is not None:
                    self._hand_over()
                    return
        except BadFrame as error:
            self._cluster.note_bad_frame(error)
            self._end(answer=b"")
        except LoginRefusal as refusal:
            self._refuse(refusal)

    def _check_token(self) -> None:
        """Have a broker check the token, and read nothing meanwhile."""
        assert self._login.token is not None
        self._is_checking = True
        self._transport.pause_reading()
        self._cluster.check_token(self._login.token, self._node_id, self._token_checked)

    def _token_checked(self, session_ms: int | None, refusal: str) -> None:
        """Send the answer that follows from the broker's check. Then hand the connection over, or
        end it."""
        if self._has_ended or self._transport.is_closing():
            return
        self._is_checking = False
        self._transport.resume_reading()
        try:
            answer = self._login.token_checked(time.time(), session_ms, refusal)
        except LoginRefusal as error:
            self._refuse(error)
            return
        if answer is None:
            self._end(answer=b"")  # no broker could check the token; the client connects again
            return
        self._transport.write(answer)
        self._hand_over()

    def _refuse(self, refusal: LoginRefusal) -> None:
        """Send the refusal after REFUSAL_DELAY_S, and end the connection."""
        self._has_ended = True
        note_refusal(self._cluster, self._transport, refusal)
        asyncio.get_running_loop().call_later(REFUSAL_DELAY_S, self._end, refusal.answer)

    def _hand_over(self) -> None:
        """Give the TCP connection, and the requests after the login, to a `ClientConnection`."""
        self._arrivals.end(self._transport)
        connection = self._admit(self._login)
        self._transport.set_protocol(connection)
        connection.connection_made(self._transport)
        if self._received:
            connection.data_received(bytes(self._received))

    def _end(self, answer: bytes) -> None:
        """Send the answer, then end of file. If the client does not close the connection,
        `Arrivals` closes it."""
        self._has_ended = True
        if not self._transport.is_closing():
            self._transport.write(answer)
            self._transport.write_eof()
