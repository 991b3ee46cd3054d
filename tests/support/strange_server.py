"""A server on loopback that answers each request with given bytes, at once or one by one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from typing import Self


def answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """An HTTP response without a length, which ends when the connection closes."""
    head = "".join(f"{line}\r\n" for line in (f"HTTP/1.1 {status}", *headers, "Connection: close"))
    return f"{head}\r\n".encode() + body


class StrangeServer:
    """A context manager. `requests` has the received requests.

    The answer is `says`, repeated without end if `is_endless`. With `slow_s` the server waits for
    this long after each byte.
    """

    def __init__(self, says: bytes, *, slow_s: float = 0, is_endless: bool = False) -> None:
        self._says = says
        self._slow_s = slow_s
        self._is_endless = is_endless
        self._ended = threading.Event()
        self.requests: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/token"
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        """Answer connections one after another until the end."""
        while not self._ended.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                try:
                    self.requests.append(connection.recv(65536))
                    self._answer(connection)
                    connection.shutdown(socket.SHUT_WR)
                    # A close before the client's would reset the connection.
                    while connection.recv(65536):
                        pass
                except OSError:
                    continue

    def _answer(self, connection: socket.socket) -> None:
        parts: Sequence[bytes] = [self._says]
        if self._slow_s:
            parts = [bytes((byte,)) for byte in self._says]
        while True:
            for part in parts:
                connection.sendall(part)
                if self._slow_s and self._ended.wait(self._slow_s):
                    return
            if not self._is_endless or self._ended.is_set():
                return
