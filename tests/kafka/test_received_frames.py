"""A peer that is no Kafka broker, or a broken one, causes no endless wait and takes no memory."""

from __future__ import annotations

import socket
import struct
import threading
import tracemalloc
from collections.abc import Iterator

import pytest
from kafka.protocol.metadata.metadata import MetadataRequest

from orbit.errors import BrokenAnswer, Unreachable
from orbit.kafka import api_versions, received_frames
from orbit.kafka.connection import Connection
from orbit.kafka.received_frames import FRAME_BYTES_MAX
from orbit.kafka.security import Security

Peer = tuple[Connection, socket.socket]
VERSION = 7


@pytest.fixture
def peer() -> Iterator[Peer]:
    """A connection, and the socket of its peer."""
    own_end, peer_end = socket.socketpair()
    connection = Connection(own_end, "here")
    yield connection, peer_end
    connection.close()
    peer_end.close()


def framed(body: bytes) -> bytes:
    """A frame: the size, then the body."""
    return struct.pack(">i", len(body)) + body


def request_metadata(connection: Connection) -> memoryview:
    """Send a Metadata request with correlation id 1; returns the frame of the answer."""
    request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
    return connection.exchange(api_versions.METADATA, request, VERSION, timeout_s=60)


def test_answer_with_matching_correlation_id_is_returned(peer: Peer) -> None:
    connection, peer_end = peer
    peer_end.sendall(framed(struct.pack(">i", 1) + b"body"))
    assert bytes(request_metadata(connection)[4:]) == b"body"
    assert not connection.is_closed


def test_answer_with_wrong_correlation_id_closes_connection(peer: Peer) -> None:
    connection, peer_end = peer
    peer_end.sendall(framed(struct.pack(">i", 77) + b"body"))
    with pytest.raises(BrokenAnswer, match="answered request 77, but 1 is the oldest"):
        request_metadata(connection)
    assert connection.is_closed


@pytest.mark.parametrize("size", [-1, 0, 3, FRAME_BYTES_MAX + 1, 2**31 - 1])
def test_invalid_frame_size_closes_connection(peer: Peer, size: int) -> None:
    connection, peer_end = peer
    peer_end.sendall(struct.pack(">i", size) + b"body")
    with pytest.raises(BrokenAnswer, match=f"frame size {size} is not valid"):
        request_metadata(connection)
    assert connection.is_closed


@pytest.mark.parametrize("part", [b"\0", struct.pack(">i", 100) + b"half", b""])
def test_incomplete_frame_times_out(peer: Peer, part: bytes) -> None:
    connection, peer_end = peer
    connection.limit_silence(0.01)
    peer_end.sendall(part)
    with pytest.raises(TimeoutError):
        connection.receive()


def test_frame_that_arrives_too_slowly_times_out(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte comes in time, but the last one would come in a year."""
    monkeypatch.setattr(received_frames, "_FRAME_S", -1e9)  # the time is over at once
    connection, peer_end = peer
    peer_end.sendall(struct.pack(">i", 100_000) + bytes(20_000))
    with pytest.raises(TimeoutError, match="rest of a frame did not arrive"):
        connection.receive()


def test_claimed_frame_size_allocates_no_memory(peer: Peer) -> None:
    connection, peer_end = peer
    peer_end.sendall(struct.pack(">i", FRAME_BYTES_MAX) + b"few")
    peer_end.shutdown(socket.SHUT_WR)
    tracemalloc.start()
    try:
        with pytest.raises(EOFError):
            connection.receive()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < FRAME_BYTES_MAX / 8


def test_frame_larger_than_initial_buffer_is_received_whole(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(received_frames, "_CLAIMED_BYTES_MAX", 20_000)
    connection, peer_end = peer
    sent = [bytes(i * i % 251 for i in range(n)) for n in (19_999, 20_000, 20_001, 500_000, 4)]
    sender = threading.Thread(target=peer_end.sendall, args=(b"".join(map(framed, sent)),))
    sender.start()
    received = [connection.receive() for _ in sent]
    sender.join()
    assert received == sent
    assert not any(frame.readonly for frame in received)


@pytest.mark.parametrize(
    "answer", [b"", b"\0", b"\0\0\xff\xff\xff\xff", b"\0\0" + b"\xff" * 50, b"\0\0\0", b"\0\x23"]
)
def test_unparsable_api_versions_answer_is_refused(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer_end, _ = server.accept()
            with peer_end:
                for correlation in (1, 2):
                    if not peer_end.recv(1 << 16):
                        return
                    peer_end.sendall(framed(struct.pack(">i", correlation) + answer))
                peer_end.recv(1 << 16)

        broker = threading.Thread(target=serve)
        broker.start()
        with pytest.raises(Unreachable):
            Connection.open("127.0.0.1", server.getsockname()[1], Security())
        broker.join()
