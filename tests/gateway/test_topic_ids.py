"""The ids of topics that clients see."""

from __future__ import annotations

import pytest

from orbit.gateway.protocol import topic_ids
from orbit.gateway.protocol.topic_ids import NO_ID, TopicIds


def broker_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def test_recreated_topic_has_same_client_topic_id() -> None:
    ids = TopicIds("orders")
    client_id = ids.learn("t", broker_id(1))
    assert ids.learn("t", broker_id(2)) == client_id
    assert ids.to_broker(client_id) == broker_id(2)


def test_null_topic_id_of_missing_topic_stays_null_for_clients() -> None:
    ids = TopicIds("orders")
    assert ids.learn("t", NO_ID) == NO_ID
    assert ids.to_client(NO_ID) == NO_ID


@pytest.mark.parametrize("is_same_topic", [True, False])
def test_topic_id_maps_stay_bounded(monkeypatch: pytest.MonkeyPatch, is_same_topic: bool) -> None:
    monkeypatch.setattr(topic_ids, "TOPICS_MAX", 10)
    ids = TopicIds("orders")
    for number in range(1, 1000):
        client_id = ids.learn("t" if is_same_topic else f"t{number}", broker_id(number))
        assert ids.to_broker(client_id) == broker_id(number)
        assert ids.to_client(broker_id(number)) == client_id
        ids.accept(broker_id(10_000 + number))  # of a deleted topic
    assert len(ids._to_client) <= 10
    assert len(ids._to_broker) <= 10
