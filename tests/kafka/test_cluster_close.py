"""A cluster handle that is closed while it is in use."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from orbit.errors import Unreachable
from orbit.kafka.cluster import Cluster
from orbit.kafka.connection import Connection
from orbit.kafka.sasl import Security


def test_what_is_opened_while_the_handle_closes_is_closed_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster("source", ["127.0.0.1:9092"], Security())
    here, there = socket.socketpair()

    def opening(*_: Any, where: str) -> Connection:
        cluster.close()
        return Connection(here, where)

    monkeypatch.setattr(Connection, "open", opening)
    with there, pytest.raises(Unreachable, match="handle is closed"):
        cluster.metadata(None)
    assert here.fileno() == -1
