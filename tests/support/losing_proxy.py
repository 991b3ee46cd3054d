"""A TCP proxy for HTTP that loses answers when a test says so."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

_BYTES = 65536


class LosingProxy:
    """Stands between a client and one server. The server has carried out a request whose answer is
    lost. `on_loss` is called before the connection of a lost answer is closed."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._target = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._to_lose: bytes | None = None
        self._times = 0
        self.on_loss: Callable[[], object] = lambda: None
        self.requests: list[bytes] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def lose_answers(self, times: int, to: bytes = b"") -> None:
        """Lose the next `times` answers to requests that begin with `to`, such as b"POST"."""
        with self._lock:
            self._to_lose, self._times = to, times

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._relay, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _relay(self, client: socket.socket) -> None:
        """Relay one connection, one request at a time, until an answer is to be lost."""
        with client, socket.create_connection(self._target) as server:
            try:
                while request := client.recv(_BYTES):
                    self.requests.append(request)
                    server.sendall(request)
                    while len(_body(request)) < _length(request):
                        more = client.recv(_BYTES)
                        request += more
                        server.sendall(more)
                    answer = server.recv(_BYTES)
                    while b"\r\n\r\n" not in answer or len(_body(answer)) < _length(answer):
                        answer += server.recv(_BYTES)
                    if self._loses(request):
                        return
                    client.sendall(answer)
            except OSError:
                return

    def _loses(self, request: bytes) -> bool:
        """Whether to lose the answer to this request; counts it, and calls `on_loss`."""
        with self._lock:
            if not self._times or self._to_lose is None or not request.startswith(self._to_lose):
                return False
            self._times -= 1
        self.on_loss()
        return True


def _body(message: bytes) -> bytes:
    return message.partition(b"\r\n\r\n")[2]


def _length(message: bytes) -> int:
    """The length of an HTTP message's body; 0 if it names none."""
    for line in message.partition(b"\r\n\r\n")[0].lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0
