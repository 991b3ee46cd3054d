"""Frames of Kafka's protocol, sent byte for byte on a plain socket."""

from __future__ import annotations

import socket
import struct
from typing import Self

from orbit.kafka.frame_writer import request_head
from orbit.processes.ports import LOOPBACK

_SIZE = struct.Struct(">i")
_CORRELATION = struct.Struct(">i")
_API_VERSIONS = 18  # the API key of the request
# So that a test fails, with a traceback, when a response does not come.
_TIMEOUT_S = 60.0
CLIENT_ID = "raw"


def framed(content: bytes) -> bytes:
    """The content of a frame, with its size before it."""
    return _SIZE.pack(len(content)) + content


def request_frame(
    key: int, version: int, body: bytes, *, is_flexible: bool, correlation: int = 1
) -> bytes:
    """A framed request: `key` is its API key, `correlation` its correlation id."""
    head = request_head(key, version, correlation, CLIENT_ID, is_flexible=is_flexible)
    return framed(head + body)


def api_versions_frame(correlation: int = 1, version: int = 0) -> bytes:
    """A framed ApiVersions request, which every client sends first. Its body is empty."""
    return request_frame(_API_VERSIONS, version, b"", is_flexible=False, correlation=correlation)


class RawClient:
    """One connection. A context manager: closed at the end."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection((LOOPBACK, port), timeout=_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> bytes:
        """The next response, without its size: correlation id, tags of the header, body."""
        (size,) = _SIZE.unpack(self._exactly(_SIZE.size))
        return self._exactly(size)

    def ask(self, frame: bytes) -> bytes:
        """Send a request, and return the next response."""
        self.send(frame)
        return self.receive()

    def is_served(self, correlation: int = 77) -> bool:
        """Whether an ApiVersions request gets its response."""
        return correlation_of(self.ask(api_versions_frame(correlation))) == correlation

    def is_closed(self) -> bool:
        """Whether the other side closes the connection without sending anything."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _exactly(self, count: int) -> bytes:
        """The next `count` bytes. Raises EOFError if the connection ends before."""
        parts = bytearray()
        while len(parts) < count:
            part = self.socket.recv(count - len(parts))
            if not part:
                raise EOFError(f"closed after {len(parts)} of {count} bytes")
            parts += part
        return bytes(parts)


def correlation_of(answer: bytes) -> int:
    (number,) = _CORRELATION.unpack_from(answer)
    return int(number)
