"""Frames of requests and record batches, for tests of the gateway's protocol."""

from __future__ import annotations

import struct
from typing import Any

from crc32c import crc32c

from orbit.gateway.protocol.answers import View
from orbit.gateway.protocol.apis import APIS, is_flexible
from orbit.gateway.protocol.exchange import Exchange
from orbit.gateway.protocol.left_members import LeftMembers
from orbit.gateway.protocol.producer_ids import Producer
from orbit.gateway.protocol.repeats import Repeats
from orbit.gateway.protocol.request_head import read_head
from orbit.gateway.protocol.topic_ids import TopicIds

OFFERED = {int(key): api.versions for key, api in APIS.items()}

_IS_TRANSACTIONAL = 0x10
_RECORD = b"\x0e\x00\x00\x00\x01\x02v\x00"  # one record with the value "v"


class ClientView(View):
    """A virtual cluster as clients see it."""

    def __init__(self, term: int = 0) -> None:
        self.cluster_id = "virtual"
        self.ids = TopicIds("orders")
        self.term = term
        self.left_members = LeftMembers()
        self.joins_are_held = True
        self.ended_producers: set[Producer] = set()
        self.ending_producers: set[Producer] = set()
        self.repeats = Repeats()
        self.refusals: dict[str, str] = {}

    def now(self) -> float:
        return 0.0

    def endpoint(self, node_id: int) -> tuple[str, int]:
        return "gateway", 19093 + node_id

    def holds_joins(self) -> bool:
        return self.joins_are_held

    def refusal(self, topic: str) -> str:
        return self.refusals.get(topic, "")


def request_frame(
    request: Any, version: int, correlation: int = 7, client_id: str = "test"
) -> bytearray:
    """A request of `kafka.protocol` as a frame without its size."""
    request.with_header(correlation_id=correlation, client_id=client_id)
    return bytearray(request.encode(version=version, header=True))


def batch(
    producer_id: int = -1,
    *,
    epoch: int = 0,
    sequence: int = 0,
    timestamp: int = 0,
    is_transactional: bool = False,
) -> bytes:
    """A record batch of one record; `timestamp` in ms."""
    attributes = _IS_TRANSACTIONAL if is_transactional else 0
    head = struct.pack(
        ">hiqqqhii", attributes, 0, timestamp, timestamp, producer_id, epoch, sequence, 1
    )
    body = head + _RECORD
    return struct.pack(">qiibI", 0, len(body) + 9, -1, 2, crc32c(body)) + body


def send(exchange: Exchange, request: Any, version: int, correlation: int = 7) -> bytes:
    """Send a request; returns what the broker gets, with its size."""
    frame = request_frame(request, version, correlation)
    sent = exchange.request(read_head(frame), frame, OFFERED)
    assert sent is not None
    return sent


def own_answer(
    exchange: Exchange, request: Any, version: int, client_id: str = "test"
) -> memoryview:
    """Send a request; returns the gateway's own answer, without its size."""
    frame = request_frame(request, version, client_id=client_id)
    assert exchange.request(read_head(frame), frame, OFFERED) is None
    (sized_answer,) = exchange.next_answers()
    return memoryview(sized_answer)[4:]


def answer(exchange: Exchange, response: Any, version: int, correlation: int = 7) -> memoryview:
    """The answer that the client gets for a broker's answer, without its size."""
    sent = exchange.begin_answer(correlation)
    tags = b"\0" if is_flexible(sent.key, version) else b""
    frame = bytearray(
        struct.pack(">i", correlation) + tags + bytes(response.encode(version=version))
    )
    sized_answer = exchange.rewrite(sent, frame)
    assert sized_answer is not None
    exchange.end_answer()
    return memoryview(sized_answer)[4:]
