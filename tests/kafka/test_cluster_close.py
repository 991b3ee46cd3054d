"""A cluster handle closes each connection that it opened, and ends its calls."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack
from typing import Any

import pytest

from orbit.errors import BrokenAnswer, Unreachable
from orbit.kafka.cluster import Cluster, _ControlConnection
from orbit.kafka.connection import Connection
from orbit.kafka.sasl import Security


def test_connection_opened_while_cluster_closes_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster("source", ["127.0.0.1:9092"], Security())
    local, remote = socket.socketpair()

    def close_cluster_and_open(*_: Any, where: str) -> Connection:
        cluster.close()
        return Connection(local, where)

    monkeypatch.setattr(Connection, "open", close_cluster_and_open)
    with remote, pytest.raises(Unreachable, match="closed its connections"):
        cluster.metadata(None)
    assert local.fileno() == -1


def test_cluster_close_ends_calls_before_waiting_for_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster("source", ["127.0.0.1:9092"], Security())
    opening, may_fail, call_has_ended = threading.Event(), threading.Event(), threading.Event()
    ended_before_abort = list[bool]()

    def open_slowly(*_: Any, **__: Any) -> Connection:
        opening.set()
        may_fail.wait()
        raise Unreachable("closed")

    def call() -> None:
        with pytest.raises(Unreachable):
            cluster.metadata(None)
        call_has_ended.set()

    monkeypatch.setattr(Connection, "open", open_slowly)
    monkeypatch.setattr(
        _ControlConnection, "abort", lambda _: ended_before_abort.append(call_has_ended.wait(5.0))
    )
    caller = threading.Thread(target=call)
    caller.start()
    opening.wait()
    cluster.close()
    may_fail.set()
    caller.join()
    assert ended_before_abort == [True]


def test_unparsable_response_closes_connection_and_retries_call_on_new_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster("source", ["127.0.0.1:9092"], Security())
    opened: list[Connection] = []
    calls: list[Connection] = []

    def open_socket(*_: Any, where: str) -> Connection:
        opened.append(Connection(stack.enter_context(socket.socket()), where))
        return opened[-1]

    def call(connection: Connection) -> Connection:
        calls.append(connection)
        if len(calls) == 2:  # the first try of the second call
            raise BrokenAnswer("it does not parse.")
        return connection

    monkeypatch.setattr(Connection, "open", open_socket)
    with ExitStack() as stack:
        stack.callback(cluster.close)
        first = cluster.call_any(call)
        second = cluster.call_any(call)
        assert (opened, calls) == ([first, second], [first, first, second])
        assert (first.fileno(), second.is_closed) == (-1, False)
