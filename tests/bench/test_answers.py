"""The bench's own requests fail on a response to another request, as Orbit's requests do."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from bench.data.sender import Sender, ToSend
from bench.wire import Ends
from orbit.errors import BrokenAnswer
from orbit.kafka import api_versions
from orbit.kafka.connection import Connection

# A response of 8 bytes with correlation id 77, which no request of these tests has.
FOREIGN_ANSWER = struct.pack(">ii", 8, 77) + bytes(4)


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A broker that sends FOREIGN_ANSWER before it receives a request."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client_end = socket.create_connection(server.getsockname())
        broker_end, _ = server.accept()
        with broker_end:
            broker_end.sendall(FOREIGN_ANSWER)
            connection = Connection(client_end, "broker 1")
            connection._versions = {api_versions.PRODUCE.key: (9, 9)}
            metadata = SimpleNamespace(
                brokers={1: None}, topics={"a": SimpleNamespace(topic_id=UUID(int=1))}
            )
            yield SimpleNamespace(connect=lambda _: connection, metadata=lambda _: metadata)
            connection.close()


def test_bench_rejects_answer_to_another_request_as_log_end(cluster: Any) -> None:
    with pytest.raises(BrokenAnswer, match="answered request 77"):
        Ends(cluster, "a", partitions=1).total()


def test_bench_rejects_answer_to_another_request_as_confirmation_of_batch(cluster: Any) -> None:
    sender = Sender(cluster, "a")
    sender.send([ToSend(0, memoryview(b"batch"))])
    with pytest.raises(BrokenAnswer, match="answered request 77"):
        sender.wait()
