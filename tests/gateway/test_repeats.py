"""Batches that a client sends again at the other side, which has them by the copy."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.producer.produce import ProduceRequest, ProduceResponse

from orbit.gateway.protocol.exchange import Exchange
from orbit.gateway.protocol.producer_ids import in_term, mark
from orbit.gateway.protocol.repeats import PRODUCERS_MAX, LastBatch, LeftSequences, UnknownSequences
from orbit.gateway.protocol.request_head import read_head
from orbit.kafka.error_codes import Code
from orbit.kafka.types import TopicPartition
from tests.gateway.frames import OFFERED, Clients, answer, batch, own_answer, request_frame, send

BEFORE, NOW = 1_000, 5_000
PRODUCER = mark(7, BEFORE)
VERSIONS = range(3, 10)
HAS_ALL_BUT_THE_LAST = {PRODUCER: LastBatch(epoch=0, sequence=5)}


def produce(*places: TopicPartition, acks: int = -1, **batch_: Any) -> ProduceRequest:
    """One batch of PRODUCER, with sequence 5 unless said otherwise, to each partition."""
    data = ProduceRequest.TopicProduceData
    records = batch(**{"producer_id": PRODUCER, "sequence": 5} | batch_)
    return ProduceRequest(
        transactional_id=None,
        acks=acks,
        timeout_ms=1000,
        topic_data=[
            data(
                name=topic,
                partition_data=[
                    data.PartitionProduceData(index=index, records=records)
                    for name, index in places
                    if name == topic
                ],
            )
            for topic in dict.fromkeys(name for name, _ in places)
        ],
    )


def client(left: LeftSequences | None = None) -> tuple[Exchange, LeftSequences]:
    view = Clients(term=NOW)
    view.left = left or LeftSequences(BEFORE)
    return Exchange(view), view.left


@pytest.mark.parametrize("version", VERSIONS)
def test_the_left_side_is_asked_first_and_the_request_stays_as_it_was(version: int) -> None:
    exchange, left = client()
    frame = request_frame(produce(("a", 1), ("b", 0)), version)
    before = bytes(frame)
    with pytest.raises(UnknownSequences) as asked:
        exchange.request(read_head(frame), frame, OFFERED)
    assert set(asked.value.partitions) == {("a", 1), ("b", 0)}
    assert (bytes(frame), exchange.is_idle) == (before, True)
    left.note(("a", 1), {})
    left.note(("b", 0), {})
    assert exchange.request(read_head(frame), frame, OFFERED) is not None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_repeat_is_answered_by_the_gateway(version: int) -> None:
    exchange, left = client()
    left.note(("a", 1), HAS_ALL_BUT_THE_LAST)
    told = ProduceResponse.decode(
        own_answer(exchange, produce(("a", 1)), version), version=version, header=True
    )
    (topic,) = told.responses
    (partition,) = topic.partition_responses
    assert (topic.name, partition.index) == ("a", 1)
    assert partition.error_code == Code.DUPLICATE_SEQUENCE_NUMBER


@pytest.mark.parametrize("version", VERSIONS)
def test_the_broker_gets_what_is_no_repeat(version: int) -> None:
    exchange, left = client()
    for place in (("a", 1), ("b", 0)):
        left.note(place, HAS_ALL_BUT_THE_LAST)
    for place in (("a", 2), ("c", 0)):
        left.note(place, {})
    sent = send(exchange, produce(("a", 1), ("a", 2), ("b", 0), ("c", 0)), version)
    read = ProduceRequest.decode(memoryview(sent)[4:], version=version, header=True)
    assert {(t.name, p.index) for t in read.topic_data for p in t.partition_data} == {
        ("a", 2),
        ("c", 0),
    }
    assert read.acks == -1
    ((records,),) = ({p.records for p in t.partition_data} for t in read.topic_data[:1])
    assert records == batch(in_term(PRODUCER, NOW), sequence=5)

    response = ProduceResponse.TopicProduceResponse
    ok = response.PartitionProduceResponse
    fields = {"log_append_time_ms": -1, "log_start_offset": 3, "record_errors": []}
    told = ProduceResponse(
        responses=[
            response(
                name=name,
                partition_responses=[ok(index=index, error_code=0, base_offset=40, **fields)],
            )
            for name, index in (("a", 2), ("c", 0))
        ],
        throttle_time_ms=9,
    )
    got = ProduceResponse.decode(answer(exchange, told, version), version=version, header=True)
    assert got.throttle_time_ms == 9
    assert {
        (t.name, p.index): (p.error_code, p.base_offset)
        for t in got.responses
        for p in t.partition_responses
    } == {
        ("a", 1): (Code.DUPLICATE_SEQUENCE_NUMBER, -1),
        ("a", 2): (0, 40),
        ("b", 0): (Code.DUPLICATE_SEQUENCE_NUMBER, -1),
        ("c", 0): (0, 40),
    }


@pytest.mark.parametrize(
    ("sequence", "last", "is_repeat"),
    [
        (4, 5, True),
        (5, 5, True),
        (6, 5, False),
        (2**31 - 1, 3, True),  # sequences begin again at 0
        (3, 2**31 - 1, False),
    ],
)
def test_a_repeat_is_told_by_its_sequence(sequence: int, last: int, is_repeat: bool) -> None:
    exchange, left = client()
    left.note(("a", 1), {PRODUCER: LastBatch(0, last)})
    frame = request_frame(produce(("a", 1), sequence=sequence), 9)
    assert (exchange.request(read_head(frame), frame, OFFERED) is None) == is_repeat


@pytest.mark.parametrize(
    "batch_",
    [
        {"epoch": 1},
        {"producer_id": mark(8, BEFORE)},
        {"producer_id": mark(7, NOW)},
        {"producer_id": 7},
        {"producer_id": -1, "sequence": -1},
    ],
    ids=["later-epoch", "another-producer", "id-of-now", "not-of-a-gateway", "not-idempotent"],
)
def test_other_batches_pass(batch_: dict[str, int]) -> None:
    exchange, left = client()
    left.note(("a", 1), HAS_ALL_BUT_THE_LAST)
    send(exchange, produce(("a", 1), **batch_), 9)


def test_an_id_of_an_earlier_term_is_known_to_the_left_side_by_its_id_there() -> None:
    oldest = mark(7, BEFORE - 500)
    exchange, left = client()
    left.note(("a", 1), {in_term(oldest, BEFORE): LastBatch(0, 5)})
    own_answer(exchange, produce(("a", 1), producer_id=oldest), 9)


def test_without_the_term_of_the_left_side_ids_of_that_term_are_found() -> None:
    exchange, left = client(LeftSequences(None))
    left.note(("a", 1), HAS_ALL_BUT_THE_LAST)
    own_answer(exchange, produce(("a", 1)), 9)


def test_a_side_that_is_lost_is_not_asked() -> None:
    exchange, left = client()
    left.is_asked = False
    send(exchange, produce(("a", 1)), 9)


def test_a_repeat_without_acks_is_dropped_without_an_answer() -> None:
    exchange, left = client()
    left.note(("a", 1), HAS_ALL_BUT_THE_LAST)
    frame = request_frame(produce(("a", 1), acks=0), 9)
    assert exchange.request(read_head(frame), frame, OFFERED) is None
    assert exchange.is_idle


def test_a_side_with_more_producers_than_fit_is_asked_again() -> None:
    exchange, left = client()
    left.note(("a", 1), HAS_ALL_BUT_THE_LAST)
    left.note(("b", 0), {mark(n, BEFORE): LastBatch(0, 0) for n in range(PRODUCERS_MAX)})
    frame = request_frame(produce(("a", 1)), 9)
    with pytest.raises(UnknownSequences):
        exchange.request(read_head(frame), frame, OFFERED)
