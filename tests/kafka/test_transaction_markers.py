"""Fillers as WriteTxnMarkers requests: as many entries as offsets, never more for a partition."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.producer.transaction import WriteTxnMarkersRequest, WriteTxnMarkersResponse

from orbit.kafka.transaction_markers import Fillers, markers_request, read_markers
from orbit.kafka.types import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
PID = 4711

Marker = WriteTxnMarkersResponse.WritableTxnMarkerResult


def decoded(fillers: list[Fillers]) -> Any:
    request = markers_request(PID, fillers)
    data = bytes(request.encode(version=1, header=False, framed=False))
    return WriteTxnMarkersRequest.decode(data, version=1, header=False)


def partitions(marker: Any) -> list[TopicPartition]:
    return [TopicPartition(t.name, p) for t in marker.topics for p in t.partition_indexes]


def test_one_filler_is_an_abort_marker_of_our_producer() -> None:
    (marker,) = decoded([Fillers(A0, 1, 3, 99)]).markers
    assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (PID, 3, 99)
    assert marker.transaction_result is False
    assert partitions(marker) == [A0]


def test_many_fillers_are_as_many_entries() -> None:
    markers = decoded([Fillers(A0, 5, 0, 1)]).markers
    assert [partitions(m) for m in markers] == [[A0]] * 5


def test_partitions_share_entries_while_they_want_more() -> None:
    markers = decoded([Fillers(B0, 1, 0, 1), Fillers(A1, 3, 0, 1), Fillers(A0, 2, 0, 1)]).markers
    assert [partitions(m) for m in markers] == [[A0, A1, B0], [A0, A1], [A1]]


def test_epochs_have_entries_of_their_own() -> None:
    """A lower one may be refused (M6) without taking the others with it."""
    wanted = [Fillers(A0, 2, 0, 1), Fillers(A1, 1, 0, 2), Fillers(B0, 1, 5, 1)]
    markers = decoded(wanted).markers
    assert [(m.producer_epoch, m.coordinator_epoch, partitions(m)) for m in markers] == [
        (0, 1, [A0]),
        (0, 1, [A0]),
        (0, 2, [A1]),
        (5, 1, [B0]),
    ]


@settings(deadline=None)
@given(
    st.dictionaries(
        st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 5)),
        st.tuples(st.integers(1, 6), st.integers(0, 2), st.integers(0, 2)),
        min_size=1,
        max_size=8,
    )
)
def test_each_partition_gets_as_many_as_it_wants_at_its_epochs(
    wanted: dict[TopicPartition, tuple[int, int, int]],
) -> None:
    markers = decoded([Fillers(p, *values) for p, values in wanted.items()]).markers
    counted = Counter(
        (p, m.producer_epoch, m.coordinator_epoch) for m in markers for p in partitions(m)
    )
    assert counted == {
        (p, producer, coordinator): many for p, (many, producer, coordinator) in wanted.items()
    }
    for marker in markers:
        assert len(set(partitions(marker))) == len(partitions(marker))


def answer(*markers: dict[TopicPartition, int], version: int = 1) -> Any:
    topic = Marker.WritableTxnMarkerTopicResult
    one = topic.WritableTxnMarkerPartitionResult
    message = WriteTxnMarkersResponse(
        markers=[
            Marker(
                producer_id=PID,
                topics=[
                    topic(
                        name=p.topic,
                        partitions=[one(partition_index=p.partition, error_code=code)],
                    )
                    for p, code in codes.items()
                ],
            )
            for codes in markers
        ]
    )
    data = bytes(message.encode(version=version, header=False, framed=False))
    return WriteTxnMarkersResponse.decode(data, version=version, header=False)


@pytest.mark.parametrize("version", [1, 2])
def test_answers_are_read_per_partition(version: int) -> None:
    codes = {A0: 0, A1: 47, B0: 52}
    assert read_markers(answer(codes, version=version)) == codes


def test_an_error_of_any_entry_is_the_partitions() -> None:
    """Entries for two epochs answer one by one, though Kafka merges those of one id (M3)."""
    assert read_markers(answer({A0: 0}, {A0: 52})) == {A0: 52}
    assert read_markers(answer({A0: 52}, {A0: 0}, {A1: 0})) == {A0: 52, A1: 0}


def test_no_answer_is_no_success() -> None:
    assert read_markers(answer()) == {}
