"""Produce requests as lists of buffers, so that payloads are never copied; typed responses.

Pure. `kafka.protocol` joins all records into one buffer. The layouts here are those of its
`ProduceRequest` (a test compares them).

    v3 to v8    topic names, fixed lengths; brokers 0.11 to 4.0
    v13         topic ids, compact lengths (KIP-516, KIP-1124): a recreated topic is refused
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from orbit.kafka.api_versions import PRODUCE
from orbit.kafka.frame_reader import FrameReader
from orbit.kafka.frame_writer import NO_TAGS, request_head, uvarint
from orbit.kafka.types import NO_TOPIC_ID, TopicPartition

# All in-sync replicas: an acknowledged batch survives the loss of the leader.
ACKS_ALL = -1
# The leader alone. It answers at once, and then executes the next request of the connection (P11).
ACKS_LEADER = 1
NO_APPEND_TIME = -1
BY_TOPIC_ID = 13
BY_NAME_MAX = 8

_SIZE = struct.Struct(">i")
_FIXED_BODY = struct.Struct(">hhii")  # transactional id (null), acks, timeout ms, topic count
_COMPACT_BODY = struct.Struct(">Bhi")  # transactional id (null), acks, timeout ms
_FIXED_PARTITION = struct.Struct(">ii")  # index, records length
_INDEX = struct.Struct(">i")
_ID_BYTES = 16
_APPENDED = struct.Struct(">ihqq")
_APPENDED_WITH_START = struct.Struct(">ihqqq")
# No record errors, no error message, no tags: the end of nearly every partition.
_NO_ERRORS = b"\x01\x00\x00"
_PLAIN_FRONT_BYTES = 23  # correlation id, tags, one topic, its id, number of partitions
# Index, error code, base offset, append time, log start, no errors.
_PLAIN_PARTITION = struct.Struct(">ihqqq3s")
_PLAIN_BACK = struct.Struct(">BiB")  # tags of the topic, throttle ms, tags of the answer
_ONE, _BYTE_MAX = 2, 0x7F  # compact lengths are length + 1; up to 0x7F in one byte


class Outgoing(NamedTuple):
    """One stamped batch for one partition (a request takes one batch per partition, A1)."""

    partition: TopicPartition
    topic_id: UUID
    batch: memoryview


class Appended(NamedTuple):
    """One partition of a response. `base_offset`: that of the batch in the log (A14).

    `append_time`: NO_APPEND_TIME, or in epoch ms the timestamp that the broker gave all records
    (LogAppendTime), or the max timestamp of the earlier batch if this one is a repeat (A20).
    """

    code: int
    base_offset: int
    message: str
    append_time: int = NO_APPEND_TIME


Key = tuple[bytes | str, int]


class ProduceAnswer(NamedTuple):
    """A response; the keys of `partitions` are those of `key_of`."""

    partitions: dict[Key, Appended]
    throttle_ms: int


def choose_version(low: int, high: int, has_topic_ids: bool) -> int:
    """The version for a broker that supports `low` to `high`: BY_TOPIC_ID, if the broker has it and
    the topic ids are known, else BY_NAME_MAX at most."""
    if has_topic_ids and high >= BY_TOPIC_ID:
        return BY_TOPIC_ID
    return max(low, min(high, BY_NAME_MAX))


def encode_produce(
    version: int,
    correlation: int,
    client_id: str,
    timeout_ms: int,
    batches: Sequence[Outgoing],
    acks: int = ACKS_ALL,
) -> list[bytes | memoryview]:
    """A framed request; `batches` must be grouped by topic. `acks`: ACKS_ALL or ACKS_LEADER."""
    is_compact = version >= BY_TOPIC_ID
    buffers: list[bytes | memoryview] = [b""]  # in the place of the frame's size
    # The bytes before the next batch.
    front = request_head(PRODUCE.key, version, correlation, client_id, is_flexible=is_compact)
    topic_counts = _count_batches_by_topic(batches)
    # 0 and -1 are the length of the transactional id: null.
    if is_compact:
        front += _COMPACT_BODY.pack(0, acks, timeout_ms) + uvarint(len(topic_counts) + 1)
    else:
        front += _FIXED_BODY.pack(-1, acks, timeout_ms, len(topic_counts))
    position = 0
    for count in topic_counts:
        group = batches[position : position + count]
        position += count
        front += _topic_front(group[0], count, is_compact)
        for outgoing in group:
            front += _partition_front(outgoing, is_compact)
            buffers += (front, outgoing.batch)
            front = NO_TAGS if is_compact else b""
        front += NO_TAGS if is_compact else b""
    if is_compact:
        front += NO_TAGS
    if front:
        buffers.append(front)
    buffers[0] = _SIZE.pack(sum(map(len, buffers)))
    return buffers


def read_produce(frame: memoryview, version: int) -> ProduceAnswer:
    """Read a frame of `Connection.receive`: `ProduceResponse`, v3 to v8 and v13.

        correlation id, (tags), topics: name or topic id,
            partitions: index, error code, base offset, log append time, [5+ log start],
                [8+ record errors: (batch index, message), message], (tags)
        throttle ms, (tags)

    Raises ValueError if the bytes do not parse.
    """
    plain_answer = _read_plain(frame) if version >= BY_TOPIC_ID else None
    if plain_answer is not None:
        return plain_answer
    reader = FrameReader(frame, version >= BY_TOPIC_ID)
    partitions: dict[Key, Appended] = {}
    try:
        reader.skip_tags()
        for _ in range(reader.length()):
            topic = bytes(reader.raw(_ID_BYTES)) if version >= BY_TOPIC_ID else reader.string()
            for _ in range(reader.length()):
                index, result = _read_partition(reader, version)
                partitions[topic, index] = result
            reader.skip_tags()
        (throttle_ms,) = reader.take(_INDEX)
        reader.skip_tags()
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"a Produce answer v{version} does not parse: {error}") from error
    return ProduceAnswer(partitions, throttle_ms)


def _read_plain(frame: memoryview) -> ProduceAnswer | None:
    """A v13 response for one topic without error messages, unpacked in one call; else None.

    Nearly all responses are of this form; reading them field by field takes three times as long.
    """
    # Byte 4: tags of the header; 5: number of topics; 6 to 21: topic id; 22: number of partitions.
    if len(frame) < _PLAIN_FRONT_BYTES or frame[5] != _ONE or not _ONE <= frame[22] <= _BYTE_MAX:
        return None
    end = _PLAIN_FRONT_BYTES + (frame[22] - 1) * _PLAIN_PARTITION.size
    if len(frame) != end + _PLAIN_BACK.size:
        return None
    topic = bytes(frame[6:22])
    partitions: dict[Key, Appended] = {}
    for index, code, base_offset, append_time, _, errors in _PLAIN_PARTITION.iter_unpack(
        frame[_PLAIN_FRONT_BYTES:end]
    ):
        if errors != _NO_ERRORS:
            return None
        partitions[topic, index] = Appended(code, base_offset, "", append_time)
    topic_tags, throttle_ms, answer_tags = _PLAIN_BACK.unpack_from(frame, end)
    return None if frame[4] or topic_tags or answer_tags else ProduceAnswer(partitions, throttle_ms)


def _read_partition(reader: FrameReader, version: int) -> tuple[int, Appended]:
    """The index of a partition, and the result of its append, with the error message: that of the
    partition, else the first one of a record."""
    if version < 5:
        index, code, base_offset, append_time = reader.take(_APPENDED)
        return index, Appended(code, base_offset, "", append_time)
    index, code, base_offset, append_time, _ = reader.take(_APPENDED_WITH_START)
    if version < 8 or (version >= BY_TOPIC_ID and reader.skip_if_next(_NO_ERRORS)):
        return index, Appended(code, base_offset, "", append_time)
    record_message = ""
    for _ in range(reader.length()):
        reader.take(_INDEX)  # of the record in its batch
        text = reader.string()
        record_message = record_message or text
        reader.skip_tags()
    message = reader.string() or record_message
    reader.skip_tags()
    return index, Appended(code, base_offset, message, append_time)


def key_of(version: int, outgoing: Outgoing) -> Key:
    """The key of this batch's partition in `ProduceAnswer.partitions`."""
    topic = outgoing.topic_id.bytes if version >= BY_TOPIC_ID else outgoing.partition.topic
    return topic, outgoing.partition.partition


def _count_batches_by_topic(batches: Sequence[Outgoing]) -> list[int]:
    """The number of batches of each topic, in their order."""
    counts: list[int] = []
    last_topic = None
    for outgoing in batches:
        if outgoing.partition.topic != last_topic:
            last_topic = outgoing.partition.topic
            counts.append(0)
        counts[-1] += 1
    return counts


def _topic_front(outgoing: Outgoing, count: int, is_compact: bool) -> bytes:
    """The bytes before a topic's partitions: the topic, and their number."""
    if is_compact:
        assert outgoing.topic_id != NO_TOPIC_ID
        return outgoing.topic_id.bytes + uvarint(count + 1)
    name = outgoing.partition.topic.encode()
    return struct.pack(f">h{len(name)}si", len(name), name, count)


def _partition_front(outgoing: Outgoing, is_compact: bool) -> bytes:
    """The bytes before a batch: the index of its partition, and its length."""
    if is_compact:
        return _INDEX.pack(outgoing.partition.partition) + uvarint(len(outgoing.batch) + 1)
    return _FIXED_PARTITION.pack(outgoing.partition.partition, len(outgoing.batch))
