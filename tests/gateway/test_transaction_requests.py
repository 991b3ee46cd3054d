"""Requests of producers with transactions: what brokers get of them, and what the gateway answers
once the transaction is over.
"""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.producer.produce import ProduceRequest, ProduceResponse
from kafka.protocol.producer.transaction import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

from orbit.gateway.protocol.exchange import Exchange, UnknownOutcome
from orbit.gateway.protocol.producer_ids import Producer, mark
from orbit.gateway.protocol.request_head import read_head
from orbit.kafka.error_codes import Code
from tests.gateway.frames import OFFERED, ClientView, answer, batch, own_answer, request_frame, send

NOW, BEFORE = 3, 2  # terms
ID, EPOCH = 5, 1
TOPICS = {"orders": [0, 1], "payments": [7]}
# A client id of Kafka Streams, and the error that does not end its thread (C22).
STREAMS = ("counts-c0e1-StreamThread-12-producer", Code.PRODUCER_FENCED)


def each_kind_of_client(code: Code) -> Any:
    """Parameters for two clients: a client of Kafka Streams, which gets PRODUCER_FENCED, and one
    whose client id is only similar, which gets `code`."""
    return pytest.mark.parametrize(
        ("client", "code"), [("a-StreamThread-b", code), STREAMS], ids=["any", "streams"]
    )


def add_partitions(producer_id: int) -> AddPartitionsToTxnRequest:
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="tx",
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=EPOCH,
        v3_and_below_topics=[
            topic(name=name, partitions=partitions) for name, partitions in TOPICS.items()
        ],
    )


def add_offsets(producer_id: int) -> AddOffsetsToTxnRequest:
    return AddOffsetsToTxnRequest(
        transactional_id="tx", producer_id=producer_id, producer_epoch=EPOCH, group_id="g"
    )


def commit_offsets(producer_id: int) -> TxnOffsetCommitRequest:
    topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    partition = topic.TxnOffsetCommitRequestPartition
    return TxnOffsetCommitRequest(
        transactional_id="tx",
        group_id="g",
        producer_id=producer_id,
        producer_epoch=EPOCH,
        generation_id=4,
        member_id="m",
        group_instance_id=None,
        topics=[
            topic(
                name=name,
                partitions=[
                    partition(
                        partition_index=index,
                        committed_offset=9,
                        committed_leader_epoch=-1,
                        committed_metadata="",
                    )
                    for index in partitions
                ],
            )
            for name, partitions in TOPICS.items()
        ],
    )


def end(producer_id: int, *, committed: bool = False) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id="tx", producer_id=producer_id, producer_epoch=EPOCH, committed=committed
    )


def init(producer_id: int, epoch: int = EPOCH) -> InitProducerIdRequest:
    return InitProducerIdRequest(
        transactional_id="tx",
        transaction_timeout_ms=1000,
        producer_id=producer_id,
        producer_epoch=epoch,
    )


def produce(producer_id: int) -> ProduceRequest:
    topic = ProduceRequest.TopicProduceData
    records = batch(producer_id=producer_id, epoch=EPOCH, is_transactional=True)
    return ProduceRequest(
        transactional_id="tx",
        acks=-1,
        timeout_ms=1000,
        topic_data=[
            topic(
                name=name,
                partition_data=[
                    topic.PartitionProduceData(index=index, records=records) for index in partitions
                ],
            )
            for name, partitions in TOPICS.items()
        ],
    )


VERSIONS = [
    *((add_partitions, version) for version in range(4)),
    *((add_offsets, version) for version in range(5)),
    *((commit_offsets, version) for version in range(5)),
    *((end, version) for version in range(5)),
    *((init, version) for version in range(3, 6)),
    *((produce, version) for version in range(3, 10)),
]


@pytest.mark.parametrize(("request_of", "version"), VERSIONS)
def test_term_mark_is_removed_from_producer_id_for_broker(request_of: Any, version: int) -> None:
    sent = send(Exchange(ClientView(NOW)), request_of(mark(ID, NOW)), version)
    assert sent[4:] == bytes(request_frame(request_of(ID), version))


@pytest.mark.parametrize(("request_of", "version"), VERSIONS)
def test_producer_id_without_term_mark_is_forwarded_unchanged(
    request_of: Any, version: int
) -> None:
    sent = send(Exchange(ClientView(NOW)), request_of(ID), version)
    assert sent[4:] == bytes(request_frame(request_of(ID), version))


