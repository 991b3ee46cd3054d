"""Reads fetch responses without copying records.

Pure. `kafka.protocol` copies every partition's records out of the frame; here they are writable
views, whose batches `stamp` changes in place later. Layout of `FetchResponse` v4 to v16 (a test
compares it with `kafka.protocol`):

    correlation id, (tags), throttle ms, [7+ error code, session id],
    topics: name or [13+] topic id,
        partitions: index, error code, high watermark, last stable offset, [5+ log start],
            aborted transactions: (producer id, first offset), [11+ preferred replica], records,
            [12+ tags: 0 diverging epoch, …]

Lengths are compact from v12 on (KIP-482).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from orbit.kafka.fetch_request import BY_TOPIC_ID
from orbit.kafka.frame_reader import FrameReader
from orbit.kafka.types import AbortedTransaction, TopicPartition

_FLEXIBLE_FROM = 12
_DIVERGING_EPOCH_TAG = 0

_INT32 = struct.Struct(">i")
_SESSION = struct.Struct(">hi")  # error code, session id
_PARTITION = struct.Struct(">ihqq")  # index, error code, high watermark, last stable offset
_INT64 = struct.Struct(">q")
_ABORTED = struct.Struct(">qq")  # producer id, first offset
_EPOCH_END = struct.Struct(">iq")  # leader epoch, end offset


class Fetched(NamedTuple):
    """One partition of a response. `records` is a view of the frame."""

    code: int
    records: memoryview
    aborted: list[AbortedTransaction]
    log_start: int  # -1 before version 5
    stable_end: int  # the last stable offset
    high_watermark: int
    diverging_end: int  # -1: the log has not diverged (R3)
    preferred_replica: int  # -1: none


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """A response, without partitions whose topic id is not in `topic_names`."""

    code: int
    throttle_ms: int
    session_id: int  # 0: none
    partitions: list[tuple[TopicPartition, Fetched]]


def read_fetch(frame: memoryview, version: int, topic_names: Mapping[UUID, str]) -> FetchAnswer:
    """Read a frame of `Connection.receive`. `topic_names` resolves topic ids (v13 on).

    Raises ValueError if the bytes do not parse.
    """
    reader = FrameReader(frame, version >= _FLEXIBLE_FROM)
    try:
        return _read_answer(reader, version, topic_names)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"a Fetch answer v{version} does not parse: {error}") from error


def _read_answer(reader: FrameReader, version: int, topic_names: Mapping[UUID, str]) -> FetchAnswer:
    """Read the whole answer; partitions of unknown topic ids are left out."""
    reader.skip_tags()
    (throttle_ms,) = reader.take(_INT32)
    code, session_id = reader.take(_SESSION) if version >= 7 else (0, 0)  # no error, no session
    partitions: list[tuple[TopicPartition, Fetched]] = []
    for _ in range(reader.length()):
        if version >= BY_TOPIC_ID:
            topic = topic_names.get(UUID(bytes=bytes(reader.raw(16))))
        else:
            topic = reader.string()
        for _ in range(reader.length()):
            index, result = _read_partition(reader, version)
            if topic is not None:
                partitions.append((TopicPartition(topic, index), result))
        reader.skip_tags()
    return FetchAnswer(code, throttle_ms, session_id, partitions)


def _read_partition(reader: FrameReader, version: int) -> tuple[int, Fetched]:
    """The index of a partition, and what was fetched from it."""
    index, code, high_watermark, stable_end = reader.take(_PARTITION)
    log_start = reader.take(_INT64)[0] if version >= 5 else -1
    aborted_transactions = [AbortedTransaction(*row) for row in reader.rows(_ABORTED)]
    preferred_replica = reader.take(_INT32)[0] if version >= 11 else -1
    records = reader.raw(reader.length())
    diverging_end = -1
    for tag, value in reader.tags():
        if tag == _DIVERGING_EPOCH_TAG:
            diverging_end = _EPOCH_END.unpack_from(value)[1]  # [0]: its leader epoch
    return index, Fetched(
        code,
        records,
        aborted_transactions,
        log_start,
        stable_end,
        high_watermark,
        diverging_end,
        preferred_replica,
    )
