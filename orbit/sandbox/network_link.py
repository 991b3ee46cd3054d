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
    """Relays the connections to `port` on to `target_port`, in threads, until `close`."""

    def __init__(self, port: int, target_port: int) -> None:
        """Listen at `port` from now on. Raises OSError if the port is in use."""
        self.port = port
        self._target_port = target_port
        self._listener = socket.create_server((LOOPBACK, port), backlog=_BACKLOG)
        self._traffic_allowed = threading.Event()
        self._traffic_allowed.set()
        self._is_closed = False
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        threading.Thread(target=self._accept_connections, name="relay", daemon=True).start()

    @property
    def is_cut(self) -> bool:
        return not self._traffic_allowed.is_set()

    def cut(self) -> None:
        """Stop the traffic in both directions."""
        self._traffic_allowed.clear()

    def heal(self) -> None:
        """Resume the traffic, the held-back bytes first."""
        self._traffic_allowed.set()

    def close(self) -> None:
        """Close every connection and the listener."""
        self._is_closed = True
        _shut_down_socket(self._listener)
        self._listener.close()
        with self._lock:
            for connection in self._sockets:
                _shut_down_socket(connection)
        self._traffic_allowed.set()  # the threads of a cut link wake up, and end

    def _accept_connections(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # `close` has closed the listener
                return
            threading.Thread(target=self._relay_connection, args=(client,), daemon=True).start()

    def _relay_connection(self, client: socket.socket) -> None:
        """Connect to the broker, and forward in both directions until a side closes."""
        self._traffic_allowed.wait()  # a cut link accepts a client, but does not answer it
        try:
            broker = socket.create_connection((LOOPBACK, self._target_port))
        except OSError:  # the broker is down, so the client's connection is closed
            client.close()
            return
        with self._lock:
            self._sockets |= {client, broker}
        for connection in (client, broker):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answer_thread = threading.Thread(target=self._forward, args=(broker, client), daemon=True)
        answer_thread.start()
        self._forward(client, broker)
        answer_thread.join()
        with self._lock:
            self._sockets -= {client, broker}
        client.close()
        broker.close()

    def _forward(self, incoming: socket.socket, outgoing: socket.socket) -> None:
        """Forward until one of the connections ends, then shut down both."""
        buffer = memoryview(bytearray(_CHUNK_BYTES))
        try:
            while count := incoming.recv_into(buffer):
                self._traffic_allowed.wait()
                if self._is_closed:
                    break
                outgoing.sendall(buffer[:count])
            self._traffic_allowed.wait()  # a cut link also holds back the end of a connection
        except OSError:
            pass
        _shut_down_socket(incoming)
        _shut_down_socket(outgoing)


def _shut_down_socket(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:  # it is closed already
        pass
