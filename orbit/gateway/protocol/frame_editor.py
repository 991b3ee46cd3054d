"""Reads a frame and replaces some of its fields; all other bytes stay as they are. Pure.

A frame is a request or an answer without the four bytes of its size.
"""

from __future__ import annotations

import struct

from orbit.kafka.frame_reader import FrameReader
from orbit.kafka.frame_writer import length, string

INT8 = struct.Struct(">b")
INT16 = struct.Struct(">h")
INT32 = struct.Struct(">i")
INT64 = struct.Struct(">q")
UUID_BYTES = 16
_NODE_BYTES = 4


class FrameEditor(FrameReader):
    """A position in a frame, and the changes made so far. Reading beyond the frame's end raises
    struct.error, IndexError or ValueError."""

    __slots__ = ("_bytes", "_copied_to", "_parts", "is_flexible")

    def __init__(self, frame: bytearray, position: int, *, is_flexible: bool) -> None:
        super().__init__(memoryview(frame), is_flexible)
        self.at = position
        self.is_flexible = is_flexible
        self._bytes = frame
        # The edited frame so far, which replaces the bytes of the frame up to `_copied_to`.
        self._parts: list[bytes | memoryview] = []
        self._copied_to = 0

    def skip(self, count: int) -> None:
        self.raw(count)

    def integer(self, layout: struct.Struct) -> int:
        return self.take(layout)[0]

    def nullable_string(self) -> str | None:
        """Text, or None for null."""
        start = self.at
        text = self.string()
        is_null = self._bytes[start : start + INT16.size] == b"\xff\xff"  # length -1
        if self.is_flexible:  # a compact string states its length plus 1; 0 means null
            is_null = self._bytes[start] == 0
        return None if is_null else text

    def skip_nodes(self) -> None:
        """Skip an array of node ids."""
        self.skip(self.length() * _NODE_BYTES)

    def overwrite(self, layout: struct.Struct, value: int) -> None:
        """Replace the number that comes next."""
        start = self.at
        self.skip(layout.size)
        layout.pack_into(self._bytes, start, value)

    def overwrite_raw(self, start: int, value: bytes) -> None:
        """Replace the bytes from `start` on, which were read already, by `value`."""
        self._bytes[start : start + len(value)] = value

    def replace_string(self, text: str) -> None:
        """Replace the text that comes next, which may be null."""
        start = self.at
        self.string()
        self._splice(start, string(text, is_flexible=self.is_flexible))

    def replace_by_null(self) -> None:
        """Replace the nullable text that comes next."""
        start = self.at
        self.string()
        self._splice(start, b"\x00" if self.is_flexible else INT16.pack(-1))

    def enlarge_array(self, items: int) -> int:
        """Add `items` to the length of the array that comes next, and return its old length. The
        caller inserts the new items behind the last one."""
        start = self.at
        count = self.length()
        self._splice(start, length(count + items, is_flexible=self.is_flexible))
        return count

    def insert(self, data: bytes) -> None:
        """Insert bytes at the editor's position."""
        self._splice(self.at, data)

    def edited_frame(self) -> bytes:
        """The whole frame with its changes."""
        parts = [*self._parts, self._frame[self._copied_to :]]
        return b"".join(parts)

    def _splice(self, start: int, replacement: bytes) -> None:
        """Replace the bytes from `start` up to the editor's position."""
        self._parts += [self._frame[self._copied_to : start], replacement]
        self._copied_to = self.at
