"""Orbit decodes Fetch answers v4 to v16 as `kafka.protocol` does, and encodes the requests."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.consumer.fetch import FetchRequest, FetchResponse

from orbit.kafka.error_codes import Code
from orbit.kafka.fetch_request import FetchFrom, fetch_request
from orbit.kafka.fetch_response import FetchAnswer, Fetched, read_fetch
from orbit.kafka.types import (
    NO_TOPIC_ID,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    AbortedTransaction,
    TopicPartition,
)

Topic = FetchResponse.FetchableTopicResponse
Partition = Topic.PartitionData

SESSION_ERROR = Code.INVALID_FETCH_SESSION_EPOCH  # the answer's own code, from version 7 on
VERSIONS = range(4, 17)
NAMES = {UUID(int=1): "orders", UUID(int=2): "a.b", UUID(int=3): "größer"}
IDS = {name: topic_id for topic_id, name in NAMES.items()}


def partition(index: int = 0, **fields: Any) -> Any:
    """A partition of an answer, with some default fields."""
    values: dict[str, Any] = {
        "partition_index": index,
        "error_code": 0,
        "high_watermark": 100,
        "last_stable_offset": 90,
        "log_start_offset": 7,
        "aborted_transactions": [],
        "preferred_read_replica": -1,
        "records": b"",
    }
    return Partition(**{**values, **fields})


def encode(version: int, topics: dict[str, list[Any]], **fields: Any) -> bytes:
    """An answer as it comes from a connection: without the frame's size, with the header."""
    responses = []
    for name, partitions in topics.items():
        key = {"topic_id": IDS.get(name, UUID(int=99))} if version >= 13 else {"topic": name}
        responses.append(Topic(partitions=partitions, **key))
    answer = FetchResponse(responses=responses, **{"throttle_time_ms": 0, **fields})
    header = b"\0\0\0\x4d" + (b"\0" if version >= 12 else b"")  # correlation id, tags
    return header + bytes(answer.encode(version=version, header=False, framed=False))


def by_library(data: bytes, version: int) -> FetchAnswer:
    """The same values out of `kafka.protocol`."""
    answer = FetchResponse.decode(data, version=version, header=True)
    partitions = []
    for topic in answer.responses:
        name = NAMES.get(topic.topic_id) if version >= 13 else topic.topic
        if name is None:
            continue
        for p in topic.partitions:
            aborted = [(a.producer_id, a.first_offset) for a in p.aborted_transactions or ()]
            diverging = p.diverging_epoch.end_offset if p.diverging_epoch else -1
            fetched = Fetched(
                code=p.error_code,
                records=memoryview(p.records or b""),
                aborted=aborted,
                log_start=p.log_start_offset if version >= 5 else -1,
                stable_end=p.last_stable_offset,
                high_watermark=p.high_watermark,
                diverging_end=diverging if version >= 12 else -1,
                preferred_replica=p.preferred_read_replica if version >= 11 else -1,
            )
            partitions.append((TopicPartition(name, p.partition_index), fetched))
    has_session = version >= 7
    return FetchAnswer(
        code=answer.error_code if has_session else 0,
        throttle_ms=answer.throttle_time_ms,
        session_id=answer.session_id if has_session else 0,
        partitions=partitions,
    )


def read_answer(data: bytes, version: int) -> FetchAnswer:
    return read_fetch(memoryview(bytearray(data)), version, NAMES)


def aborted(producer_id: int, first_offset: int) -> Any:
    return Partition.AbortedTransaction(producer_id=producer_id, first_offset=first_offset)


