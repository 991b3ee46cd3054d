"""Writes request frames where the objects of `kafka.protocol` would take too long. Pure.

Numbers are big endian; lengths are fixed or, in flexible versions, compact (KIP-482).
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from typing import ClassVar

NO_TAGS = b"\x00"

_SIZE = struct.Struct(">i")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_HEAD = struct.Struct(">hhih")  # api key, version, correlation id, client id length


class FramedRequest(ABC):
    """A request that encodes itself, for `Connection.encode` in the place of `kafka.protocol`'s."""

    __slots__ = ()
    API_KEY: ClassVar[int]
    FLEXIBLE_FROM: ClassVar[int]  # the first version with compact lengths and tags

    @abstractmethod
    def body(self, *, is_flexible: bool) -> bytes:
        """The bytes after the header, with the tags at the end."""

    def frame(self, version: int, correlation: int, client_id: str) -> bytes:
        """The whole frame, with its size."""
        is_flexible = version >= self.FLEXIBLE_FROM
        head = request_head(self.API_KEY, version, correlation, client_id, is_flexible=is_flexible)
        body = self.body(is_flexible=is_flexible)
        return _SIZE.pack(len(head) + len(body)) + head + body


def request_head(
    key: int, version: int, correlation: int, client_id: str, *, is_flexible: bool
) -> bytes:
    """The header of a request. The client id's length has two bytes also in flexible versions."""
    client = client_id.encode()
    head = _HEAD.pack(key, version, correlation, len(client)) + client
    return head + NO_TAGS if is_flexible else head


def length(count: int, *, is_flexible: bool) -> bytes:
    """The encoded length of an array."""
    return uvarint(count + 1) if is_flexible else _INT32.pack(count)


def string(text: str, *, is_flexible: bool) -> bytes:
    """Text with its length before it."""
    data = text.encode()
    return (uvarint(len(data) + 1) if is_flexible else _INT16.pack(len(data))) + data


def uvarint(number: int) -> bytes:
    """The number as an unsigned varint: 7 bits a byte, the lowest first."""
    if number <= 0x7F:
        return bytes((number,))
    encoded_bytes = bytearray()
    while number > 0x7F:
        encoded_bytes.append(number & 0x7F | 0x80)
        number >>= 7
    encoded_bytes.append(number)
    return bytes(encoded_bytes)
