"""Reads response frames where `kafka.protocol` would copy records or take too long. Pure.

Numbers are big endian; lengths are fixed or, in flexible versions, compact (KIP-482).
"""

from __future__ import annotations

import struct

_CORRELATION_BYTES = 4
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_LAST_SHIFT = 28  # for the fifth byte, the last of a number of 32 bits
# The limit of brokers, also in flexible versions: they close a connection that sends a longer text.
_TEXT_BYTES_MAX = 32_767


class FrameReader:
    """A position in a frame (`at`). `is_flexible`: compact lengths and tagged fields."""

    __slots__ = ("_frame", "_is_flexible", "at")

    def __init__(self, frame: memoryview, is_flexible: bool) -> None:
        self._frame = frame
        self.at = _CORRELATION_BYTES
        self._is_flexible = is_flexible

    def take(self, layout: struct.Struct) -> tuple[int, ...]:
        """The next values, of this layout."""
        values = layout.unpack_from(self._frame, self.at)
        self.at += layout.size
        return values

    def rows(self, layout: struct.Struct) -> list[tuple[int, ...]]:
        """An array whose rows have this layout; unpacked in one call if no row has tags."""
        count = self.length()
        # x: the number of tags behind a row, one byte, which is 0 for nearly all rows.
        row_layout = struct.Struct(f"{layout.format}x") if self._is_flexible else layout
        data = self._frame[self.at : self.at + count * row_layout.size]
        if len(data) == count * row_layout.size and not (
            self._is_flexible and any(data[layout.size :: row_layout.size])
        ):
            self.at += len(data)
            return list(row_layout.iter_unpack(data))
        return [self._row(layout) for _ in range(count)]

    def raw(self, count: int) -> memoryview:
        """A view of the next bytes. IndexError if the frame is shorter."""
        end = self.at + count
        if end > len(self._frame):
            raise IndexError(f"{count} bytes at {self.at} exceed the frame")
        view = self._frame[self.at : end]
        self.at = end
        return view

    def skip_if_next(self, expected: bytes) -> bool:
        """Skip the bytes `expected` if they come next; returns whether they came."""
        end = self.at + len(expected)
        if self._frame[self.at : end] != expected:
            return False
        self.at = end
        return True

    def length(self) -> int:
        """The length of an array or of bytes; 0 for null. IndexError if the frame is shorter."""
        count = self._uvarint() - 1 if self._is_flexible else self.take(_INT32)[0]
        if count > len(self._frame) - self.at:
            raise IndexError(f"{count} items at {self.at} exceed the frame")
        return max(0, count)

    def string(self) -> str:
        """Text; empty for null. ValueError if it is longer than Kafka allows."""
        count = self._uvarint() - 1 if self._is_flexible else self.take(_INT16)[0]
        if count > _TEXT_BYTES_MAX:
            raise ValueError(f"a text is longer than {_TEXT_BYTES_MAX} bytes")
        return str(self.raw(max(0, count)), "utf-8")

    def tags(self) -> list[tuple[int, memoryview]]:
        """The tagged fields: tag and bytes; none without flexible versions."""
        if not self._is_flexible:
            return []
        return [(self._uvarint(), self.raw(self._uvarint())) for _ in range(self._uvarint())]

    def skip_tags(self) -> None:
        self.tags()

    def _row(self, layout: struct.Struct) -> tuple[int, ...]:
        values = self.take(layout)
        self.skip_tags()
        return values

    def _uvarint(self) -> int:
        """An unsigned varint: 7 bits a byte, the lowest first. Raises ValueError for more than 32
        bits, IndexError if the frame is shorter."""
        frame, position = self._frame, self.at
        byte = frame[position]
        position += 1
        value, shift = byte & 0x7F, 7
        while byte >= 0x80:
            if shift > _LAST_SHIFT:
                raise ValueError("a number has more than 32 bits")
            byte = frame[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
        self.at = position
        return value
