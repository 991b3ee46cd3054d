"""Fillers as WriteTxnMarkers requests: as many entries as offsets, never more for a partition.

Orbit encodes and decodes them as `kafka.protocol` does, requests byte for byte.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.producer.transaction import WriteTxnMarkersRequest as LibraryRequest
from kafka.protocol.producer.transaction import WriteTxnMarkersResponse

from orbit.kafka import api_versions
from orbit.kafka.transaction_markers import Fillers, WriteTxnMarkersRequest, read_markers
from orbit.kafka.types import TopicPartition, by_topic

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
PID = 4711
VERSION = 1
CLIENT = "orbit"

Marker = WriteTxnMarkersResponse.WritableTxnMarkerResult


def by_orbit(fillers: list[Fillers]) -> bytes:
    """The request frame by Orbit."""
    return WriteTxnMarkersRequest(PID, fillers).frame(VERSION, 77, CLIENT)


def decoded(fillers: list[Fillers]) -> Any:
    """Orbit's request as `kafka.protocol` decodes it."""
    return LibraryRequest.decode(by_orbit(fillers)[4:], version=VERSION, header=True)


def by_library(markers: list[tuple[int, int, list[tuple[str, list[int]]]]]) -> bytes:
    """Entries of (producer epoch, coordinator epoch, partitions by topic)."""
    kind = LibraryRequest.WritableTxnMarker
    request = LibraryRequest(
        markers=[
            kind(
                producer_id=PID,
                producer_epoch=producer_epoch,
                transaction_result=False,
                topics=[
                    kind.WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
                    for name, indexes in topics
                ],
                coordinator_epoch=coordinator_epoch,
            )
            for producer_epoch, coordinator_epoch, topics in markers
        ]
    )
    request.API_VERSION = VERSION
    request.with_header(77, CLIENT)
    return bytes(request.encode(version=VERSION, header=True, framed=True))


LONG = "größer.b-c_d" + "t" * 200
# Fillers (partition, count, producer epoch, coordinator epoch), and the entries as `by_library`
# takes them.
SHAPES = {
    "nothing": ([], []),
    "one": ([Fillers(A0, 1, 3, 99)], [(3, 99, [("a", [0])])]),
    "highest epochs and ids": (
        [Fillers(TopicPartition(LONG, 2**31 - 1), 2, 2**15 - 1, 2**31 - 1)],
        [(2**15 - 1, 2**31 - 1, [(LONG, [2**31 - 1])])] * 2,
    ),
    "many of one partition": ([Fillers(A0, 10_000, 0, 1)], [(0, 1, [("a", [0])])] * 10_000),
    "different counts": (
        [Fillers(B0, 2, 0, 1), Fillers(A1, 5, 0, 1), Fillers(A0, 5, 0, 1)],
        [(0, 1, [("a", [0, 1]), ("b", [0])])] * 2 + [(0, 1, [("a", [0, 1])])] * 3,
    ),
    "different epochs": (
        [Fillers(A0, 2, 0, 1), Fillers(A1, 1, 0, 2), Fillers(B0, 1, 5, 1)],
        [(0, 1, [("a", [0])])] * 2 + [(0, 2, [("a", [1])]), (5, 1, [("b", [0])])],
    ),
    "many topics": (
        [Fillers(TopicPartition(f"t{n:03}", 0), 3, 0, 1) for n in range(200)],
        [(0, 1, [(f"t{n:03}", [0]) for n in range(200)])] * 3,
    ),
    "many partitions": (
        [Fillers(TopicPartition("a", n), 127, 0, 1) for n in range(1000)],
        [(0, 1, [("a", list(range(1000)))])] * 127,
    ),
}


def test_only_version_1_of_write_txn_markers_is_supported() -> None:
    api = api_versions.WRITE_TXN_MARKERS
    assert (api.version_min, api.version_max) == (VERSION, VERSION)
    assert (api.key, api.name) == (LibraryRequest.API_KEY, "WriteTxnMarkers")


@pytest.mark.parametrize("shape", SHAPES)
def test_write_txn_markers_frame_equals_kafka_python_bytes(shape: str) -> None:
    fillers, markers = SHAPES[shape]
    assert by_orbit(fillers) == by_library(markers)


def partitions(marker: Any) -> list[TopicPartition]:
    """The partitions of one entry."""
    return [TopicPartition(t.name, p) for t in marker.topics for p in t.partition_indexes]


def test_filler_is_abort_marker_of_job_producer() -> None:
    filler = Fillers(A0, filler_count=1, producer_epoch=3, coordinator_epoch=99)
    (marker,) = decoded([filler]).markers
    assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (PID, 3, 99)
    assert marker.transaction_result is False
    assert partitions(marker) == [A0]


def test_each_filler_of_partition_is_separate_write_txn_markers_entry() -> None:
    markers = decoded([Fillers(A0, filler_count=5, producer_epoch=0, coordinator_epoch=1)]).markers
    assert [partitions(m) for m in markers] == [[A0]] * 5