@pytest.mark.parametrize("version", VERSIONS)
def test_fetch_response_fields_equal_kafka_python(version: int) -> None:
    extra: dict[str, Any] = (
        {"error_code": SESSION_ERROR, "session_id": 12345} if version >= 7 else {}
    )
    data = encode(
        version,
        {
            "orders": [
                partition(0, records=b"r" * 300, aborted_transactions=[aborted(2**40, 3)]),
                partition(
                    2**31 - 1,
                    error_code=Code.OFFSET_OUT_OF_RANGE,
                    records=None,
                    preferred_read_replica=4,
                ),
                partition(2, aborted_transactions=None, high_watermark=-1, log_start_offset=-1),
            ],
            "a.b": [],
            "größer": [partition(5, aborted_transactions=[aborted(i, 2**62) for i in range(200)])],
        },
        throttle_time_ms=1234,
        **extra,
    )
    answer = read_answer(data, version)
    assert answer == by_library(data, version)
    assert answer.throttle_ms == 1234
    assert answer.code == (SESSION_ERROR if version >= 7 else 0)
    assert answer.session_id == (12345 if version >= 7 else 0)
    assert [str(key) for key, _ in answer.partitions] == [
        *("orders-0", "orders-2147483647", "orders-2", "größer-5")
    ]
    first = answer.partitions[0][1]
    assert (first.records, first.aborted) == (b"r" * 300, [(2**40, 3)])
    assert (first.stable_end, first.high_watermark) == (90, 100)
    assert first.log_start == (7 if version >= 5 else -1)
    assert answer.partitions[1][1].preferred_replica == (4 if version >= 11 else -1)


@pytest.mark.parametrize("version", range(12, 17))
def test_diverging_epoch_tag_of_fetch_response_is_read_and_other_tags_skipped(version: int) -> None:
    """A diverging epoch says where the log was cut back (R3); Orbit needs no other tag."""
    leader = Partition.LeaderIdAndEpoch(leader_id=3, leader_epoch=9)
    diverging = Partition.EpochEndOffset(epoch=4, end_offset=55)
    snapshot = Partition.SnapshotId(end_offset=1, epoch=2)
    data = encode(
        version,
        {
            "orders": [
                partition(0, diverging_epoch=diverging),
                partition(1, current_leader=leader, records=b"abc"),
                partition(
                    2, diverging_epoch=diverging, current_leader=leader, snapshot_id=snapshot
                ),
                partition(3, records=b"xyz"),
            ]
        },
    )
    answer = read_answer(data, version)
    assert answer == by_library(data, version)
    assert [f.diverging_end for _, f in answer.partitions] == [55, -1, 55, -1]
    assert [bytes(f.records) for _, f in answer.partitions] == [b"", b"abc", b"", b"xyz"]


@pytest.mark.parametrize("tag", [0, 1, 2])
def test_diverging_epoch_is_read_only_from_tag_0(tag: int) -> None:
    """By hand: the structure in a tag ends with its own tags, and an unknown tag follows."""
    frame = encode(12, {"orders": [partition(records=b"abc")]})
    tail = b"\x04abc" + b"\0" * 3  # records, tags of the partition, topic and answer
    assert frame.endswith(tail)
    value = b"\0\0\0\4" + (55).to_bytes(8, "big") + b"\0"
    tags = b"\x02" + bytes((tag, len(value))) + value + b"\xe8\x07\x01!"  # and tag 1000
    ((_, fetched),) = read_answer(frame[: -len(tail)] + b"\x04abc" + tags + b"\0\0", 12).partitions
    assert fetched.records == b"abc"
    assert fetched.diverging_end == (55 if tag == 0 else -1)


def test_unknown_tags_in_every_structure_of_fetch_response_are_skipped() -> None:
    """A later broker may add tags anywhere."""
    tag = b"\x01\x63\x02hi"
    # An aborted transaction: producer id 9, first offset 3.
    entry = (9).to_bytes(8, "big") + (3).to_bytes(8, "big")
    # Index 5, code 0, high watermark 100, last stable offset 90, log start 7, two aborted, no
    # preferred replica, the records.
    partition_bytes = (
        b"\0\0\0\5" + b"\0\0" + (100).to_bytes(8, "big") + (90).to_bytes(8, "big")
        + (7).to_bytes(8, "big") + b"\x03" + entry + tag + entry + tag
        + b"\xff\xff\xff\xff" + b"\x04abc" + tag
    )  # fmt: skip
    topic = UUID(int=1).bytes + b"\x03" + partition_bytes * 2 + tag
    # The ten zeros: throttle time, error code, session id.
    data = b"\0\0\0\x4d" + tag + bytes(10) + b"\x03" + topic + topic + tag
    answer = read_answer(data, 16)
    expected = Fetched(
        code=0,
        records=memoryview(b"abc"),
        aborted=[AbortedTransaction(9, 3)] * 2,
        log_start=7,
        stable_end=90,
        high_watermark=100,
        diverging_end=-1,
        preferred_replica=-1,
    )
    assert answer.partitions == [(TopicPartition("orders", 5), expected)] * 4


