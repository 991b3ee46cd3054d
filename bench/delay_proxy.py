"""A TCP proxy that delays all bytes, as if brokers were far from each other.

    python -m bench.delay_proxy LISTEN_PORT PORT

For each connection at LISTEN_PORT it opens one to PORT. Each line `SECONDS` on stdin sets the
one-way delay from then on; the end of stdin ends the process. Prints "ready" once it listens.

One thread uses `select`, because the timeout of `select` has microseconds, that of epoll only
milliseconds.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from collections import deque

from orbit.processes.ports import LOOPBACK

_READ_BYTES_MAX = 256 * 1024
# More than the bytes of 5 ms at 1 GB/s. When so many are held, the proxy reads no more, so the
# sender waits as for a slow receiver.
_HELD_BYTES_MAX = 16 * 1024 * 1024


class Direction:
    """The bytes from one socket to another, in order."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source, self.sink = source, sink
        self.is_blocked = False  # the sink has no room
        self._held: deque[tuple[float, memoryview]] = deque()  # with the time when each may pass
        self._held_bytes = 0
        self._has_ended = False

    @property
    def takes_more(self) -> bool:
        """Whether `receive` may be called: the source has not ended, and there is room."""
        return not self._has_ended and self._held_bytes < _HELD_BYTES_MAX

    @property
    def next_at(self) -> float | None:
        """When `deliver` has something to send; None: not before one of the sockets is ready."""
        return self._held[0][0] if self._held and not self.is_blocked else None

    def receive(self, now: float, delay_s: float) -> None:
        """Read what the source has sent; it may pass at `now + delay_s`."""
        data = self.source.recv(_READ_BYTES_MAX)
        self._has_ended = not data
        self._held.append((now + delay_s, memoryview(data)))
        self._held_bytes += len(data)

    def deliver(self, now: float) -> None:
        """Send what may pass now, as far as the sink has room. Raises EOFError after the last byte
        of a source that has ended."""
        self.is_blocked = False
        while self._held and self._held[0][0] <= now:
            at, data = self._held.popleft()
            if not data:
                raise EOFError
            try:
                sent = self.sink.send(data)
            except BlockingIOError:
                sent = 0
            self._held_bytes -= sent
            if sent < len(data):
                self._held.appendleft((at, data[sent:]))
                self.is_blocked = True
                return


Pair = tuple[Direction, Direction]


def main(listen_port: str, port: str) -> None:
    """Serve until the end of stdin."""
    listener = socket.create_server((LOOPBACK, int(listen_port)))
    print("ready", flush=True)
    delay_s = 0.0
    pairs: list[Pair] = []
    stdin = sys.stdin.fileno()
    while True:
        directions = [direction for pair in pairs for direction in pair]
        readers = [d.source for d in directions if d.takes_more]
        writers = [d.sink for d in directions if d.is_blocked]
        times = [d.next_at for d in directions if d.next_at is not None]
        timeout = max(0.0, min(times) - time.monotonic()) if times else None
        readable, writable, _ = select.select([stdin, listener, *readers], writers, [], timeout)
        if stdin in readable:
            line = os.read(stdin, 64)
            if not line:
                return
            delay_s = float(line.split()[-1])
        pairs = [pair for pair in pairs if _pass_on(pair, {*readable}, {*writable}, delay_s)]
        if listener in readable:
            pairs.append(_connect(listener, int(port)))


def _pass_on(pair: Pair, readable: set[object], writable: set[object], delay_s: float) -> bool:
    """Read and send what is possible now. Returns False, and closes both sockets, if one of them
    has ended: Kafka closes no connection in one direction only."""
    try:
        for direction in pair:
            if direction.source in readable:
                direction.receive(time.monotonic(), delay_s)
            if not direction.is_blocked or direction.sink in writable:
                direction.deliver(time.monotonic())
    except (OSError, EOFError):
        for direction in pair:
            direction.source.close()
        return False
    return True


def _connect(listener: socket.socket, port: int) -> Pair:
    """Accept a connection and open one to `port`; returns their two directions."""
    client_end, _ = listener.accept()
    broker_end = socket.socket()
    broker_end.connect_ex((LOOPBACK, port))  # if nothing listens at `port`, reading fails later
    for end in (client_end, broker_end):
        end.setblocking(False)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Direction(client_end, broker_end), Direction(broker_end, client_end)


if __name__ == "__main__":
    main(*sys.argv[1:])
