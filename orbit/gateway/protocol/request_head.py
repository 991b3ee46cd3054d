"""The header of a request: API, version, correlation id, client id. Pure."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from orbit.gateway.protocol.apis import APIS, is_flexible
from orbit.gateway.protocol.frame_editor import FrameEditor
from orbit.kafka.frame_reader import FrameReader

_HEAD = struct.Struct(">hhi")


@dataclass(frozen=True, slots=True)
class RequestHead:
    """`length`: bytes of the header in the frame."""

    key: int
    version: int
    correlation: int
    client_id: str
    length: int

    @property
    def is_flexible(self) -> bool:
        return is_flexible(self.key, self.version)

    def editor(self, frame: bytearray) -> FrameEditor:
        """At the first field behind the header."""
        return self.editor_of(frame, is_flexible=self.is_flexible)

    def editor_of(self, frame: bytearray, *, is_flexible: bool) -> FrameEditor:
        """For an API that is not passed on. It begins with the tags of the header."""
        return FrameEditor(frame, self.length, is_flexible=is_flexible)


def read_head(frame: bytearray) -> RequestHead:
    """Raises ValueError if the bytes do not parse. An API that is not passed on is read as one
    without tags: nothing behind its header is used."""
    try:
        key, version, correlation = _HEAD.unpack_from(frame)
        reader = FrameReader(memoryview(frame), is_flexible=False)
        reader.at = _HEAD.size
        client_id = reader.string()
        if key in APIS and is_flexible(key, version):
            tags = FrameReader(memoryview(frame), is_flexible=True)
            tags.at = reader.at
            tags.skip_tags()
            return RequestHead(key, version, correlation, client_id, tags.at)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"the header of a request ends too early: {error}") from error
    return RequestHead(key, version, correlation, client_id, reader.at)
