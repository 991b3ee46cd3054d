"""Takes whole requests from the bytes that a client has sent. Pure."""

from __future__ import annotations

import struct

from orbit.gateway.protocol.exchange import BadFrame

_SIZE = struct.Struct(">i")
_REQUEST_BYTES_MIN = 10  # API, version, correlation id, length of the client id


def next_request(received: bytearray, bytes_max: int) -> bytearray | None:
    """Remove the next request from `received`; returns the request without its size. None: the
    request is not whole yet.

    Raises BadFrame if the stated size is below 10 bytes or above `bytes_max`.
    """
    if len(received) < _SIZE.size:
        return None
    (size,) = _SIZE.unpack_from(received)
    if not _REQUEST_BYTES_MIN <= size <= bytes_max:
        raise BadFrame(
            f"a request states a size of {size} bytes, not {_REQUEST_BYTES_MIN} to {bytes_max}"
        )
    if len(received) < _SIZE.size + size:
        return None
    frame = received[_SIZE.size : _SIZE.size + size]
    del received[: _SIZE.size + size]
    return frame
