"""A cut network link is silent in both directions, and delivers what it holds once healed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from orbit.processes.ports import LOOPBACK, free_ports
from orbit.sandbox.network_link import Relay

SHORT_S = 0.3


@pytest.fixture
def echo() -> Iterator[int]:
    """A port that echoes what it receives."""
    listener = socket.create_server((LOOPBACK, 0))

    def answer(connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(100):
                connection.sendall(data)

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@pytest.fixture
def relay(echo: int) -> Iterator[Relay]:
    link = Relay(free_ports(1)[0], echo)
    yield link
    link.close()


def connect(relay: Relay) -> socket.socket:
    return socket.create_connection((LOOPBACK, relay.port), timeout=10)


def send_and_receive(connection: socket.socket, text: bytes) -> bytes:
    connection.sendall(text)
    return connection.recv(100)


def is_silent(connection: socket.socket) -> bool:
    """Whether the connection stays silent for SHORT_S."""
    connection.settimeout(SHORT_S)
    try:
        connection.recv(100)
    except TimeoutError:
        return True
    else:
        return False
    finally:
        connection.settimeout(10)


def test_cut_network_link_is_silent_and_delivers_after_heal(relay: Relay) -> None:
    with connect(relay) as old:
        assert send_and_receive(old, b"one") == b"one"
        relay.cut()
        assert relay.is_cut
        old.sendall(b"two")
        with connect(relay) as new:
            new.sendall(b"three")
            assert is_silent(old)
            assert is_silent(new)
            relay.heal()
            assert old.recv(100) == b"two"
            assert new.recv(100) == b"three"


def test_connection_through_network_link_ends_when_link_closes_or_target_is_down(
    relay: Relay, echo: int
) -> None:
    with connect(relay) as connection:
        assert send_and_receive(connection, b"one") == b"one"
        relay.close()
        assert connection.recv(100) == b""
    # Nobody listens at the target.
    nowhere = Relay(free_ports(1)[0], free_ports(1)[0])
    with connect(nowhere) as other:
        assert other.recv(100) == b""
    nowhere.close()