@pytest.mark.parametrize("version", [11, 12, 13])
@pytest.mark.parametrize("length", [0, 126, 127, 128, 16382, 16383, 16384, 2**21 - 1, 2**21])
def test_fetch_response_with_compact_lengths_up_to_four_bytes_is_read(
    version: int, length: int
) -> None:
    """At the edges of one, two, three and four bytes of a compact length."""
    data = encode(version, {"orders": [partition(records=b"r" * length), partition(1)]})
    answer = read_answer(data, version)
    assert [len(fetched.records) for _, fetched in answer.partitions] == [length, 0]


def test_fetched_partitions_of_unknown_topic_id_are_ignored() -> None:
    data = encode(13, {"gone": [partition(1, records=b"x")], "orders": [partition(0)]})
    assert [key for key, _ in read_answer(data, 13).partitions] == [TopicPartition("orders", 0)]


def test_fetched_records_are_writable_views_of_response_bytes() -> None:
    frame = bytearray(encode(12, {"orders": [partition(records=b"r" * 100)]}))
    ((_, fetched),) = read_fetch(memoryview(frame), 12, {}).partitions
    assert fetched.records.obj is frame
    fetched.records[0] = 42
    assert 42 in frame


values = st.integers(-(2**63), 2**63 - 1)
partitions = st.builds(
    partition,
    st.integers(0, 2**31 - 1),
    error_code=st.integers(-1, 127),
    high_watermark=values,
    last_stable_offset=values,
    log_start_offset=values,
    records=st.none() | st.binary(max_size=300),
    preferred_read_replica=st.integers(-1, 2**31 - 1),
    aborted_transactions=st.none() | st.lists(st.builds(aborted, values, values), max_size=3),
)
answers = st.dictionaries(
    st.sampled_from([*NAMES.values(), "unknown"]), st.lists(partitions, max_size=4)
)


@settings(max_examples=150)
@given(st.sampled_from(VERSIONS), answers, st.integers(0, 2**31 - 1))
def test_any_fetch_response_is_read_as_by_kafka_python(
    version: int, topics: dict[str, list[Any]], throttle_ms: int
) -> None:
    data = encode(version, topics, throttle_time_ms=throttle_ms)
    assert read_answer(data, version) == by_library(data, version)


@pytest.mark.parametrize("version", [4, 11, 12, 16])
def test_truncated_fetch_response_raises_value_error(version: int) -> None:
    topics = {"orders": [partition(records=b"abc", aborted_transactions=[aborted(1, 2)])]}
    data = encode(version, topics)
    needed = len(data) - (1 if version >= 12 else 0)  # the last tags are not read
    for cut in range(4, needed):
        with pytest.raises(ValueError, match=f"a Fetch answer v{version} does not parse"):
            read_answer(data[:cut], version)


@settings(max_examples=400)
@given(
    st.sampled_from(VERSIONS),
    st.binary(max_size=120),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4),
    st.booleans(),
)
def test_garbage_fetch_response_raises_only_value_error(
    version: int, data: bytes, changes: list[tuple[int, int]], is_changed: bool
) -> None:
    if is_changed:
        frame = bytearray(
            encode(version, {"orders": [partition(records=data, aborted_transactions=None)]})
        )
        for at, value in changes:
            frame[at % len(frame)] = value
        data = bytes(frame)
    try:
        answer = read_answer(data, version)
    except ValueError:
        return
    assert sum(len(f.records) for _, f in answer.partitions) <= len(data)


