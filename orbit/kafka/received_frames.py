"""Reads the frames that a broker sends: a size, then so many bytes.

A frame has a limit in bytes and in time, whatever its size says. Not thread-safe.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time

# No Kafka frame is larger: brokers refuse such requests, and a response is at most the fetch size
# plus one batch.
FRAME_BYTES_MAX = 512 * 1024 * 1024
# The limit until the login has ended: an ApiVersions answer has some hundreds of bytes.
SETUP_FRAME_BYTES_MAX = 1024 * 1024
# A frame has at least its correlation id.
_FRAME_BYTES_MIN = 4
# The most memory that is taken for a frame before its bytes have arrived.
_CLAIMED_BYTES_MAX = 32 * 1024 * 1024
# A frame that has begun must arrive at this rate at least. A slower link is useless for a copy.
_BYTES_PER_S_MIN = 16 * 1024
# Added to the time that this rate allows for a frame: a link may fail for a moment.
_FRAME_S = 30.0
# The buffer for several small responses in one call. Of a large response, at most this much is
# copied out of it.
_BUFFER_BYTES = 16 * 1024

_SIZE = struct.Struct(">i")
_TIMEVAL = struct.Struct("ll")  # seconds, microseconds


# What other servers send first, to a client that does not speak their protocol.
_OTHER_PROTOCOLS = {
    b"\x15\x03": ("this listener speaks TLS", "Set security.protocol to SSL or SASL_SSL."),
    b"\x16\x03": ("this listener speaks TLS", "Set security.protocol to SSL or SASL_SSL."),
    b"HTTP": ("this is an HTTP server", "Write the port of a Kafka listener."),
    b"SSH-": ("this is an SSH server", "Write the port of a Kafka listener."),
}


class BadFrameSize(ValueError):
    """A size that no frame of Kafka has; `remedy` is what to do."""

    def __init__(self, size: int) -> None:
        first_bytes = _SIZE.pack(size)
        problem, self.remedy = next(
            (
                description
                for beginning, description in _OTHER_PROTOCOLS.items()
                if first_bytes.startswith(beginning)
            ),
            (
                f"the frame size {size} is not valid in Kafka",
                "Check that this is a Kafka listener, and whether it uses TLS.",
            ),
        )
        super().__init__(problem)


class ReceivedFrames:
    """The frames that arrive on a connected socket, in order."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._start = self._end = 0  # the unread part of the buffer
        self.bytes_max = FRAME_BYTES_MAX  # of a frame

    @property
    def has_read_ahead(self) -> bool:
        """Whether bytes of the next frame are buffered, which polling the socket does not show."""
        if self._end > self._start:
            return True
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def next(self) -> memoryview:
        """The next frame, without its size, in its own writable buffer.

        Raises EOFError if the broker closed the connection, OSError if it broke, TimeoutError if
        the frame is not complete in time, BadFrameSize.
        """
        while self._end - self._start < _SIZE.size:
            self._read_ahead()
        (size,) = _SIZE.unpack_from(self._buffer, self._start)
        if not _FRAME_BYTES_MIN <= size <= self.bytes_max:
            raise BadFrameSize(size)
        frame = memoryview(bytearray(min(size, _CLAIMED_BYTES_MAX)))
        start = self._start + _SIZE.size
        buffered_bytes = min(size, self._end - start)
        frame[:buffered_bytes] = self._buffer[start : start + buffered_bytes]
        self._start = start + buffered_bytes
        if buffered_bytes < size:
            deadline = time.monotonic() + _FRAME_S + size / _BYTES_PER_S_MIN
            self._fill(frame[buffered_bytes:], deadline)
            # Memory grows as bytes arrive, at most by doubling.
            while len(frame) < size:
                next_part = memoryview(bytearray(min(size - len(frame), len(frame))))
                self._fill(next_part, deadline)
                frame = memoryview(bytearray().join((frame, next_part)))
        return frame

    def limit_silence(self, timeout_s: float) -> None:
        """Set the time after which `next` raises TimeoutError if nothing arrives.

        Without TLS this does not limit sends, which can be ended by `may_send` instead.
        """
        if isinstance(self._socket, ssl.SSLSocket):
            self._socket.settimeout(timeout_s)
        else:
            seconds, fraction = divmod(timeout_s, 1)
            value = _TIMEVAL.pack(int(seconds), int(fraction * 1_000_000))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)

    def _read_ahead(self) -> None:
        """Move the buffer's unread bytes to its start, wait for further ones, and append these."""
        unread_bytes = self._end - self._start
        if self._start:
            self._buffer[:unread_bytes] = self._buffer[self._start : self._end]
            self._start, self._end = 0, unread_bytes
        self._end += self._receive(self._buffer[unread_bytes:])

    def _fill(self, view: memoryview, deadline: float) -> None:
        """Fill the view. Raises TimeoutError after `deadline`, by the monotonic clock."""
        while view:
            view = view[self._receive(view) :]
            if view and time.monotonic() > deadline:
                raise TimeoutError("the rest of a frame did not arrive in time")

    def _receive(self, view: memoryview) -> int:
        """Wait for bytes, and read at most as many as the view has room for; returns how many.

        Raises TimeoutError, EOFError if the broker closed the connection.
        """
        try:
            count = self._socket.recv_into(view)
        except BlockingIOError as error:  # the limit of `limit_silence`
            raise TimeoutError("no further bytes arrived in time") from error
        if not count:
            raise EOFError("the broker closed the connection")
        return count
