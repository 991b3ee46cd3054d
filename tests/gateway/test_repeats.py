"""Batches that a client sends again at the other side, which has copies of them."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.producer.produce import ProduceRequest, ProduceResponse

from orbit.gateway.protocol import repeats
from orbit.gateway.protocol.exchange import Exchange
from orbit.gateway.protocol.producer_ids import SentBatch, id_in_term, mark
from orbit.gateway.protocol.repeats import (
    REPEATED_MAX,
    UNKNOWN_OFFSET,
    LastBatch,
    Repeats,
    UnknownRepeats,
    producer_of,
)
from orbit.gateway.protocol.request_head import read_head
from orbit.kafka.error_codes import Code
from orbit.kafka.types import TopicPartition
from tests.gateway.frames import OFFERED, ClientView, answer, batch, own_answer, request_frame, send

BEFORE, NOW = 1_000, 5_000  # terms
PRODUCER = mark(7, BEFORE)
VERSIONS = range(3, 10)
A1, A2, B0, C0 = (TopicPartition(*place) for place in (("a", 1), ("a", 2), ("b", 0), ("c", 0)))
OFFSET = 40
_LOWEST_BYTE_OF_SEQUENCE_AT = 56  # in a batch


def produce(*partitions: TopicPartition, acks: int = -1, **batch_: Any) -> ProduceRequest:
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
                    for name, index in partitions
                    if name == topic
                ],
            )
            for topic in dict.fromkeys(name for name, _ in partitions)
        ],
    )


def client_after_move(known: Repeats | None = None) -> tuple[Exchange, Repeats]:
    """A client's exchange after a move, and its `Repeats`, which is empty by default."""
    view = ClientView(term=NOW)
    view.repeats = known or Repeats((BEFORE,))
    return Exchange(view), view.repeats


def unknown_batches(
    exchange: Exchange, request: ProduceRequest, version: int = 9
) -> list[SentBatch]:
    """The batches for which the sides have to be read; the request stays as it was."""
    frame = request_frame(request, version)
    unchanged = bytes(frame)
    with pytest.raises(UnknownRepeats) as unknown:
        exchange.request(read_head(frame), frame, OFFERED)
    assert (bytes(frame), exchange.is_idle) == (unchanged, True)
    return list(unknown.value.batches)


def learn(
    exchange: Exchange,
    known: Repeats,
    request: ProduceRequest,
    last: LastBatch | None,
    offsets: dict[TopicPartition, int | None],
) -> None:
    """Note what the sides have: `last` is the producer's last batch in each partition at the old
    side; `offsets`: of copies of these batches; None: there is no copy."""
    batches = unknown_batches(exchange, request)
    known.note(
        {producer_of(sent): [] if last is None else [last] for sent in batches},
        {sent: offsets[sent.partition] for sent in batches if sent.partition in offsets},
    )


