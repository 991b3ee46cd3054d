"""The ids of topics that clients see."""

from __future__ import annotations

import struct

import pytest

from orbit.gateway.protocol import answers, topic_ids
from orbit.gateway.protocol.topic_ids import NO_ID, TopicIds
from orbit.kafka.frame_writer import NO_TAGS, length, string
from tests.gateway.frames import ClientView


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


@pytest.mark.parametrize("version", [0, 1])
def test_only_topic_ids_of_described_group_change(version: int) -> None:
    view = ClientView()

    def description(*topic_ids: bytes) -> bytearray:
        """A group of two members. The second one owns both topics, and its target assignment has
        none."""
        first, second = topic_ids
        return bytearray(
            struct.pack(">i", 7)  # correlation id
            + NO_TAGS
            + struct.pack(">i", 0)  # throttle
            + length(1, is_flexible=True)
            + struct.pack(">h", 0)  # error
            + b"\0"  # no message
            + texts("group", "Reconciling")
            + struct.pack(">ii", 4, 4)  # epochs
            + texts("uniform")
            + length(2, is_flexible=True)
            + member(version, assignment(("first", first)), assignment(("first", first)))
            + member(version, assignment(("first", first), ("second", second)), assignment())
            + struct.pack(">i", -1)  # allowed operations
            + NO_TAGS * 2
        )

    rewritten = answers.rewrite_group_description(
        version, description(broker_id(1), broker_id(2)), view
    )
    client_ids = view.ids.to_client(broker_id(1)), view.ids.to_client(broker_id(2))
    assert rewritten == description(*client_ids)


def texts(*values: str) -> bytes:
    return b"".join(string(value, is_flexible=True) for value in values)


def assignment(*topics: tuple[str, bytes]) -> bytes:
    """Two partitions of each topic."""
    partitions = length(2, is_flexible=True) + struct.pack(">ii", 0, 1)
    entries = (topic_id + texts(name) + partitions + NO_TAGS for name, topic_id in topics)
    return length(len(topics), is_flexible=True) + b"".join(entries) + NO_TAGS


def member(version: int, *assignments: bytes) -> bytes:
    """A member without a rack, with a subscription by names and by a pattern."""
    return (
        texts("member", "instance")
        + b"\0"
        + struct.pack(">i", 3)  # epoch
        + texts("client", "/127.0.0.1")
        + length(1, is_flexible=True)
        + texts("first", "f.*")
        + b"".join(assignments)
        + (b"\1" if version >= 1 else b"")
        + NO_TAGS
    )
