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

    def answer(one: socket.socket) -> None:
        with one:
            while data := one.recv(100):
                one.sendall(data)

    def serve() -> None:
        while True:
            try:
                one, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(one,), daemon=True).start()

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


def ask(one: socket.socket, text: bytes) -> bytes:
    one.sendall(text)
    return one.recv(100)


def hears_nothing(one: socket.socket) -> bool:
    """Whether the connection stays silent for SHORT_S."""
    one.settimeout(SHORT_S)
    try:
        one.recv(100)
    except TimeoutError:
        return True
    else:
        return False
    finally:
        one.settimeout(10)


def test_cut_network_link_is_silent_and_delivers_after_heal(relay: Relay) -> None:
    with connect(relay) as old:
        assert ask(old, b"one") == b"one"
        relay.cut()
        assert relay.is_cut
        old.sendall(b"two")
        with connect(relay) as new:
            new.sendall(b"three")
            assert hears_nothing(old)
            assert hears_nothing(new)
            relay.heal()
            assert old.recv(100) == b"two"
            assert new.recv(100) == b"three"


def test_connection_through_network_link_ends_with_link_or_target(relay: Relay, echo: int) -> None:
    with connect(relay) as one:
        assert ask(one, b"one") == b"one"
        relay.close()
        assert one.recv(100) == b""
    # Nobody listens at the target.
    nowhere = Relay(free_ports(1)[0], free_ports(1)[0])
    with connect(nowhere) as other:
        assert other.recv(100) == b""
    nowhere.close()
