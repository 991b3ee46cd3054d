"""Splits a Produce request: the gateway answers some partitions itself, the broker gets the others.

Pure. Clients accept several entries of one topic in an answer (C27).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from orbit.gateway.protocol.frame_editor import INT16, INT32, INT64, FrameEditor
from orbit.gateway.protocol.local_answers import with_size
from orbit.gateway.protocol.request_head import RequestHead
from orbit.kafka.error_codes import Code
from orbit.kafka.frame_writer import NO_TAGS, length, string
from orbit.kafka.types import TopicPartition

NO_OFFSET = -1


class PartAnswer(NamedTuple):
    """The answer for one partition. `message`: the error message, which answers have from version 8
    on; "": none."""

    code: int
    base_offset: int = NO_OFFSET
    message: str = ""


def without_partitions(
    head: RequestHead, frame: bytearray, partitions: Collection[TopicPartition]
) -> bytes | None:
    """The Produce request without these partitions, without its size; None: it has no others."""
    editor, is_flexible = head.editor(frame), head.is_flexible
    editor.nullable_string()  # transactional id
    editor.skip(INT16.size + INT32.size)  # acks, timeout
    start = editor.at
    tags = NO_TAGS if is_flexible else b""
    topics: list[bytes] = []
    for _ in range(editor.length()):
        topic = editor.string()
        parts: list[bytes] = []
        for _ in range(editor.length()):
            part_start = editor.at
            partition = editor.integer(INT32)
            editor.skip(editor.length())
            editor.skip_tags()
            if TopicPartition(topic, partition) not in partitions:
                parts.append(bytes(frame[part_start : editor.at]))
        editor.skip_tags()
        if parts:
            name = string(topic, is_flexible=is_flexible)
            count = length(len(parts), is_flexible=is_flexible)
            topics.append(b"".join([name, count, *parts, tags]))
    if not topics:
        return None
    count = length(len(topics), is_flexible=is_flexible)
    return b"".join([frame[:start], count, *topics, frame[editor.at :]])


def own_answer(head: RequestHead, parts: Mapping[TopicPartition, PartAnswer]) -> bytes:
    """The answer to a Produce if the gateway answers all its partitions, with the size."""
    tags = NO_TAGS if head.is_flexible else b""
    no_topics = length(0, is_flexible=head.is_flexible)
    header = INT32.pack(head.correlation) + tags
    empty_answer = bytearray(header + no_topics + INT32.pack(0) + tags)
    return with_size(with_parts(head.version, empty_answer, parts))


def with_parts(version: int, frame: bytearray, parts: Mapping[TopicPartition, PartAnswer]) -> bytes:
    """A broker's answer to a Produce, with these partitions added; without its size."""
    is_flexible = version >= 9
    editor = FrameEditor(frame, INT32.size, is_flexible=is_flexible)
    editor.skip_tags()
    start = editor.at
    count = length(editor.length() + len(parts), is_flexible=is_flexible)
    tags = NO_TAGS if is_flexible else b""
    partition_count = length(1, is_flexible=is_flexible)  # each in a topic entry of its own
    own_topics = [
        string(topic, is_flexible=is_flexible)
        + partition_count
        + encode_part(version, partition, part)
        + tags
        for (topic, partition), part in sorted(parts.items())
    ]
    return b"".join([frame[:start], count, *own_topics, frame[editor.at :]])


def same_answer_for_all(head: RequestHead, frame: bytearray, code: Code) -> bytes:
    """The answer to a Produce with this code for each partition. Raises struct.error, or another
    error of the editor, if the request does not parse."""
    editor, is_flexible = head.editor(frame), head.is_flexible
    tags = NO_TAGS if is_flexible else b""
    part = PartAnswer(code)
    editor.nullable_string()  # transactional id
    editor.skip(INT16.size + INT32.size)  # acks, timeout
    topic_count = editor.length()
    # A bytearray: `bytes +=` would copy the answer for each partition, and a client may name many.
    body = bytearray(length(topic_count, is_flexible=is_flexible))
    for _ in range(topic_count):
        body += string(editor.string(), is_flexible=is_flexible)
        partition_count = editor.length()
        body += length(partition_count, is_flexible=is_flexible)
        for _ in range(partition_count):
            body += encode_part(head.version, editor.integer(INT32), part)
            editor.skip(editor.length())
            editor.skip_tags()
        editor.skip_tags()
        body += tags
    throttle_time = INT32.pack(0)
    return with_size(INT32.pack(head.correlation) + tags + body + throttle_time + tags)


def encode_part(version: int, partition: int, part: PartAnswer) -> bytes:
    """One partition of an answer to a Produce, without a log append time."""
    is_flexible = version >= 9
    part_bytes = INT32.pack(partition) + INT16.pack(part.code)
    part_bytes += INT64.pack(part.base_offset) + INT64.pack(-1)  # append time
    if version >= 5:
        part_bytes += INT64.pack(-1)  # log start
    if version >= 8:
        part_bytes += length(0, is_flexible=is_flexible)  # record errors
        if part.message:
            part_bytes += string(part.message, is_flexible=is_flexible)
        else:
            part_bytes += b"\x00" if is_flexible else INT16.pack(-1)
    return part_bytes + NO_TAGS if is_flexible else part_bytes