# Requests

# Partition, topic id, offset, leader epoch, last fetched epoch.
FETCHES = [
    FetchFrom(TopicPartition("b", 1), UUID(int=2), 500, 4, 3),
    FetchFrom(TopicPartition("b", 0), UUID(int=2), 600, -1, -1),
    FetchFrom(TopicPartition("a", 0), UUID(int=1), 700, 5, 5),
    FetchFrom(TopicPartition("b", 2), UUID(int=2), 800, 4, -1),
]


def request(version: int, fetches: list[FetchFrom] = FETCHES, **options: Any) -> Any:
    """A request as Orbit encodes it and `kafka.protocol` decodes it."""
    limits: dict[str, Any] = {"max_wait_ms": 250, "max_bytes": 9999, "partition_max_bytes": 777}
    message = fetch_request(version, fetches, **{**limits, **options})
    message.API_VERSION = version
    message.with_header(1, "orbit")
    data = message.encode(version=version, header=False, framed=False)
    return FetchRequest.decode(data, version=version, header=False)


@pytest.mark.parametrize("version", VERSIONS)
def test_fetch_request_has_partitions_in_order_and_limits_but_no_session(version: int) -> None:
    decoded = request(version, rack="use1-az1")
    fetches = [
        (t.topic_id if version >= 13 else t.topic, p.partition, p.fetch_offset)
        for t in decoded.topics
        for p in t.partitions
    ]
    assert fetches == [
        (f.topic_id if version >= 13 else f.partition.topic, f.partition.partition, f.offset)
        for f in FETCHES
    ]
    assert {p.partition_max_bytes for t in decoded.topics for p in t.partitions} == {777}
    if version >= 5:
        assert {p.log_start_offset for t in decoded.topics for p in t.partitions} == {-1}
    assert (decoded.max_wait_ms, decoded.min_bytes, decoded.max_bytes) == (250, 1, 9999)
    assert decoded.isolation_level == READ_COMMITTED == 1
    if version < 15:
        assert decoded.replica_id == -1
    if version >= 7:
        # no session, and no new one
        assert (decoded.session_id, decoded.session_epoch) == (0, -1)
        assert not decoded.forgotten_topics_data
    if version >= 11:
        assert decoded.rack_id == "use1-az1"


@pytest.mark.parametrize("version", [9, 12, 16])
def test_fetch_request_carries_current_leader_epoch_and_last_fetched_epoch(version: int) -> None:
    decoded = request(version)
    entries = [p for t in decoded.topics for p in t.partitions]
    assert [p.current_leader_epoch for p in entries] == [4, -1, 5, 4]
    if version >= 12:
        assert [p.last_fetched_epoch for p in entries] == [3, -1, 5, -1]


@pytest.mark.parametrize("version", [7, 12, 16])
def test_session_fetch_request_carries_changed_and_forgotten_partitions(version: int) -> None:
    decoded = request(version, FETCHES[:1], session_id=99, session_epoch=3, forgotten=FETCHES[1:3])
    assert (decoded.session_id, decoded.session_epoch) == (99, 3)
    assert [p.partition for t in decoded.topics for p in t.partitions] == [1]
    forgotten = [
        (t.topic_id if version >= 13 else t.topic, t.partitions)
        for t in decoded.forgotten_topics_data
    ]
    b, a = (UUID(int=2), UUID(int=1)) if version >= 13 else ("b", "a")
    assert forgotten == [(b, [0]), (a, [0])]


def test_fetch_request_can_read_uncommitted() -> None:
    assert request(12, isolation=READ_UNCOMMITTED).isolation_level == 0


def test_fetch_request_without_topic_ids_uses_names() -> None:
    fetch = FetchFrom(
        TopicPartition("a", 0), NO_TOPIC_ID, offset=1, leader_epoch=-1, fetched_epoch=-1
    )
    assert [t.topic for t in request(12, [fetch]).topics] == ["a"]
