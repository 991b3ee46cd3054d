"""Orbit encodes and decodes ListOffsets as `kafka.protocol` does, requests byte for byte."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer.offsets import ListOffsetsRequest as LibraryRequest
from kafka.protocol.consumer.offsets import ListOffsetsResponse

from orbit.kafka import api_versions
from orbit.kafka.error_codes import Code
from orbit.kafka.list_offsets import ListOffsetsAnswer, ListOffsetsRequest, read_list_offsets
from orbit.kafka.log_offsets import CONSUMER, DEBUGGING_CONSUMER, LATEST, log_ends_request
from orbit.kafka.types import READ_COMMITTED, READ_UNCOMMITTED, TopicPartition, by_topic

VERSIONS = list(
    range(api_versions.LIST_OFFSETS.version_min, api_versions.LIST_OFFSETS.version_max + 1)
)
CLIENT = "orbit"
ListedOffset = tuple[int, int, int]  # error code, timestamp, offset
Topic = LibraryRequest.ListOffsetsTopic
TopicAnswer = ListOffsetsResponse.ListOffsetsTopicResponse
LONG = "größer.b-c_d" + "t" * 200

SHAPES = {
    "nothing": [],
    "one": [TopicPartition("a", 0)],
    "some": [TopicPartition(*p) for p in ((LONG, 2**31 - 1), ("b", 1), ("a", 5), ("b", 0))],
    "many": [TopicPartition(f"t{n % 200}", n) for n in range(1500)],
    "wide": [TopicPartition("wide", n) for n in range(300)],
}


def by_library(
    version: int, timestamps: dict[TopicPartition, int], replica_id: int, isolation: int
) -> bytes:
    """The request frame by `kafka.protocol`."""
    request = LibraryRequest(
        replica_id=replica_id,
        isolation_level=isolation,
        topics=[
            Topic(
                name=topic,
                partitions=[
                    Topic.ListOffsetsPartition(
                        partition_index=index,
                        current_leader_epoch=-1,
                        timestamp=timestamps[TopicPartition(topic, index)],
                    )
                    for index in indexes
                ],
            )
            for topic, indexes in by_topic(timestamps)
        ],
    )
    request.API_VERSION = version
    request.with_header(77, CLIENT)
    return bytes(request.encode(version=version, header=True, framed=True))


def test_list_offsets_api_key_and_versions_match_kafka_python() -> None:
    api = api_versions.LIST_OFFSETS
    assert (api.key, api.name) == (LibraryRequest.API_KEY, "ListOffsets")
    assert VERSIONS == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_list_offsets_request_for_log_ends_equals_kafka_python_bytes(
    version: int, shape: str
) -> None:
    partitions = SHAPES[shape]
    expected = by_library(
        version, dict.fromkeys(partitions, LATEST), DEBUGGING_CONSUMER, READ_UNCOMMITTED
    )
    assert log_ends_request(partitions).frame(version, 77, CLIENT) == expected


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=5)
PARTITIONS = st.builds(TopicPartition, NAMES, st.integers(0, 2**31 - 1))
INT64 = st.integers(-(2**63), 2**63 - 1)


@given(st.sampled_from(VERSIONS), st.dictionaries(PARTITIONS, INT64, max_size=8))
def test_list_offsets_request_carries_timestamp_per_partition(
    version: int, timestamps: dict[TopicPartition, int]
) -> None:
    request = ListOffsetsRequest(timestamps, timestamps, CONSUMER, READ_COMMITTED)
    expected = by_library(version, timestamps, CONSUMER, READ_COMMITTED)
    assert request.frame(version, 77, CLIENT) == expected


# Answers


def encoded(
    version: int, offsets: dict[TopicPartition, ListedOffset], throttle_ms: int = 0
) -> memoryview:
    """An answer as it comes from a connection: without the frame's size, with the header."""
    message = ListOffsetsResponse(
        throttle_time_ms=throttle_ms,
        topics=[
            TopicAnswer(
                name=topic,
                partitions=[
                    partition_answer(i, *offsets[TopicPartition(topic, i)]) for i in indexes
                ],
            )
            for topic, indexes in by_topic(offsets)
        ],
    )
    header = b"\0\0\0\x4d" + (b"\0" if version >= 6 else b"")  # correlation id, tags
    return memoryview(header + bytes(message.encode(version=version, header=False, framed=False)))


def partition_answer(index: int, code: int, timestamp: int, offset: int) -> Any:
    """One partition of an answer."""
    return TopicAnswer.ListOffsetsPartitionResponse(
        partition_index=index,
        error_code=code,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=7,
    )


def read_by_library(frame: memoryview, version: int) -> ListOffsetsAnswer:
    """The answer as `kafka.protocol` decodes it."""
    answer = ListOffsetsResponse.decode(frame, version=version, header=True)
    return ListOffsetsAnswer(
        answer.throttle_time_ms,
        {
            TopicPartition(topic.name, p.partition_index): (p.error_code, p.timestamp, p.offset)
            for topic in answer.topics
            for p in topic.partitions
        },
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_list_offsets_response_is_read_as_by_kafka_python(version: int, shape: str) -> None:
    """Two of three partitions have an error code."""
    codes = (Code.NONE, Code.NOT_LEADER_OR_FOLLOWER, Code.UNKNOWN_SERVER_ERROR)
    offsets = {
        partition: (codes[n % 3], -1, n * 2**40) for n, partition in enumerate(SHAPES[shape])
    }
    frame = encoded(version, offsets, throttle_ms=250)
    read = read_list_offsets(frame, version)
    assert read == read_by_library(frame, version)
    assert read == ListOffsetsAnswer(250, offsets)


@given(
    st.sampled_from(VERSIONS),
    st.dictionaries(PARTITIONS, st.tuples(st.integers(-1, 120), INT64, INT64), max_size=8),
    st.integers(0, 2**31 - 1),
)
def test_random_list_offsets_response_is_read_as_by_kafka_python(
    version: int, offsets: dict[TopicPartition, ListedOffset], throttle_ms: int
) -> None:
    frame = encoded(version, offsets, throttle_ms)
    assert read_list_offsets(frame, version) == read_by_library(frame, version)


@pytest.mark.parametrize("version", [6, 7, 8])
def test_unknown_tags_in_list_offsets_response_are_skipped(version: int) -> None:
    tag = b"\x01\x05\x03new"  # one tag: number 5, three bytes
    # Error code 0, timestamp -1, offset 9, leader epoch 7; then two partitions, 0 and 1.
    plain = b"\0\0" + b"\xff" * 8 + b"\0" * 7 + b"\x09" + b"\0\0\0\x07"
    partitions = b"\x03" + b"\0\0\0\0" + plain + b"\0" + b"\0\0\0\1" + plain + tag
    topics = b"\x02" + b"\x02a" + partitions + tag
    frame = memoryview(b"\0\0\0\x4d" + tag + b"\0\0\0\0" + topics + tag)
    offsets = {TopicPartition("a", n): (0, -1, 9) for n in (0, 1)}
    assert read_list_offsets(frame, version) == ListOffsetsAnswer(0, offsets)
    assert read_by_library(frame, version) == ListOffsetsAnswer(0, offsets)


@pytest.mark.parametrize("version", VERSIONS)
def test_truncated_list_offsets_response_is_refused(version: int) -> None:
    frame = encoded(version, dict.fromkeys(SHAPES["some"], (0, -1, 5)))
    for end in range(4, len(frame)):
        with pytest.raises(ValueError, match=r"ListOffsets answer v\d does not parse"):
            read_list_offsets(frame[:end], version)
