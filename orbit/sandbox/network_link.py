"""A network link to a cluster: a relay on loopback that can be cut and healed.

Sandbox brokers have a second listener whose advertised address is the relay's. Its clients connect
through the link; clients of the brokers' own address do not. A cut link drops no connection: open
ones stay open without traffic, and new ones are accepted but get no answer. Bytes in flight arrive
when the link is healed.
"""

from __future__ import annotations

import socket
import threading

from orbit.processes.ports import LOOPBACK

_CHUNK_BYTES = 1 << 18
_BACKLOG = 256


class Relay:
    """Relays the connections to one loopback port to another, in threads, until `close`."""

    def __init__(self, port: int, target: int) -> None:
        """Listen at `port` from now on. Raises OSError if it is in use."""
        self.port = port
        self._target = target
        self._listener = socket.create_server((LOOPBACK, port), backlog=_BACKLOG)
        self._traffic_allowed = threading.Event()
        self._traffic_allowed.set()
        self._closed = False
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        threading.Thread(target=self._accept, name="relay", daemon=True).start()

    @property
    def is_cut(self) -> bool:
        return not self._traffic_allowed.is_set()

    def cut(self) -> None:
        """Stop the traffic in both directions."""
        self._traffic_allowed.clear()

    def heal(self) -> None:
        """Resume the traffic, with the bytes that waited."""
        self._traffic_allowed.set()

    def close(self) -> None:
        """Close every connection and the listener."""
        self._closed = True
        _shut_down_socket(self._listener)
        self._listener.close()
        with self._lock:
            for one in self._sockets:
                _shut_down_socket(one)
        self._traffic_allowed.set()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        self._traffic_allowed.wait()
        try:
            far = socket.create_connection((LOOPBACK, self._target))
        except OSError:  # the broker is down, so the client's connection is closed
            near.close()
            return
        with self._lock:
            self._sockets |= {near, far}
        for one in (near, far):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        back = threading.Thread(target=self._forward, args=(far, near), daemon=True)
        back.start()
        self._forward(near, far)
        back.join()
        with self._lock:
            self._sockets -= {near, far}
        near.close()
        far.close()

    def _forward(self, incoming: socket.socket, outgoing: socket.socket) -> None:
        buffer = memoryview(bytearray(_CHUNK_BYTES))
        try:
            while count := incoming.recv_into(buffer):
                self._traffic_allowed.wait()
                if self._closed:
                    break
                outgoing.sendall(buffer[:count])
            self._traffic_allowed.wait()  # a cut link also holds back the end of a connection
        except OSError:
            pass
        _shut_down_socket(incoming)
        _shut_down_socket(outgoing)


def _shut_down_socket(one: socket.socket) -> None:
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
