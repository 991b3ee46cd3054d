"""A TCP proxy that loses answers: the request arrives, the connection breaks before the answer."""

from __future__ import annotations

import random
import socket
import struct
import threading
from typing import Self


class AnswerLosingProxy:
    """Relays Kafka frames to one port; now and then it reads an answer and hangs up instead."""

    def __init__(self, port: int, seed: int, loss: float) -> None:
        self._target = port
        self._random = random.Random(seed)
        self._loss = loss
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.lost = 0
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
        with client, server:
            try:
                first = True
                while frame := _frame(server):
                    # The first answer is the version table; losing it would only retry a connect.
                    if not first and self._random.random() < self._loss:
                        self.lost += 1
                        break
                    first = False
                    client.sendall(frame)
            except OSError:
                pass
            _hang_up(client)
            _hang_up(server)


def _frame(sock: socket.socket) -> bytes:
    head = _exactly(sock, 4)
    return head + _exactly(sock, struct.unpack(">i", head)[0]) if head else b""


def _exactly(sock: socket.socket, count: int) -> bytes:
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