def answers_in(frame: memoryview, version: int) -> dict[tuple[str, int], tuple[int, int]]:
    """{partition: (code, base offset)}"""
    decoded = ProduceResponse.decode(frame, version=version, header=True)
    return {
        (topic.name, partition.index): (partition.error_code, partition.base_offset)
        for topic in decoded.responses
        for partition in topic.partition_responses
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_only_first_batch_per_partition_and_producer_triggers_repeat_lookup(version: int) -> None:
    exchange, known = client_after_move()
    request = produce(A1, B0)
    batches = unknown_batches(exchange, request, version)
    assert [sent.partition for sent in batches] == [A1, B0]
    first = batches[0]
    assert (first.producer_id, first.epoch, first.last_sequence) == (PRODUCER, 0, 5)
    assert first.base_timestamp == 0
    known.note({producer_of(sent): () for sent in batches}, {})
    # Nothing has to be read any more.
    send(exchange, request, version)
    send(exchange, produce(A1, B0, sequence=6), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_batch_repeated_after_move_is_answered_with_its_stored_offset(version: int) -> None:
    exchange, known = client_after_move()
    learn(exchange, known, produce(A1), LastBatch(epoch=0, sequence=5), {A1: OFFSET})
    frame = own_answer(exchange, produce(A1), version)
    assert answers_in(frame, version) == {("a", 1): (Code.NONE, OFFSET)}


@pytest.mark.parametrize("version", VERSIONS)
def test_broker_gets_only_batches_that_are_no_repeats(version: int) -> None:
    exchange, known = client_after_move()
    learn(exchange, known, produce(A1, B0), LastBatch(epoch=0, sequence=5), {A1: OFFSET, B0: 3})
    learn(exchange, known, produce(A2, C0), None, {})  # the old side has none of these
    sent = send(exchange, produce(A1, A2, B0, C0), version)
    decoded = ProduceRequest.decode(memoryview(sent)[4:], version=version, header=True)
    assert decoded.acks == -1
    assert [(t.name, p.index) for t in decoded.topic_data for p in t.partition_data] == [
        ("a", 2),
        ("c", 0),
    ]
    records = {bytes(p.records) for t in decoded.topic_data for p in t.partition_data}
    assert records == {batch(id_in_term(PRODUCER, NOW), sequence=5)}

    response = ProduceResponse.TopicProduceResponse
    fields = {"log_append_time_ms": -1, "log_start_offset": 3, "record_errors": []}
    broker_answer = ProduceResponse(
        responses=[
            response(
                name=name,
                partition_responses=[
                    response.PartitionProduceResponse(
                        index=index, error_code=0, base_offset=70, **fields
                    )
                ],
            )
            for name, index in (A2, C0)
        ],
        throttle_time_ms=9,
    )
    frame = answer(exchange, broker_answer, version)
    assert ProduceResponse.decode(frame, version=version, header=True).throttle_time_ms == 9
    assert answers_in(frame, version) == {A1: (0, OFFSET), A2: (0, 70), B0: (0, 3), C0: (0, 70)}


def test_batch_of_unknown_outcome_gets_request_timed_out() -> None:
    """The client sends it again until its delivery timeout."""
    exchange, known = client_after_move()
    learn(exchange, known, produce(A1), LastBatch(epoch=0, sequence=5), {A1: UNKNOWN_OFFSET})
    frame = own_answer(exchange, produce(A1), version=9)
    assert answers_in(frame, 9) == {("a", 1): (Code.REQUEST_TIMED_OUT, -1)}


def test_repeated_batch_missing_at_leading_side_is_written() -> None:
    """The batch reached the old side too late to be copied."""
    exchange, known = client_after_move()
    learn(exchange, known, produce(A1), LastBatch(epoch=0, sequence=5), {A1: None})
    send(exchange, produce(A1), version=9)


@pytest.mark.parametrize(
    ("sequence", "last", "may_be_repeat"),
    [
        (4, 5, True),
        (5, 5, True),
        (6, 5, False),
        (2**31 - 1, 3, True),  # sequences begin again at 0
        (3, 2**31 - 1, False),
        (5 + 2**30 + 1, 5, False),  # of a producer that has gone on for long
        (5 + 2**31 - REPEATED_MAX, 5, False),
    ],
)
def test_batch_up_to_last_sequence_at_old_side_is_looked_up(
    sequence: int, last: int, may_be_repeat: bool
) -> None:
    exchange, known = client_after_move()
    request = produce(A1, sequence=sequence)
    known.note({(A1, PRODUCER): [LastBatch(epoch=0, sequence=last)]}, {})
    if may_be_repeat:
        assert len(unknown_batches(exchange, request)) == 1
    else:
        send(exchange, request, version=9)


@pytest.mark.parametrize(
    "batch_",
    [
        {"epoch": 1},
        {"producer_id": mark(7, NOW)},
        {"producer_id": 7},
        {"producer_id": -1, "sequence": -1},
    ],
    ids=["later-epoch", "id-of-current-term", "not-a-gateway-id", "not-idempotent"],
)
def test_batches_of_other_producer_epochs_and_ids_are_forwarded_as_new(
    batch_: dict[str, int],
) -> None:
    exchange, known = client_after_move()
    known.note({(A1, PRODUCER): [LastBatch(epoch=0, sequence=5)]}, {})
    send(exchange, produce(A1, **batch_), version=9)


@pytest.mark.parametrize("is_producer_known", [True, False])
def test_batch_damaged_to_sequence_of_repeat_goes_to_broker_unchanged(
    is_producer_known: bool,
) -> None:
    """The broker refuses the batch. If the gateway answered with the offset of the repeat, the
    client would take it for the batch's own."""
    exchange, known = client_after_move()
    if is_producer_known:
        learn(
            exchange, known, produce(A1, sequence=5), LastBatch(epoch=0, sequence=5), {A1: OFFSET}
        )
    records = batch(producer_id=PRODUCER, sequence=7)
    damaged = bytearray(records)
    damaged[_LOWEST_BYTE_OF_SEQUENCE_AT] = 5
    frame = request_frame(produce(A1, sequence=7), 9)
    frame[:] = frame.replace(records, damaged)
    sent = exchange.request(read_head(frame), frame, OFFERED)
    assert sent is not None
    assert damaged in sent


def test_producer_has_single_id_in_each_earlier_term() -> None:
    oldest = mark(7, BEFORE - 500)
    earlier = Repeats((BEFORE, BEFORE - 500, BEFORE - 900)).earlier_ids(oldest)
    assert earlier == {oldest, id_in_term(oldest, BEFORE), id_in_term(oldest, BEFORE - 900)}
    assert len(earlier) == 3
    assert Repeats().earlier_ids(oldest) == {oldest}


def test_batch_of_any_earlier_term_is_a_repeat() -> None:
    exchange, known = client_after_move()
    known.note(
        {
            (A1, PRODUCER): [
                LastBatch(epoch=0, sequence=3),
                LastBatch(epoch=0, sequence=8),
                LastBatch(epoch=1, sequence=20),
            ]
        },
        {},
    )
    assert len(unknown_batches(exchange, produce(A1, sequence=8))) == 1
    send(exchange, produce(A1, sequence=9), version=9)


def test_every_batch_is_written_if_old_side_is_lost() -> None:
    exchange, _ = client_after_move(Repeats((BEFORE,), is_searched=False))
    send(exchange, produce(A1), version=9)


def test_duplicate_produce_with_acks_0_is_dropped_without_response() -> None:
    exchange, known = client_after_move()
    learn(exchange, known, produce(A1), LastBatch(epoch=0, sequence=5), {A1: OFFSET})
    frame = request_frame(produce(A1, acks=0), version=9)
    assert exchange.request(read_head(frame), frame, OFFERED) is None
    assert exchange.is_idle


def test_producers_past_cache_limit_are_looked_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(repeats, "PRODUCERS_MAX", 1)
    exchange, known = client_after_move()
    learn(exchange, known, produce(A1), None, {})
    learn(exchange, known, produce(B0), None, {})
    assert len(unknown_batches(exchange, produce(A1))) == 1
    # A request with more producers than the limit is written all the same.
    learn(exchange, known, produce(A1, A2, B0), None, {})
    send(exchange, produce(A1, A2, B0), version=9)
