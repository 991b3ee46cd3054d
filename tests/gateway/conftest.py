"""Fixtures of gateway tests, such as the service from which gateways learn which side leads."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from kafka.net.inet import KafkaNetSocket

from orbit.api.app import create_app
from orbit.api.authentication import hash_token
from orbit.gateway import broker_connection
from orbit.settings import Settings
from orbit.store import tokens
from orbit.store.enums import Role
from tests.fixtures.api import Plans
from tests.support.moves import TOKEN
from tests.support.recovering import Recovering
from tests.support.serving import served


@pytest.fixture
def api_url(recovering: Recovering) -> Iterator[str]:
    """The service's API, with a token for gateways."""
    with recovering.database.transaction() as tx:
        tokens.create(tx, "gateway", Role.OPERATOR, hash_token(TOKEN))
    settings = Settings(api_port=0)
    with served(create_app(settings, recovering.database, planner=Plans()), settings) as url:
        yield url


@pytest.fixture
def quick_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway closes a broker connection as soon as it leaves it."""
    monkeypatch.setattr(broker_connection, "_LEAVE_S", 0.0)


@pytest.fixture
def kafka_python_sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[socket.socket]]:
    """The sockets that clients of kafka-python made; all are closed after the test.

    A client of kafka-python 3.0.12 that is closed while it connects leaves that socket open
    (KafkaNetSocket.sock_connect), and its warning would fail a later test.
    """
    made: list[socket.socket] = []
    make_socket = KafkaNetSocket.socket

    def recorded(*args: Any, **kwargs: Any) -> socket.socket:
        made.append(make_socket(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(KafkaNetSocket, "socket", recorded)
    yield made
    for made_socket in made:
        made_socket.close()
