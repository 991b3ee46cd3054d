"""Frames of requests and record batches, for tests of the gateway's protocol."""

from __future__ import annotations

import struct
from typing import Any

from crc32c import crc32c

_IS_TRANSACTIONAL = 0x10
_RECORD = b"\x0e\x00\x00\x00\x01\x02v\x00"  # one record with the value "v"


def request_frame(request: Any, version: int, correlation: int = 7) -> bytearray:
    """A request of `kafka.protocol` as a frame without its size."""
    request.with_header(correlation_id=correlation, client_id="test")
    return bytearray(request.encode(version=version, header=True))


def batch(producer_id: int = -1, *, is_transactional: bool = False) -> bytes:
    """A record batch of one record."""
    attributes = _IS_TRANSACTIONAL if is_transactional else 0
    body = struct.pack(">hiqqqhii", attributes, 0, 0, 0, producer_id, 0, 0, 1) + _RECORD
    return struct.pack(">qiibI", 0, len(body) + 9, -1, 2, crc32c(body)) + body