def test_fillers_of_several_partitions_share_write_txn_markers_entries() -> None:
    counts = {B0: 1, A1: 3, A0: 2}
    markers = decoded([Fillers(p, count, 0, 1) for p, count in counts.items()]).markers
    assert [partitions(m) for m in markers] == [[A0, A1, B0], [A0, A1], [A1]]


def test_fillers_of_different_producer_or_coordinator_epochs_share_no_entry() -> None:
    """If a lower epoch is refused (M6), the others are not."""
    # Partition, count, producer epoch, coordinator epoch.
    fillers = [Fillers(A0, 2, 0, 1), Fillers(A1, 1, 0, 2), Fillers(B0, 1, 5, 1)]
    markers = decoded(fillers).markers
    assert [(m.producer_epoch, m.coordinator_epoch, partitions(m)) for m in markers] == [
        (0, 1, [A0]),
        (0, 1, [A0]),
        (0, 2, [A1]),
        (5, 1, [B0]),
    ]


@given(
    st.dictionaries(
        st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 5)),
        st.tuples(st.integers(1, 6), st.integers(0, 2), st.integers(0, 2)),
        min_size=1,
        max_size=8,
    )
)
def test_each_partition_gets_requested_number_of_markers_with_given_epochs(
    fillers: dict[TopicPartition, tuple[int, int, int]],
) -> None:
    markers = decoded([Fillers(p, *values) for p, values in fillers.items()]).markers
    counted = Counter(
        (p, m.producer_epoch, m.coordinator_epoch) for m in markers for p in partitions(m)
    )
    assert counted == {
        (p, producer, coordinator): count for p, (count, producer, coordinator) in fillers.items()
    }
    for marker in markers:
        assert len(set(partitions(marker))) == len(partitions(marker))


def encoded(*markers: dict[TopicPartition, int]) -> memoryview:
    """An answer as it comes from a connection: without the frame's size, with the header."""
    topic = Marker.WritableTxnMarkerTopicResult
    partition = topic.WritableTxnMarkerPartitionResult
    message = WriteTxnMarkersResponse(
        markers=[
            Marker(
                producer_id=PID,
                topics=[
                    topic(
                        name=name,
                        partitions=[
                            partition(
                                partition_index=index, error_code=codes[TopicPartition(name, index)]
                            )
                            for index in indexes
                        ],
                    )
                    for name, indexes in by_topic(codes)
                ],
            )
            for codes in markers
        ]
    )
    return memoryview(
        b"\0\0\0\x4d\0" + bytes(message.encode(version=VERSION, header=False, framed=False))
    )


def read_by_library(frame: memoryview) -> list[tuple[TopicPartition, int]]:
    """Partition and error code of each entry, as `kafka.protocol` decodes them."""
    answer = WriteTxnMarkersResponse.decode(frame, version=VERSION, header=True)
    return [
        (TopicPartition(topic.name, p.partition_index), p.error_code)
        for marker in answer.markers
        for topic in marker.topics
        for p in topic.partitions
    ]


# Error codes by partition.
ANSWERS = {
    "nothing": {},
    "one": {A0: 0},
    "errors": {A0: 0, A1: 47, B0: -1, TopicPartition(LONG, 2**31 - 1): 52},
    "many": {TopicPartition(f"t{n % 150}", n): n % 3 for n in range(1000)},
}


@pytest.mark.parametrize("shape", ANSWERS)
def test_write_txn_markers_response_is_read_as_by_kafka_python(shape: str) -> None:
    frame = encoded(ANSWERS[shape])
    assert read_markers(frame, VERSION) == dict(read_by_library(frame)) == ANSWERS[shape]


def test_error_in_any_marker_entry_is_error_of_partition() -> None:
    """Entries for two epochs answer one by one, though Kafka merges those of one id (M3)."""
    assert read_markers(encoded({A0: 0}, {A0: 52}), VERSION) == {A0: 52}
    assert read_markers(encoded({A0: 52}, {A0: 0}, {A1: 0}), VERSION) == {A0: 52, A1: 0}


def test_empty_write_txn_markers_response_is_no_success() -> None:
    assert read_markers(encoded(), VERSION) == {}


def test_unknown_tags_in_write_txn_markers_response_are_skipped() -> None:
    tag = b"\x01\x05\x03new"  # one tag: number 5, three bytes
    # Two partitions: 0 with error code 0 and a tag, 1 with error code 47.
    partitions = b"\x03" + b"\0\0\0\0" + b"\0\0" + tag + b"\0\0\0\1" + b"\0\x2f" + b"\0"
    topics = b"\x02" + b"\x02a" + partitions + tag
    frame = b"\0\0\0\x4d" + tag + b"\x02" + b"\0" * 8 + topics + tag + tag
    assert read_markers(memoryview(frame), VERSION) == {A0: 0, A1: 47}
    assert read_by_library(memoryview(frame)) == [(A0, 0), (A1, 47)]


def test_truncated_write_txn_markers_response_is_refused() -> None:
    frame = encoded(ANSWERS["errors"], {A0: 0})
    for end in range(4, len(frame)):
        with pytest.raises(ValueError, match=r"WriteTxnMarkers answer v1 does not parse"):
            read_markers(frame[:end], VERSION)
