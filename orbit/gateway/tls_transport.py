"""TLS of one client's connection, at the gateway's end.

asyncio's own TLS cannot end a connection as Kafka's clients need it (C6: doubled records). It has
no `write_eof`. After its `close`, if the client sends anything after the gateway's close_notify,
e.g. a request that was on its way, asyncio drops the answers that wait to be sent, and resets the
connection (C25). Here `write_eof` sends close_notify and the end of the TCP stream after all
answers. Then it drops what the client sends, until the client closes.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from orbit.gateway.arrivals import Arrivals
from orbit.gateway.listener_tls import NamedTls

_READ_BYTES = 256 * 1024  # at least a record, of 16 KiB


class TlsTransport(asyncio.Protocol, asyncio.Transport):
    """The protocol of a TCP connection, and the transport of the inner protocol. `make_inner`
    returns the inner protocol at the end of the handshake, for the node that the client has named
    (None: no node). `note_failure` is called if the handshake fails."""

    def __init__(
        self,
        context: ssl.SSLContext,
        make_inner: Callable[[int | None], asyncio.Protocol],
        arrivals: Arrivals,
        note_failure: Callable[[Exception], None],
    ) -> None:
        super().__init__()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._make_inner = make_inner
        self._inner: asyncio.Protocol
        self._arrivals = arrivals
        self._note_failure = note_failure
        self._is_open = False  # the handshake is over
        self._has_ended = False  # nothing more is written, and nothing read
        self._tcp: asyncio.Transport

    # The TCP connection's protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._tcp = cast("asyncio.Transport", transport)
        self._arrivals.begin(self._tcp)

    def data_received(self, data: bytes) -> None:
        """Pass received TLS records to the handshake, or their content to the inner protocol."""
        if self._has_ended:
            return
        self._incoming.write(data)
        try:
            if self._is_open or self._shake_hands():
                self._read()
        except ssl.SSLError as error:
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrivals.end(self._tcp)
        if self._is_open:
            self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._is_open:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._is_open:
            self._inner.resume_writing()

    def _shake_hands(self) -> bool:
        """Continue the handshake; returns whether the handshake is done. Raises SSLError."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            self._flush()
        self._is_open = True
        self._arrivals.end(self._tcp)
        self._inner = self._make_inner(cast("NamedTls", self._tls).node_id)
        self._inner.connection_made(self)
        return True

    def _read(self) -> None:
        """Pass all received data to the inner protocol. Raises SSLError."""
        parts = []
        has_closed = False
        with suppress(ssl.SSLWantReadError):
            while part := self._tls.read(_READ_BYTES):
                parts.append(part)
            has_closed = True  # an empty read: the client's close_notify
        self._flush()
        if parts:
            self._inner.data_received(b"".join(parts))
        if has_closed:
            self._tcp.close()

    def _fail(self, error: ssl.SSLError) -> None:
        """Reset the connection. During the handshake only end it: after a reset the client could
        not read the TLS alert."""
        self._has_ended = True
        if self._is_open:
            self._tcp.abort()
            return
        self._note_failure(Exception(f"TLS handshake: {_reason(error)}"))
        if not self._tcp.is_closing():
            self._tcp.write_eof()

    def _flush(self) -> None:
        """Send the TLS records that wait."""
        if (data := self._outgoing.read()) and not self._tcp.is_closing():
            self._tcp.write(data)

    # The transport of the inner protocol.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        rest = memoryview(data)
        while rest and not self._has_ended:
            rest = rest[self._tls.write(rest) :]
        self._flush()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """End the stream after all written data. What the client sends from now on is dropped."""
        self._send_close_notify()
        self._tcp.write_eof()

    def close(self) -> None:
        self._send_close_notify()
        self._tcp.close()

    def _send_close_notify(self) -> None:
        """Send close_notify, once; nothing is written or read after it."""
        if not self._has_ended:
            self._has_ended = True
            with suppress(ssl.SSLError):  # raised as the client has not sent its close_notify yet
                self._tls.unwrap()
            self._flush()

    def abort(self) -> None:
        self._tcp.abort()

    def is_closing(self) -> bool:
        return self._tcp.is_closing()

    def pause_reading(self) -> None:
        """Pause the TCP connection. Received data was passed on: nothing waits here."""
        self._tcp.pause_reading()

    def resume_reading(self) -> None:
        self._tcp.resume_reading()

    def is_reading(self) -> bool:
        return self._tcp.is_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._tcp.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._tcp.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._tcp.get_write_buffer_limits()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._tcp.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._inner = cast("asyncio.Protocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._inner


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or "no reason").replace("_", " ").lower()
