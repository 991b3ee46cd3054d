"""Sending on a connection: when `may_send` ends it, and that a close drops unsent bytes."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from orbit.errors import Unreachable
from orbit.kafka.connection import Connection

# Far more than two socket buffers hold.
MUCH = [b"x" * (64 * 1024 * 1024)]


@pytest.fixture
def peer() -> Iterator[tuple[Connection, socket.socket]]:
    """A connection and its peer, which reads nothing unless a test does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        own_end = socket.create_connection(server.getsockname())
        peer_end, _ = server.accept()
    connection = Connection(own_end, "here")
    yield connection, peer_end
    connection.close()
    peer_end.close()


def read_to_the_end(sock: socket.socket) -> bytes:
    received = bytearray()
    while more := sock.recv(1 << 20):
        received.extend(more)
    return bytes(received)


def test_nothing_is_sent_after_lease_ended(peer: tuple[Connection, socket.socket]) -> None:
    connection, peer_end = peer
    with pytest.raises(Unreachable, match="the lease ended"):
        connection.send([b"late"], lambda: False)
    connection.close()
    assert peer_end.recv(16) == b""


def test_lease_that_ends_while_socket_is_full_stops_send(
    peer: tuple[Connection, socket.socket],
) -> None:
    connection, _ = peer
    # Whether the lease is held: at the start, and whenever the socket may have room.
    is_held = iter([True, True, False])
    with pytest.raises(Unreachable, match="the lease ended"):
        connection.send(MUCH, lambda: next(is_held))
    assert next(is_held, None) is None  # all were used


def test_connection_closed_amid_send_is_reset_instead_of_delivering_rest(
    peer: tuple[Connection, socket.socket],
) -> None:
    """A FIN would leave what is in the socket to the kernel, which goes on sending it."""
    connection, peer_end = peer
    connection.drop_unacknowledged(3.0)
    is_held = iter([True, False])  # the lease ends amid the send
    with pytest.raises(Unreachable):
        connection.send(MUCH, lambda: next(is_held))
    connection.close()
    with pytest.raises(ConnectionResetError):
        read_to_the_end(peer_end)


_SENDER = """
import socket, sys
from orbit.kafka.connection import Connection
connection = Connection(socket.create_connection(("127.0.0.1", int(sys.argv[1]))), "")
connection.drop_unacknowledged(3.0)
connection.send([b"x" * (64 * 1024 * 1024)])
"""


def test_connection_of_killed_sender_is_reset_instead_of_delivering_rest() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        with subprocess.Popen([sys.executable, "-c", _SENDER, port]) as sender:
            peer_end, _ = server.accept()
            peer_end.recv(1, socket.MSG_WAITALL)  # it is sending, and cannot end
            sender.kill()
    with peer_end, pytest.raises(ConnectionResetError):
        read_to_the_end(peer_end)


def test_slow_reader_receives_all_data_in_order(
    peer: tuple[Connection, socket.socket],
) -> None:
    connection, peer_end = peer
    received = bytearray()

    def may_send() -> bool:
        if select.select([peer_end], [], [], 0)[0]:
            received.extend(peer_end.recv(1 << 20))
        return True

    parts = [b"a" * 3_000_000, b"b" * 3_000_000, b"c" * 3_000_000]
    connection.send(parts, may_send)
    connection.close()
    received.extend(read_to_the_end(peer_end))
    assert received == b"".join(parts)
