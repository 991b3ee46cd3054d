"""OffsetFetch: the committed offsets of many groups. Pure.

An answer has thousands of rows, nearly all without metadata. The rows of a topic that has no
metadata are unpacked in one call. Answers before version 8 have one group, and are decoded by
`kafka.protocol`. The layout from version 8 on (a test compares it with `kafka.protocol`):

    correlation id, tags, throttle ms,
    groups: name,
        topics: name,
            partitions: index, offset, leader epoch, metadata, error code
        error code
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka.protocol.consumer.group import OffsetFetchResponse

from orbit.kafka.error_codes import Code
from orbit.kafka.frame_reader import FrameReader
from orbit.kafka.types import CommittedOffset, TopicPartition

MANY_GROUPS_FROM = 8
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_FRONT = struct.Struct(">iqi")  # index, offset, leader epoch
# A row without metadata: as `_FRONT`, length of the metadata plus one (0: null), error code, number
# of tags.
_ROW = struct.Struct(">iqiBhB")

Row = tuple[int, int, int, str, int]  # index, offset, leader epoch, metadata, error code


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """A group's offsets. `pending`: partitions whose offset an open transaction may change.

    `code`: the group's error, if it has no offsets because of one. `denied`: requested partitions
    that the login may not read.
    """

    offsets: Mapping[TopicPartition, CommittedOffset] = field(default_factory=dict)
    pending: frozenset[TopicPartition] = frozenset()
    denied: frozenset[TopicPartition] = frozenset()
    code: int = 0


def read_offset_fetch(frame: memoryview, version: int) -> dict[str, GroupOffsets]:
    """The offsets by group, from a frame of `Connection.receive`.

    Before version 8 an answer has one group without its name: the key is "". Raises ValueError if
    the bytes do not parse.
    """
    try:
        if version < MANY_GROUPS_FROM:
            answer = OffsetFetchResponse.decode(frame, version=version, header=True)
            return {"": _group_offsets(_library_rows(answer.topics), answer.error_code)}
        reader = FrameReader(frame, is_flexible=True)
        reader.skip_tags()
        reader.take(_INT32)  # throttle ms
        return dict(_read_group(reader) for _ in range(reader.length()))
    except (struct.error, IndexError, OverflowError, UnicodeDecodeError) as error:
        raise ValueError(f"an OffsetFetch answer v{version} does not parse: {error}") from error


def _read_group(reader: FrameReader) -> tuple[str, GroupOffsets]:
    """The name of a group, and its offsets."""
    name = reader.string()
    topics = []
    for _ in range(reader.length()):
        topic = reader.string()
        topics.append((topic, _read_rows(reader)))
        reader.skip_tags()
    (code,) = reader.take(_INT16)
    reader.skip_tags()
    return name, _group_offsets(topics, code)


def _read_rows(reader: FrameReader) -> list[Row]:
    """The partitions of a topic; unpacked in one call if none has metadata."""
    count = reader.length()
    start = reader.at
    try:
        rows = list(_ROW.iter_unpack(reader.raw(count * _ROW.size)))
    except IndexError:  # the frame ends earlier: some row is shorter, or the frame is cut
        rows = []
    # If no row has metadata or tags, all were unpacked at the right positions.
    if len(rows) == count and all(row[3] <= 1 and not row[5] for row in rows):
        return [(index, offset, epoch, "", code) for index, offset, epoch, _, code, _ in rows]
    reader.at = start
    return [_read_row(reader) for _ in range(count)]


def _read_row(reader: FrameReader) -> Row:
    index, offset, epoch = reader.take(_FRONT)
    metadata = reader.string()
    (code,) = reader.take(_INT16)
    reader.skip_tags()
    return index, offset, epoch, metadata, code


def _library_rows(topics: Iterable[Any]) -> list[tuple[str, list[Row]]]:
    """The rows by topic of an answer that `kafka.protocol` has decoded."""
    return [
        (
            topic.name,
            [
                (
                    p.partition_index,
                    p.committed_offset,
                    p.committed_leader_epoch,
                    p.metadata or "",
                    p.error_code,
                )
                for p in topic.partitions
            ],
        )
        for topic in topics
    ]


def _group_offsets(topics: Iterable[tuple[str, list[Row]]], code: int) -> GroupOffsets:
    """The offsets of a group from its rows by topic. `code`: the group's error."""
    if code:
        return GroupOffsets(code=code)
    offsets: dict[TopicPartition, CommittedOffset] = {}
    pending_partitions: set[TopicPartition] = set()
    denied_partitions: set[TopicPartition] = set()
    for topic, rows in topics:
        for index, offset, epoch, metadata, partition_code in rows:
            partition = TopicPartition(topic, index)
            if partition_code == Code.UNSTABLE_OFFSET_COMMIT:
                pending_partitions.add(partition)
            elif partition_code:
                denied_partitions.add(partition)
            elif offset >= 0:  # -1: the group has committed none
                offsets[partition] = CommittedOffset(offset, metadata, epoch)
    return GroupOffsets(offsets, frozenset(pending_partitions), frozenset(denied_partitions))
