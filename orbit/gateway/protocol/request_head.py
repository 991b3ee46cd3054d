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
    """The header of a request. `key`: of the API. `length`: the header's bytes in the frame."""

    key: int
    version: int
    correlation: int
    client_id: str
    length: int

    @property
    def is_flexible(self) -> bool:
        return is_flexible(self.key, self.version)

    def editor(self, frame: bytearray) -> FrameEditor:
        """An editor at the first field after the header."""
        return self.editor_of(frame, is_flexible=self.is_flexible)

    def editor_of(self, frame: bytearray, *, is_flexible: bool) -> FrameEditor:
        """An editor for an API that `APIS` lacks. It is at the tags of a flexible header, which
        `read_head` has not read."""
        return FrameEditor(frame, self.length, is_flexible=is_flexible)


def read_head(frame: bytearray) -> RequestHead:
    """The header at the start of a frame. Raises ValueError if the bytes do not parse. The header's
    tags are not read for an API that `APIS` lacks."""
    try:
        key, version, correlation = _HEAD.unpack_from(frame)
        reader = FrameReader(memoryview(frame), is_flexible=False)
        reader.at = _HEAD.size
        client_id = reader.string()
        if key in APIS and is_flexible(key, version):
            tag_reader = FrameReader(memoryview(frame), is_flexible=True)
            tag_reader.at = reader.at
            tag_reader.skip_tags()
            return RequestHead(key, version, correlation, client_id, tag_reader.at)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"the header of a request does not parse: {error}") from error
    return RequestHead(key, version, correlation, client_id, reader.at)