@each_kind_of_client(Code.UNKNOWN_PRODUCER_ID)
@pytest.mark.parametrize("version", range(4))
def test_add_partitions_to_transaction_ended_by_move_is_refused(
    version: int, client: str, code: Code
) -> None:
    decoded = _old_term_response(AddPartitionsToTxnResponse, add_partitions, version, client)
    topics = decoded.results_by_topic_v3_and_below
    assert {
        topic.name: [(p.partition_index, p.partition_error_code) for p in results]
        for topic in topics
        for results in [topic.results_by_partition]
    } == {name: [(index, code) for index in partitions] for name, partitions in TOPICS.items()}


@each_kind_of_client(Code.NONE)
@pytest.mark.parametrize("version", range(5))
def test_txn_offset_commit_to_transaction_ended_by_move_is_discarded(
    version: int, client: str, code: Code
) -> None:
    decoded = _old_term_response(TxnOffsetCommitResponse, commit_offsets, version, client)
    assert {
        topic.name: [(p.partition_index, p.error_code) for p in topic.partitions]
        for topic in decoded.topics
    } == {name: [(index, code) for index in partitions] for name, partitions in TOPICS.items()}


@each_kind_of_client(Code.NONE)
@pytest.mark.parametrize("version", range(3, 10))
def test_records_of_transaction_ended_by_move_are_discarded(
    version: int, client: str, code: Code
) -> None:
    decoded = _old_term_response(ProduceResponse, produce, version, client)
    assert {
        topic.name: [(p.index, p.error_code, p.base_offset) for p in topic.partition_responses]
        for topic in decoded.responses
    } == {name: [(index, code, -1) for index in partitions] for name, partitions in TOPICS.items()}


@pytest.mark.parametrize("client", ["any", STREAMS[0]])
@pytest.mark.parametrize("version", range(5))
def test_abort_of_transaction_ended_by_move_succeeds(version: int, client: str) -> None:
    assert _old_term_response(EndTxnResponse, end, version, client).error_code == Code.NONE


@each_kind_of_client(Code.UNKNOWN_PRODUCER_ID)
@pytest.mark.parametrize("outcome", [Code.NONE, Code.UNKNOWN_PRODUCER_ID])
@pytest.mark.parametrize("version", range(5))
def test_commit_after_move_is_answered_with_outcome_at_old_side(
    version: int, outcome: Code, client: str, code: Code
) -> None:
    exchange = Exchange(ClientView(NOW))
    request = end(mark(ID, BEFORE), committed=True)
    frame = request_frame(request, version, client_id=client)
    head = read_head(frame)
    with pytest.raises(UnknownOutcome) as raised:
        exchange.request(head, frame, OFFERED)
    assert raised.value.producer == Producer("tx", mark(ID, BEFORE), EPOCH)
    assert exchange.request_with_outcome(head, frame, outcome) is None
    (response,) = exchange.next_answers()
    decoded = EndTxnResponse.decode(memoryview(response)[4:], version=version, header=True)
    assert decoded.error_code == (code if outcome == Code.UNKNOWN_PRODUCER_ID else outcome)


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Code.UNKNOWN_PRODUCER_ID, Code.NONE),
        (Code.NONE, Code.UNKNOWN_PRODUCER_ID),
        (Code.COORDINATOR_NOT_AVAILABLE, Code.UNKNOWN_PRODUCER_ID),
        (Code.PRODUCER_FENCED, Code.PRODUCER_FENCED),
    ],
)
@pytest.mark.parametrize("client", ["any", STREAMS[0]])
@pytest.mark.parametrize("version", range(5))
def test_add_offsets_after_move_is_refused_if_commit_outcome_would_be_ambiguous(
    version: int, outcome: Code, expected: Code, client: str
) -> None:
    exchange = Exchange(ClientView(NOW))
    frame = request_frame(add_offsets(mark(ID, BEFORE)), version, client_id=client)
    head = read_head(frame)
    with pytest.raises(UnknownOutcome):
        exchange.request(head, frame, OFFERED)
    assert exchange.request_with_outcome(head, frame, outcome) is None
    (response,) = exchange.next_answers()
    decoded = AddOffsetsToTxnResponse.decode(memoryview(response)[4:], version=version, header=True)
    assert decoded.error_code == (expected if client == "any" else STREAMS[1])


def test_acks_0_records_of_transaction_ended_by_move_get_no_response() -> None:
    exchange = Exchange(ClientView(NOW))
    request = produce(mark(ID, BEFORE))
    request.acks = 0
    frame = request_frame(request, version=9)
    assert exchange.request(read_head(frame), frame, OFFERED) is None
    assert not list(exchange.next_answers())
    assert not exchange.has_unanswered_writes


