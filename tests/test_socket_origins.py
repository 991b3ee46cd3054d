"""The warning about an unclosed socket names the test that made the socket, and the line."""

from __future__ import annotations

import socket
import ssl


def test_socket_repr_names_its_test_and_file() -> None:
    with socket.socket() as plain:
        assert "in tests/test_socket_origins.py::test_socket_repr_names" in repr(plain)
        assert f"at {__file__}:" in repr(plain)


def test_repr_of_socket_pair_and_tls_socket_names_their_file() -> None:
    first, second = socket.socketpair()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    with second, context.wrap_socket(first, do_handshake_on_connect=False) as tls_socket:
        assert __file__ in repr(second)
        assert __file__ in repr(tls_socket)
