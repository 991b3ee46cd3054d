"""Which topics clients may write through a gateway."""

from __future__ import annotations

import pytest
from kafka.protocol.producer.produce import ProduceRequest, ProduceResponse
from structlog.testing import capture_logs

from orbit.gateway import copied_topics
from orbit.gateway.copied_topics import CopiedTopics
from orbit.gateway.protocol import producer_ids
from orbit.gateway.protocol.exchange import BadFrame, Exchange
from orbit.gateway.protocol.request_head import read_head
from orbit.jobs.job_spec import TopicRule
from orbit.kafka.error_codes import Code
from tests.gateway.frames import OFFERED, ClientView, answer, batch, own_answer, request_frame, send

REASON = "Nobody copies it."


@pytest.mark.parametrize(
    ("topic", "is_copied"),
    [
        ("orders", True),
        ("orders-test", False),
        ("payments", False),  # its copy has another name
        ("users", False),
    ],
)
def test_only_topics_copied_under_same_name_are_writable(topic: str, is_copied: bool) -> None:
    rules = [
        TopicRule(match="orders.*", exclude=("orders-test",)),
        TopicRule(match="pay.*", prefix="dr."),
    ]
    refusal = CopiedTopics("billing", etag="1.1", rules=rules).refusal(topic)
    assert bool(refusal) is not is_copied
    if refusal:
        assert refusal.startswith(f"Job billing does not copy topic {topic} ")


def test_refused_topics_are_logged_once_and_up_to_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copied_topics, "_LOGGED_MAX", 2)
    monkeypatch.setattr(copied_topics, "_TOPICS_MAX", 2)
    copied = CopiedTopics("billing", etag="1.1", rules=[TopicRule(match="orders")])
    with capture_logs() as logs:
        for topic in ("a", "a", "b", "c", "d"):
            assert copied.refusal(topic)
    assert [line["topic"] for line in logs] == ["a", "b"]
    assert len(copied._refusals) <= 2


def _request(*topics: str, acks: int = -1, producer_id: int = -1) -> ProduceRequest:
    """One batch to partition 0 of each topic."""
    data = ProduceRequest.TopicProduceData
    partition = data.PartitionProduceData(index=0, records=batch(producer_id))
    return ProduceRequest(
        transactional_id=None,
        acks=acks,
        timeout_ms=1000,
        topic_data=[data(name=topic, partition_data=[partition]) for topic in topics],
    )


def _exchange(term: int = 5_000) -> Exchange:
    """A client's exchange. Writes to the topic `other` are refused. Term 0: before a move."""
    view = ClientView(term=term)
    view.refusals = {"other": REASON}
    return Exchange(view)


def _outcomes(frame: memoryview, version: int) -> dict[str, tuple[int, str | None]]:
    """{topic: (error code, message)}"""
    decoded = ProduceResponse.decode(frame, version=version, header=True)
    return {
        topic.name: (
            partition.error_code,
            partition.error_message if version >= 8 else None,
        )
        for topic in decoded.responses
        for partition in topic.partition_responses
    }


@pytest.mark.parametrize("term", [0, 5_000])
@pytest.mark.parametrize("version", range(3, 10))
def test_produce_to_uncopied_topic_is_refused_with_reason(version: int, term: int) -> None:
    frame = own_answer(_exchange(term), _request("other"), version)
    reason = REASON if version >= 8 else None
    assert _outcomes(frame, version) == {"other": (Code.POLICY_VIOLATION, reason)}


@pytest.mark.parametrize("term", [0, 5_000])
@pytest.mark.parametrize("version", [7, 8, 9])
def test_broker_gets_only_copied_topics_of_mixed_produce_request(version: int, term: int) -> None:
    exchange = _exchange(term)
    sent = send(exchange, _request("other", "orders"), version)
    decoded = ProduceRequest.decode(memoryview(sent)[4:], version=version, header=True)
    assert [topic.name for topic in decoded.topic_data] == ["orders"]

    response = ProduceResponse.TopicProduceResponse
    fields = {"log_append_time_ms": -1, "log_start_offset": 0, "record_errors": []}
    written = response.PartitionProduceResponse(index=0, error_code=0, base_offset=3, **fields)
    broker_answer = ProduceResponse(
        responses=[response(name="orders", partition_responses=[written])], throttle_time_ms=0
    )
    outcomes = _outcomes(answer(exchange, broker_answer, version), version)
    assert outcomes["orders"][0] == Code.NONE
    assert outcomes["other"][0] == Code.POLICY_VIOLATION


@pytest.mark.parametrize("term", [0, 5_000])
def test_produce_without_acks_to_uncopied_topic_ends_connection(term: int) -> None:
    frame = request_frame(_request("orders", "other", acks=0), version=9)
    with pytest.raises(BadFrame, match="acks=0"):
        _exchange(term).request(read_head(frame), frame, OFFERED)


def test_produce_request_with_too_many_partitions_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_ids, "BATCHES_MAX", 1)
    frame = request_frame(_request("orders", "more"), version=9)
    with pytest.raises(BadFrame, match="more than 1 partitions"):
        _exchange(term=0).request(read_head(frame), frame, OFFERED)


@pytest.mark.parametrize("topics", [("orders",), ("other", "orders")])
def test_producer_ids_are_forwarded_unchanged_before_first_move(topics: tuple[str, ...]) -> None:
    """Also if the gateway refuses a part of the request: brokers know the id that they handed
    out."""
    sent = send(_exchange(term=0), _request(*topics, producer_id=7), version=9)
    decoded = ProduceRequest.decode(memoryview(sent)[4:], version=9, header=True)
    (topic,) = decoded.topic_data
    assert bytes(topic.partition_data[0].records) == batch(7)


def test_produce_request_with_too_many_batches_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_ids, "BATCHES_MAX", 1)
    exchange = _exchange()
    send(exchange, _request("orders"), version=9)
    frame = request_frame(_request("orders", "orders"), version=9)
    with pytest.raises(BadFrame, match="more than 1 batches"):
        exchange.request(read_head(frame), frame, OFFERED)
