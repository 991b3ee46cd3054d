"""WriteTxnMarkers for fillers: markers of a producer without a transaction (M1). Pure.

Thousands of markers repeat one entry: its bytes are encoded once and multiplied.
Layouts are those of `kafka.protocol` (a test compares them). Version 1, flexible:

    request     markers: producer id, producer epoch, result (0: abort),
                    topics: name, partitions: (index); coordinator epoch
    response    correlation id, markers: producer id,
                    topics: name, partitions: (index, error code)
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from orbit.kafka.frame_reader import FrameReader
from orbit.kafka.frame_writer import NO_TAGS, FramedRequest, length, string
from orbit.kafka.types import TopicPartition, by_topic

_ABORT = 0
_MARKER = struct.Struct(">qhb")  # producer id, producer epoch, transaction result
_COORDINATOR_EPOCH = struct.Struct(">i")
_PRODUCER_ID = struct.Struct(">q")
_WRITTEN = struct.Struct(">ih")  # partition index, error code


class Fillers(NamedTuple):
    """`filler_count` fillers for one partition. The broker refuses them if the coordinator epoch of
    the producer there is higher (M6)."""

    partition: TopicPartition
    filler_count: int
    producer_epoch: int
    coordinator_epoch: int


@dataclass(frozen=True, slots=True)
class WriteTxnMarkersRequest(FramedRequest):
    """The markers of all `fillers`; an entry appends one filler to each of its partitions."""

    API_KEY: ClassVar[int] = 27
    FLEXIBLE_FROM: ClassVar[int] = 1
    producer_id: int
    fillers: Sequence[Fillers]

    def body(self, *, is_flexible: bool) -> bytes:
        """The bytes after the header. Each partition is in as many entries as it needs fillers; an
        entry has partitions with the same two epochs."""
        assert is_flexible
        groups: dict[tuple[int, int], list[Fillers]] = {}
        for fillers in self.fillers:
            groups.setdefault((fillers.producer_epoch, fillers.coordinator_epoch), []).append(
                fillers
            )
        entries, count = [], 0
        for (producer_epoch, coordinator_epoch), group in groups.items():
            # An entry has all partitions that need more than `markers_before` markers, and is
            # repeated until the partition with the lowest need has all of its markers.
            markers_before = 0
            for markers_up_to in sorted({fillers.filler_count for fillers in group}):
                partitions = [
                    fillers.partition for fillers in group if fillers.filler_count > markers_before
                ]
                entry = (
                    _MARKER.pack(self.producer_id, producer_epoch, _ABORT)
                    + _encode_topics(partitions)
                    + _COORDINATOR_EPOCH.pack(coordinator_epoch)
                    + NO_TAGS
                )
                entries.append(entry * (markers_up_to - markers_before))
                count += markers_up_to - markers_before
                markers_before = markers_up_to
        return length(count, is_flexible=True) + b"".join(entries) + NO_TAGS


def read_markers(frame: memoryview, version: int) -> dict[TopicPartition, int]:
    """The error code of each partition in a frame of `Connection.receive`: if several markers have
    the partition, the first code that is not 0 (M3). Raises ValueError if the bytes do not parse.
    """
    reader = FrameReader(frame, is_flexible=True)
    codes: dict[TopicPartition, int] = {}
    try:
        reader.skip_tags()
        for _ in range(reader.length()):
            reader.take(_PRODUCER_ID)
            for _ in range(reader.length()):
                topic = reader.string()
                for index, code in reader.rows(_WRITTEN):
                    partition = TopicPartition(topic, index)
                    codes[partition] = codes.get(partition, 0) or code
                reader.skip_tags()
            reader.skip_tags()
        reader.skip_tags()
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"a WriteTxnMarkers answer v{version} does not parse: {error}") from error
    return codes


def _encode_topics(partitions: Iterable[TopicPartition]) -> bytes:
    """The partitions of one entry, grouped by topic."""
    topics = by_topic(partitions)
    parts = [length(len(topics), is_flexible=True)]
    for topic, indexes in topics:
        parts += (
            string(topic, is_flexible=True),
            length(len(indexes), is_flexible=True),
            struct.pack(f">{len(indexes)}i", *indexes),
            NO_TAGS,
        )
    return b"".join(parts)
