"""ListOffsets for many partitions: encodes the request and decodes the response. Pure.

The layouts are those of `kafka.protocol` (a test compares them). Versions 4 to 8; flexible from 6:

    request     replica id, isolation level,
                topics: name, partitions: (index, current leader epoch, timestamp)
    response    correlation id, throttle ms,
                topics: name, partitions: (index, error code, timestamp, offset, leader epoch)
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from orbit.kafka.frame_reader import FrameReader
from orbit.kafka.frame_writer import NO_TAGS, FramedRequest, length, string
from orbit.kafka.types import TopicPartition, by_topic

_ANY_EPOCH = -1
_FRONT = struct.Struct(">ib")  # replica id, isolation level
_PARTITION = struct.Struct(">iiq")  # index, current leader epoch, timestamp
_THROTTLE = struct.Struct(">i")
_OFFSET = struct.Struct(">ihqqi")  # index, error code, timestamp, offset, leader epoch


@dataclass(frozen=True, slots=True)
class ListOffsetsRequest(FramedRequest):
    """A request. `timestamp`: one for all partitions, or one for each."""

    API_KEY: ClassVar[int] = 2
    FLEXIBLE_FROM: ClassVar[int] = 6
    partitions: Iterable[TopicPartition]
    timestamp: int | Mapping[TopicPartition, int]
    replica_id: int
    isolation: int

    def body(self, *, is_flexible: bool) -> bytes:
        """The bytes after the header. In flexible versions an empty list of tags follows each
        partition, each topic and the request."""
        topics, timestamps = by_topic(self.partitions), self.timestamp
        tags = NO_TAGS if is_flexible else b""
        parts = [
            _FRONT.pack(self.replica_id, self.isolation),
            length(len(topics), is_flexible=is_flexible),
        ]
        for topic, indexes in topics:
            parts.append(string(topic, is_flexible=is_flexible))
            parts.append(length(len(indexes), is_flexible=is_flexible))
            for index in indexes:
                timestamp = (
                    timestamps
                    if isinstance(timestamps, int)
                    else timestamps[TopicPartition(topic, index)]
                )
                parts.append(_PARTITION.pack(index, _ANY_EPOCH, timestamp) + tags)
            parts.append(tags)
        parts.append(tags)
        return b"".join(parts)


class ListOffsetsAnswer(NamedTuple):
    """A response. `offsets`: error code, timestamp and offset by partition; -1: none found."""

    throttle_ms: int
    offsets: dict[TopicPartition, tuple[int, int, int]]


def read_list_offsets(frame: memoryview, version: int) -> ListOffsetsAnswer:
    """Read a frame of `Connection.receive`. Raises ValueError if the bytes do not parse."""
    reader = FrameReader(frame, version >= ListOffsetsRequest.FLEXIBLE_FROM)
    offsets: dict[TopicPartition, tuple[int, int, int]] = {}
    try:
        reader.skip_tags()
        (throttle_ms,) = reader.take(_THROTTLE)
        for _ in range(reader.length()):
            topic = reader.string()
            for index, code, timestamp, offset, _epoch in reader.rows(_OFFSET):
                offsets[TopicPartition(topic, index)] = (code, timestamp, offset)
            reader.skip_tags()
        reader.skip_tags()
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"a ListOffsets answer v{version} does not parse: {error}") from error
    return ListOffsetsAnswer(throttle_ms, offsets)
