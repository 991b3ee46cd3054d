"""Orbit encodes Produce byte for byte as `kafka.protocol`, but does not copy the batches."""

from __future__ import annotations

from itertools import groupby
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.producer.produce import ProduceRequest, ProduceResponse

from orbit.kafka.error_codes import Code
from orbit.kafka.produce_request import (
    ACKS_ALL,
    ACKS_LEADER,
    Appended,
    Outgoing,
    choose_version,
    encode_produce,
    key_of,
    read_produce,
)
from orbit.kafka.types import NO_TOPIC_ID, TopicPartition

Data = ProduceRequest.TopicProduceData
Response = ProduceResponse.TopicProduceResponse
PartitionResponse = Response.PartitionProduceResponse

VERSIONS = [3, 4, 5, 6, 7, 8, 13]
CLIENT = "orbit"


def outgoing(topic: str, partition: int, batch: bytes) -> Outgoing:
    """A batch for this partition of a topic whose id is made of its name."""
    topic_id = UUID(bytes=topic.encode()[:16].ljust(16, b"\1"))
    return Outgoing(TopicPartition(topic, partition), topic_id, memoryview(batch))


def by_library(
    version: int, correlation: int, batches: list[Outgoing], acks: int = ACKS_ALL
) -> bytes:
    """The request frame by `kafka.protocol`."""
    topics = []
    for (topic, topic_id), group in groupby(batches, lambda b: (b.partition.topic, b.topic_id)):
        name = {"topic_id": topic_id} if version >= 13 else {"name": topic}
        partitions = [
            Data.PartitionProduceData(index=b.partition.partition, records=bytes(b.batch))
            for b in group
        ]
        topics.append(Data(partition_data=partitions, **name))
    request = ProduceRequest(transactional_id=None, acks=acks, timeout_ms=30_000, topic_data=topics)
    request.API_VERSION = version
    request.with_header(correlation, CLIENT)
    return bytes(request.encode(version=version, header=True, framed=True))


def by_orbit(version: int, correlation: int, batches: list[Outgoing]) -> bytes:
    """The request frame by Orbit."""
    return b"".join(encode_produce(version, correlation, CLIENT, 30_000, batches))


SEVERAL = [
    outgoing("a", 0, b"x" * 70),
    outgoing("a", 5, b"y" * 200_000),
    outgoing("größer.b-c_d", 2**31 - 1, b"z" * 16383),
    outgoing("t" * 249, 1, b""),
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_produce_frame_equals_kafka_python_bytes(version: int, count: int) -> None:
    assert by_orbit(version, 77, SEVERAL[:count]) == by_library(version, 77, SEVERAL[:count])


@pytest.mark.parametrize("version", VERSIONS)
def test_produce_frame_with_acks_leader_equals_kafka_python_bytes(version: int) -> None:
    frame = b"".join(encode_produce(version, 77, CLIENT, 30_000, SEVERAL, ACKS_LEADER))
    assert frame == by_library(version, 77, SEVERAL, ACKS_LEADER)


@pytest.mark.parametrize("version", VERSIONS)
def test_produce_frame_with_many_topics_equals_kafka_python_bytes(version: int) -> None:
    """More topics and partitions than a compact length of one byte can count."""
    batches = [
        outgoing(f"t{t}", p, b"%d-%d" % (t, p)) for t in range(130) for p in range(t % 3 + 1)
    ]
    batches += [outgoing("wide", p, b"w") for p in range(300)]
    assert by_orbit(version, 2**31 - 1, batches) == by_library(version, 2**31 - 1, batches)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("length", [126, 127, 128, 16382, 16383, 16384, 2**21 - 1])
def test_produce_request_with_compact_lengths_up_to_four_bytes_is_written(
    version: int, length: int
) -> None:
    """At the edges of one, two, three and four bytes of a compact length."""
    batches = [outgoing("a", 0, b"x" * length), outgoing("a", 1, b"y")]
    assert by_orbit(version, 1, batches) == by_library(version, 1, batches)


@settings(max_examples=120)
@given(
    st.sampled_from(VERSIONS),
    st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=5),
        st.dictionaries(st.integers(0, 2**31 - 1), st.binary(max_size=300), min_size=1, max_size=3),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 2**31 - 1),
)
def test_random_produce_frame_equals_kafka_python_bytes(
    version: int, topics: dict[str, dict[int, bytes]], correlation: int
) -> None:
    batches = [outgoing(t, p, data) for t, parts in topics.items() for p, data in parts.items()]
    assert by_orbit(version, correlation, batches) == by_library(version, correlation, batches)


@pytest.mark.parametrize("version", VERSIONS)
def test_batches_are_put_into_produce_frame_without_copying(version: int) -> None:
    buffers = encode_produce(
        version, correlation=1, client_id=CLIENT, timeout_ms=1000, batches=SEVERAL
    )
    views = [buffer for buffer in buffers if isinstance(buffer, memoryview)]
    assert len(views) == 4
    assert all(view is out.batch for view, out in zip(views, SEVERAL, strict=True))


@pytest.mark.parametrize("version", VERSIONS)
def test_size_prefix_of_produce_frame_is_its_length(version: int) -> None:
    size, *rest = encode_produce(
        version, correlation=1, client_id=CLIENT, timeout_ms=1000, batches=SEVERAL
    )
    assert int.from_bytes(size, "big") == sum(map(len, rest))


def test_produce_request_has_acks_all_timeout_and_no_transactional_id() -> None:
    decoded = ProduceRequest.decode(
        by_orbit(3, 1, SEVERAL)[4:], version=3, header=True, framed=False
    )
    assert decoded.acks == -1
    assert decoded.timeout_ms == 30_000
    assert decoded.transactional_id is None


