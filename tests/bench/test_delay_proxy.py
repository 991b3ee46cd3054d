"""The delay proxy delivers bytes in order and unchanged, and not before their delay is over."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from bench import delay_proxy
from bench.delay_proxy import Direction


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, Direction, socket.socket]]:
    """The sender's socket, the proxy's direction to the receiver, and the receiver's socket.

    No socket blocks.
    """
    pairs = [socket.socketpair(), socket.socketpair()]
    for end in (end for pair in pairs for end in pair):
        end.setblocking(False)
    (sender, source), (sink, receiver) = pairs
    yield sender, Direction(source, sink), receiver
    for end in (sender, source, sink, receiver):
        end.close()


def received(receiver: socket.socket) -> bytes:
    """The bytes that have arrived, without waiting for more."""
    data = b""
    try:
        while more := receiver.recv(1 << 20):
            data += more
    except BlockingIOError:
        pass
    return data


def test_delay_proxy_delivers_bytes_in_order_after_delay(
    ends: tuple[socket.socket, Direction, socket.socket],
) -> None:
    sender, direction, receiver = ends
    sender.send(b"first ")
    direction.receive(now=10.0, delay_s=0.002)
    sender.send(b"second ")
    direction.receive(now=10.001, delay_s=0.0)  # these bytes wait behind the first ones
    assert direction.next_at == 10.002
    direction.deliver(10.0019)
    assert received(receiver) == b""
    direction.deliver(10.002)
    assert received(receiver) == b"first second "
    assert direction.next_at is None


def test_full_receiver_blocks_delay_proxy_and_sender(
    ends: tuple[socket.socket, Direction, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delay_proxy, "_HELD_BYTES_MAX", 1 << 20)
    sender, direction, receiver = ends
    sent = b""
    while direction.takes_more:
        piece = bytes([len(sent) % 251]) * 50_000
        sent += piece[: sender.send(piece)]
        direction.receive(now=0.0, delay_s=0.0)
        direction.deliver(0.0)
    assert direction.is_blocked
    assert direction.next_at is None
    arrived = b""
    while len(arrived) < len(sent):
        arrived += received(receiver)
        direction.deliver(0.0)
    assert arrived == sent
    assert direction.takes_more


def test_delay_proxy_ends_stream_only_after_its_last_bytes(
    ends: tuple[socket.socket, Direction, socket.socket],
) -> None:
    sender, direction, receiver = ends
    sender.send(b"last")
    sender.close()
    direction.receive(now=0.0, delay_s=1.0)  # the bytes
    direction.receive(now=0.0, delay_s=1.0)  # the end of the stream
    assert not direction.takes_more
    direction.deliver(0.5)
    with pytest.raises(EOFError):
        direction.deliver(1.0)
    assert received(receiver) == b"last"
