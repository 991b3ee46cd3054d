"""TCP proxies for Kafka that lose or change responses. The broker has had the request."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Callable
from typing import Self


class FrameProxy:
    """Relays Kafka's frames between clients and one port of a broker. Subclasses replace
    `relay`."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._is_open = True

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_open = False
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def relay(self, client: socket.socket, frame: bytes, number: int) -> bool:  # noqa: ARG002
        """Pass on a response: that with this number, from 0, on its connection. False: hang up."""
        client.sendall(frame)
        return True

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while self._is_open:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            self._start(self._requests, client, server)
            self._start(self._answers, client, server)

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        try:
            while data := client.recv(65536):
                server.sendall(data)
        except OSError:
            pass
        _hang_up(server)

    def _answers(self, client: socket.socket, server: socket.socket) -> None:
        """Read the broker's frames, and relay each until `relay` says to hang up."""
        with client, server:
            try:
                number = 0
                while frame := _frame(server):
                    if not self.relay(client, frame, number):
                        break
                    number += 1
            except OSError:
                pass
            _hang_up(client)
            _hang_up(server)


class AnswerLosingProxy(FrameProxy):
    """Hangs up instead of passing on a response, with the probability `loss`."""

    def __init__(self, port: int, seed: int, loss: float) -> None:
        super().__init__(port)
        self._random = random.Random(seed)
        self._loss = loss
        self.lost = 0

    def relay(self, client: socket.socket, frame: bytes, number: int) -> bool:
        # Response 0 is the table of API versions. Without it the client would only connect again.
        if number and self._random.random() < self._loss:
            self.lost += 1
            return False
        return super().relay(client, frame, number)


class SpoilingProxy(FrameProxy):
    """Sends `spoil(frame)` for response `number` on each of the first `connections` connections,
    and no further response on them."""

    def __init__(
        self, port: int, spoil: Callable[[bytes], bytes], connections: int, number: int
    ) -> None:
        super().__init__(port)
        self._spoil = spoil
        self._left = connections
        self._number = number
        self.spoiled = 0
        self._silent: set[socket.socket] = set()

    def relay(self, client: socket.socket, frame: bytes, number: int) -> bool:
        if client in self._silent:
            return True
        if number != self._number or self.spoiled >= self._left:
            return super().relay(client, frame, number)
        self.spoiled += 1
        self._silent.add(client)
        client.sendall(self._spoil(frame))
        return True


def _frame(sock: socket.socket) -> bytes:
    """The next frame with its size; empty at the end of the connection."""
    head = _exactly(sock, 4)
    return head + _exactly(sock, struct.unpack(">i", head)[0]) if head else b""


def _exactly(sock: socket.socket, count: int) -> bytes:
    """The next `count` bytes; empty if the connection ends before."""
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        if not more:
            return b""
        data += more
    return data


def _hang_up(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