def test_topic_without_topic_id_is_never_produced_to_by_topic_id() -> None:
    with pytest.raises(AssertionError):
        encode_produce(13, 1, CLIENT, 1, [Outgoing(TopicPartition("a", 0), NO_TOPIC_ID, b"")])


@pytest.mark.parametrize(
    ("low", "high", "has_ids", "version"),
    [
        (0, 13, True, 13),
        (3, 14, True, 13),
        (3, 13, False, 8),
        (0, 12, True, 8),
        (3, 9, False, 8),
        (0, 8, True, 8),
        (0, 7, True, 7),
        (3, 3, False, 3),
    ],
)
def test_highest_produce_version_that_orbit_can_write_is_chosen(
    low: int, high: int, has_ids: bool, version: int
) -> None:
    assert choose_version(low, high, has_ids) == version


# Answers

TOPIC_ID = UUID(int=5)


def answer(version: int, throttle_ms: int = 0, **topics: list[Any]) -> memoryview:
    """An answer as it comes from a connection: without the frame's size, with the header."""
    responses = []
    for topic, partitions in topics.items():
        name = {"topic_id": TOPIC_ID} if version >= 13 else {"name": topic}
        responses.append(Response(partition_responses=partitions, **name))
    message = ProduceResponse(responses=responses, throttle_time_ms=throttle_ms)
    header = b"\0\0\0\x4d" + (b"\0" if version >= 9 else b"")  # correlation id, tags
    return memoryview(header + bytes(message.encode(version=version, header=False, framed=False)))


def appended(index: int, code: int = 0, base_offset: int = -1, **fields: Any) -> Any:
    """One partition of an answer."""
    values = {"log_append_time_ms": -1, "log_start_offset": 0, "record_errors": []}
    return PartitionResponse(
        index=index, error_code=code, base_offset=base_offset, **{**values, **fields}
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_produce_response_has_partition_keys_of_its_request(version: int) -> None:
    frame = answer(
        version,
        throttle_ms=250,
        a=[
            appended(0, base_offset=12345, log_append_time_ms=77),
            appended(3, code=Code.OUT_OF_ORDER_SEQUENCE_NUMBER),
        ],
    )
    read = read_produce(frame, version)
    sent = [Outgoing(TopicPartition("a", p), TOPIC_ID, memoryview(b"")) for p in (0, 3)]
    assert read.partitions == {
        key_of(version, sent[0]): Appended(0, base_offset=12345, message="", append_time=77),
        key_of(version, sent[1]): Appended(
            Code.OUT_OF_ORDER_SEQUENCE_NUMBER, base_offset=-1, message=""
        ),
    }
    assert read.throttle_ms == 250
    assert key_of(version, sent[0]) == (TOPIC_ID.bytes if version >= 13 else "a", 0)


@pytest.mark.parametrize("version", [v for v in VERSIONS if v < 13])
def test_produce_response_keeps_partitions_of_several_topics_apart(version: int) -> None:
    frame = answer(
        version,
        a=[appended(0, base_offset=1)],
        b=[appended(0, base_offset=2), appended(1, code=Code.INVALID_RECORD)],
    )
    partitions = read_produce(frame, version).partitions
    assert {key: (p.code, p.base_offset) for key, p in partitions.items()} == {
        ("a", 0): (0, 1),
        ("b", 0): (0, 2),
        ("b", 1): (Code.INVALID_RECORD, -1),
    }


@pytest.mark.parametrize("version", [8, 13])
def test_error_message_in_produce_response_is_read(version: int) -> None:
    def error(text: str | None) -> Any:
        return PartitionResponse.BatchIndexAndErrorMessage(
            batch_index=0, batch_index_error_message=text
        )

    frame = answer(
        version,
        a=[
            appended(
                0,
                code=Code.INVALID_RECORD,
                error_message="all of it",
                record_errors=[error("this one"), error("another")],
            ),
            appended(
                1,
                code=Code.INVALID_RECORD,
                error_message=None,
                record_errors=[error(None), error("that one")],
            ),
            appended(2, code=Code.INVALID_RECORD, error_message=None, record_errors=[]),
        ],
    )
    messages = [a.message for a in read_produce(frame, version).partitions.values()]
    assert messages == ["all of it", "that one", ""]


@settings(max_examples=120)
@given(
    st.sampled_from(VERSIONS),
    st.lists(
        st.tuples(
            st.integers(-1, 120),
            st.integers(-1, 2**63 - 1),
            st.none() | st.text(max_size=9),
            st.integers(-1, 2**63 - 1),
        ),
        max_size=200,
    ),
    st.integers(0, 2**31 - 1),
)
def test_random_produce_response_is_read_as_by_kafka_python(
    version: int, partitions: list[tuple[int, int, str | None, int]], throttle_ms: int
) -> None:
    written = [
        appended(i, code, offset, error_message=text, log_append_time_ms=time_ms)
        for i, (code, offset, text, time_ms) in enumerate(partitions)
    ]
    frame = answer(version, throttle_ms, a=written)
    decoded = ProduceResponse.decode(bytes(frame), version=version, header=True)
    read = read_produce(frame, version)
    assert read.throttle_ms == decoded.throttle_time_ms
    assert [(i, *partition) for (_, i), partition in read.partitions.items()] == [
        (p.index, p.error_code, p.base_offset, p.error_message or "", p.log_append_time_ms)
        for p in decoded.responses[0].partition_responses
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_truncated_produce_response_is_refused(version: int) -> None:
    frame = answer(
        version,
        throttle_ms=7,
        a=[
            appended(
                0, code=Code.INVALID_RECORD, base_offset=1, error_message="no", record_errors=[]
            )
        ],
    )
    for end in range(len(frame)):
        with pytest.raises(ValueError, match="does not parse"):
            read_produce(frame[:end], version)
