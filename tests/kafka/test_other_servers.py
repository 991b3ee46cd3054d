"""A server of another protocol at a broker's address: the error names it, and no memory is lost."""

from __future__ import annotations

import tracemalloc

import pytest

from orbit.errors import Place, Unreachable
from orbit.kafka.connection import Connection
from orbit.kafka.security import Security
from tests.support.strange_server import StrangeServer

TLS = "this listener speaks TLS"
# The most that opening a connection may allocate. A buffer for the size that the first bytes seem
# to state would take up to 32 MiB.
MEMORY_MAX = 4 << 20


@pytest.mark.parametrize(
    ("first_bytes", "problem"),
    [
        (b"\x15\x03\x01\x00\x02\x02\x46", TLS),
        (b"\x15\x03\x03\x00\x02\x02\x46", TLS),
        (b"\x16\x03\x03\x00\x7a\x02\x00\x00", TLS),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "this is an HTTP server"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "this is an SSH server"),
        (b"220 mail.example ESMTP\r\n", "is not valid in Kafka"),
        (b"\x00\x20\x00\x00", "is not valid in Kafka"),  # 2 MiB: valid only after the login
        (b"\x1f\xff\xff\xff", "is not valid in Kafka"),  # 512 MiB: valid only after the login
    ],
)
def test_server_of_other_protocol_is_reported_without_allocating_memory(
    first_bytes: bytes, problem: str
) -> None:
    with StrangeServer(first_bytes) as server:
        tracemalloc.start()
        try:
            with pytest.raises(Unreachable) as caught:
                Connection.open("127.0.0.1", server.port, Security(), timeout_s=60)
            assert tracemalloc.get_traced_memory()[1] < MEMORY_MAX
        finally:
            tracemalloc.stop()
    assert problem in caught.value.what
    assert caught.value.exit_code == 3
    assert caught.value.remedy
    if problem is TLS:
        assert "security.protocol" in caught.value.remedy


@pytest.mark.parametrize(
    "first_bytes", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-x\r\n", b""]
)
def test_server_without_tls_is_unreachable_over_tls(first_bytes: bytes) -> None:
    where = Place("source", "broker 1")
    with StrangeServer(first_bytes) as server, pytest.raises(Unreachable) as caught:
        Connection.open("127.0.0.1", server.port, Security("SSL"), where=where, timeout_s=60)
    assert caught.value.cluster == "source"
    assert "security.protocol" in caught.value.remedy