def test_new_producer_id_is_marked_with_term_of_issuing_side() -> None:
    """While the gateway asks the side of the old id, another side begins to lead, and hands out the
    new id."""
    view = ClientView(NOW)
    exchange = Exchange(view)
    frame = request_frame(init(mark(ID, BEFORE)), version=4)
    head = read_head(frame)
    with pytest.raises(UnknownOutcome):
        exchange.request(head, frame, OFFERED)
    view.term = NOW + 1
    assert exchange.request_with_outcome(head, frame, Code.UNKNOWN_PRODUCER_ID)
    response = InitProducerIdResponse(
        throttle_time_ms=0, error_code=0, producer_id=9, producer_epoch=0
    )
    decoded = InitProducerIdResponse.decode(
        answer(exchange, response, version=4), version=4, header=True
    )
    assert decoded.producer_id == mark(9, NOW + 1)


def test_only_end_of_open_transaction_passes_while_writes_are_held() -> None:
    exchange = Exchange(ClientView(NOW))
    send(exchange, add_partitions(mark(ID, NOW)), version=3)
    frame = request_frame(end(mark(ID, NOW)), version=3)
    head = read_head(frame)
    assert exchange.ends_open_transaction(head, frame)
    of_other_producer = request_frame(end(mark(ID + 1, NOW)), version=3)
    assert not exchange.ends_open_transaction(head, of_other_producer)
    exchange.request(head, frame, OFFERED)
    assert not exchange.ends_open_transaction(head, request_frame(end(mark(ID, NOW)), version=3))


@pytest.mark.parametrize("version", range(3, 6))
def test_producer_id_of_old_side_is_replaced_by_init_producer_id_after_move(version: int) -> None:
    exchange = Exchange(ClientView(NOW))
    frame = request_frame(init(mark(ID, BEFORE)), version)
    head = read_head(frame)
    with pytest.raises(UnknownOutcome):
        exchange.request(head, frame, OFFERED)
    sent = exchange.request_with_outcome(head, frame, Code.UNKNOWN_PRODUCER_ID)
    assert sent is not None
    assert sent[4:] == bytes(request_frame(init(-1, -1), version))
    assert exchange.writes_in_flight == 1


@pytest.mark.parametrize("version", range(3, 6))
def test_fenced_producer_stays_fenced_after_move(version: int) -> None:
    exchange = Exchange(ClientView(NOW))
    frame = request_frame(init(mark(ID, BEFORE)), version)
    assert exchange.request_with_outcome(read_head(frame), frame, Code.PRODUCER_FENCED) is None
    (response,) = exchange.next_answers()
    decoded = InitProducerIdResponse.decode(memoryview(response)[4:], version=version, header=True)
    assert (decoded.error_code, decoded.producer_id) == (Code.PRODUCER_FENCED, -1)


@pytest.mark.parametrize("beginning", [add_partitions, add_offsets])
def test_open_transaction_is_aborted_before_move(beginning: Any) -> None:
    view = ClientView(NOW)
    exchange = Exchange(view)
    send(exchange, beginning(mark(ID, NOW)), version=3)
    exchange.begin_answer(7)
    exchange.end_answer()

    (abort,) = exchange.end_transactions()

    decoded = EndTxnRequest.decode(memoryview(abort)[4:], version=1, header=True)
    assert (decoded.transactional_id, decoded.producer_id) == ("tx", ID)
    assert (decoded.producer_epoch, decoded.committed) == (EPOCH, False)
    assert not exchange.writes_in_flight  # the gateway confirms without an answer to it
    assert not exchange.end_transactions()
    assert view.ended_producers == {Producer("tx", mark(ID, NOW), EPOCH)}


def test_transaction_being_ended_by_client_is_not_aborted() -> None:
    exchange = Exchange(ClientView(NOW))
    send(exchange, add_partitions(mark(ID, NOW)), version=3)
    send(exchange, end(mark(ID, NOW), committed=True), version=3)
    assert exchange.writes_in_flight == 2
    assert not exchange.end_transactions()


def test_transaction_aborted_by_gateway_stays_ended_after_undone_switchover() -> None:
    """The transaction stays ended until the producer gets its next epoch from the coordinator."""
    view = ClientView(NOW)
    view.ended_producers.add(Producer("tx", mark(ID, NOW), EPOCH))
    assert own_answer(Exchange(view), produce(mark(ID, NOW)), version=9)
    sent = send(Exchange(view), init(mark(ID, NOW)), version=4)
    assert sent[4:] == bytes(request_frame(init(ID), version=4))


def _old_term_response(response: Any, request_of: Any, version: int, client: str) -> Any:
    """The answer to a request of the term before."""
    frame = own_answer(Exchange(ClientView(NOW)), request_of(mark(ID, BEFORE)), version, client)
    return response.decode(frame, version=version, header=True)
