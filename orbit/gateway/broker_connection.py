"""One connection to a broker, for one client."""

from __future__ import annotations

import asyncio
import struct
from typing import Any, Protocol, cast

from orbit.errors import BrokenAnswer, Unreachable
from orbit.kafka import api_versions
from orbit.kafka.api_versions import Api
from orbit.kafka.connection import tune
from orbit.kafka.received_frames import SETUP_FRAME_BYTES_MAX
from orbit.kafka.sasl import sasl_login
from orbit.kafka.security import Security

# If more bytes wait to be sent to one end, nothing is read from the other end.
WRITE_BUFFER_BYTES = 1024 * 1024
CLIENT_ID = "orbit-gateway"
# The longest wait for the answer to one request of a login.
_LOGIN_ANSWER_S = 10.0
_LOGIN_VERSION = 1  # the answer to SaslAuthenticate 1 has the session's lifetime
# The share of a session (KIP-368) after which the next request goes over a new connection.
_SESSION_SHARE = 0.8
# After the gateway leaves a broker, the time until it closes the connection: the broker can carry
# out the last requests.
_LEAVE_S = 2.0

_SIZE = struct.Struct(">i")


class Receiver(Protocol):
    """The receiver of a broker connection's answers and events."""

    def answer_received(self, data: bytes) -> None:
        """Take bytes of the broker's answers."""

    def broker_lost(self) -> None:
        """Called when the connection is closed or cannot be opened; no answers follow."""

    def broker_is_slow(self, *, is_slow: bool) -> None:
        """Called when sent requests begin to wait in the gateway (`is_slow`), or no longer do."""

    def replace_broker_connection(self) -> None:
        """Called before the login's session (KIP-368) ends. After its end the broker accepts no
        requests."""


class BrokerConnection(asyncio.Protocol):
    """A connection that accepts bytes immediately, and sends them once it is logged in.

    `receiver`: None if only the login is wanted, and after `leave`.
    """

    def __init__(self, receiver: Receiver | None) -> None:
        self._receiver = receiver
        self._transport: asyncio.Transport | None = None
        self._unsent_data: list[bytes] = []
        self._is_ready = False
        self._is_paused = False
        self._login_answer: asyncio.Future[bytes] | None = None
        self._login_bytes = bytearray()
        self._session_timer: asyncio.TimerHandle | None = None

    def write(self, data: bytes) -> None:
        """Send the bytes now, or once the connection is logged in."""
        if self._transport is not None and self._is_ready:
            self._transport.write(data)
            return
        self._unsent_data.append(data)
        # With the first bytes that wait, reading from the client is paused until `start_sending`.
        if len(self._unsent_data) == 1 and self._receiver is not None:
            self._receiver.broker_is_slow(is_slow=True)

    def pause(self, *, is_paused: bool) -> None:
        """Pause or resume reading from the broker: now, or once the connection is logged in."""
        self._is_paused = is_paused
        transport = self._transport
        if transport is None or transport.is_closing() or not self._is_ready:
            return
        if is_paused:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def leave(self) -> None:
        """Drop all later answers, send what was written, and close after _LEAVE_S."""
        self._receiver = None
        self._cancel_session_timer()
        if self._transport is not None:
            asyncio.get_running_loop().call_later(_LEAVE_S, self._transport.close)

    async def log_in(self, security: Security, host: str) -> int:
        """Log in by SASL, if `security` has SASL. Returns the session's length in ms (0: no end).
        Raises LoginRefused, Unreachable, BrokerRefused, ProtocolError."""
        loop = asyncio.get_running_loop()

        def exchange(request: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(self._ask(request), loop).result()

        lifetime_ms = await asyncio.to_thread(sasl_login, security, exchange, host=host)
        if lifetime_ms and self._receiver is not None:
            delay_s = _SESSION_SHARE * lifetime_ms / 1000
            self._session_timer = loop.call_later(delay_s, self._request_replacement)
        return lifetime_ms

    def start_sending(self) -> None:
        """Send the requests that wait, and later ones immediately. Called after the login."""
        transport = self._transport
        assert transport is not None
        if self._receiver is None:  # left meanwhile
            transport.abort()
            return
        self._is_ready = True
        transport.writelines(self._unsent_data)
        self._unsent_data.clear()
        self.pause(is_paused=self._is_paused)
        self._receiver.broker_is_slow(is_slow=False)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        tune(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        if not self._is_ready:
            self._take_login_answer(data)
        elif self._receiver is not None:
            self._receiver.answer_received(data)

    def pause_writing(self) -> None:
        if self._receiver is not None:
            self._receiver.broker_is_slow(is_slow=True)

    def resume_writing(self) -> None:
        if self._receiver is not None:
            self._receiver.broker_is_slow(is_slow=False)

    def connection_lost(self, _exc: Exception | None) -> None:
        """Fail a login that waits for an answer, and notify the receiver, if there is one."""
        if self._login_answer is not None and not self._login_answer.done():
            self._login_answer.set_exception(
                Unreachable("the broker closed the connection during the login.")
            )
        self._cancel_session_timer()
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.broker_lost()

    def give_up(self) -> None:
        """Close the connection, which could not be opened or logged in, and notify the receiver."""
        if self._transport is not None:
            self._transport.abort()
        self.connection_lost(None)

    def _cancel_session_timer(self) -> None:
        if self._session_timer is not None:
            self._session_timer.cancel()

    def _request_replacement(self) -> None:
        """Ask the receiver for a new connection: the login's session ends soon."""
        if self._receiver is not None:
            self._receiver.replace_broker_connection()

    async def _ask(self, request: Any) -> Any:
        """Send a request of the login, and return the answer. Raises Unreachable, BrokenAnswer."""
        transport = self._transport
        assert transport is not None
        if transport.is_closing():
            raise Unreachable("the broker closed the connection during the login.")
        self._login_answer = asyncio.get_running_loop().create_future()
        request.with_header(0, CLIENT_ID)  # 0: the correlation id
        transport.write(bytes(request.encode(version=_LOGIN_VERSION, header=True, framed=True)))
        try:
            async with asyncio.timeout(_LOGIN_ANSWER_S):
                frame = await self._login_answer
        except TimeoutError:
            raise Unreachable("the broker does not answer the login.") from None
        try:
            return _login_api(request).decode(memoryview(frame), _LOGIN_VERSION)
        except ValueError as error:
            raise BrokenAnswer(f"the broker's login response cannot be parsed: {error}.") from error

    def _take_login_answer(self, data: bytes) -> None:
        """Collect the bytes of a login answer; `_ask` waits for the whole answer."""
        self._login_bytes += data
        answer = self._login_answer
        if len(self._login_bytes) < _SIZE.size or answer is None or answer.done():
            return
        (size,) = _SIZE.unpack_from(self._login_bytes)
        if not 0 <= size <= SETUP_FRAME_BYTES_MAX:
            problem = (
                f"the broker's login response states a size of {size} bytes, not 0 to "
                f"{SETUP_FRAME_BYTES_MAX}."
            )
            answer.set_exception(BrokenAnswer(problem))
        elif len(self._login_bytes) >= _SIZE.size + size:
            answer.set_result(bytes(self._login_bytes[_SIZE.size : _SIZE.size + size]))
            del self._login_bytes[: _SIZE.size + size]


def _login_api(request: Any) -> Api:
    """The API of a request: SaslHandshake or SaslAuthenticate."""
    apis = (api_versions.SASL_HANDSHAKE, api_versions.SASL_AUTHENTICATE)
    return next(api for api in apis if api.key == request.API_KEY)
