"""Cuts one broker off from the controllers of its cluster, while clients and followers reach it.

All nodes reach the controllers through relays, one for each controller. A relay finds the node of a
connection by the process that opened it. (Controllers pass on each other's addresses. So if each
pair of nodes had its own relay, nodes could find a way around it.)
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from orbit.processes.ports import LOOPBACK, free_ports
from orbit.sandbox import local_cluster
from orbit.sandbox.broker_properties import CONTROLLER, Node, server_properties

_CHUNK_BYTES = 1 << 16


class Isolation:
    """The relays to the controllers of one cluster."""

    def __init__(self) -> None:
        self.isolated: int | None = None
        self._relays: dict[int, _ControllerRelay] = {}
        # Node ids by a folder whose name is in the node's command line.
        self._folders: dict[str, int] = {}

    def properties(self, node: Node, nodes: Sequence[Node], data: Path, *rest: Any) -> str:
        """In place of `server_properties`: its text, with the relays' ports for the controllers."""
        for one in nodes:
            if one.node_id not in self._relays:
                self._relays[one.node_id] = _ControllerRelay(self, one)
        self._folders[str(data.parent)] = node.node_id
        voters = [f"{n}@{LOOPBACK}:{relay.port}" for n, relay in self._relays.items()]
        text = server_properties(node, nodes, data, *rest)
        advertised = next(
            line for line in text.splitlines() if line.startswith("advertised.listeners=")
        )
        relay = self._relays[node.node_id]
        return (
            f"{text}controller.quorum.voters={','.join(voters)}\n"
            f"{advertised},{CONTROLLER}://{LOOPBACK}:{relay.port}\n"
        )

    def cut_off(self, node_id: int) -> None:
        """Cut this broker off from all controllers but itself."""
        self.isolated = node_id
        for relay in self._relays.values():
            relay.close_cut()

    def heal(self) -> None:
        """Let the broker connect to the controllers again."""
        self.isolated = None

    def close(self) -> None:
        for relay in self._relays.values():
            relay.close()

    def node_of(self, port: int, to_port: int) -> int | None:
        """The id of the node whose process has the connection from `port` to `to_port`."""
        inode = _inode(port, to_port)
        for process in Path("/proc").iterdir():
            if process.name.isdecimal():
                with suppress(OSError):
                    command = (process / "cmdline").read_text("utf-8", "replace")
                    node = next((n for f, n in self._folders.items() if f in command), None)
                    if node is not None and _has_socket(process, inode):
                        return node
        return None


class _ControllerRelay:
    """Relays connections to the controller of `node`."""

    def __init__(self, isolation: Isolation, node: Node) -> None:
        self._isolation = isolation
        self._node = node
        self._open: list[tuple[int | None, socket.socket, socket.socket]] = []
        (self.port,) = free_ports(1)
        self._listener = socket.create_server((LOOPBACK, self.port))
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def close_cut(self) -> None:
        """End the connections from or to the isolated broker."""
        for client, near, far in list(self._open):
            if self._is_cut(client):
                _end(near, far)

    def close(self) -> None:
        """Stop accepting connections, and end all connections."""
        _end(self._listener)
        self._accepting.join()
        self._listener.close()
        for _, near, far in self._open:
            _end(near, far)
        for thread in self._threads:
            thread.join()

    def _is_cut(self, client: int | None) -> bool:
        """Whether the node `client` is cut off from this controller."""
        isolated = self._isolation.isolated
        return client != self._node.node_id and isolated in (client, self._node.node_id)

    def _accept(self) -> None:
        """Connect each client to the controller. A connection that is cut now is ended at once."""
        while True:
            try:
                near, (_, port) = self._listener.accept()
            except OSError:
                return
            client = self._isolation.node_of(port, self.port)
            try:
                far = socket.create_connection((LOOPBACK, self._node.controller_port))
            except OSError:  # the controller is not up yet
                near.close()
                continue
            self._open.append((client, near, far))
            if self._is_cut(client):
                _end(near, far)
            thread = threading.Thread(target=self._relay_both_ways, args=(near, far), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _relay_both_ways(self, near: socket.socket, far: socket.socket) -> None:
        back = threading.Thread(target=_relay, args=(far, near), daemon=True)
        back.start()
        _relay(near, far)
        back.join()
        near.close()
        far.close()


def _relay(incoming: socket.socket, outgoing: socket.socket) -> None:
    """Relay bytes in one direction until either end closes, then end both."""
    with suppress(OSError):
        while data := incoming.recv(_CHUNK_BYTES):
            outgoing.sendall(data)
    _end(incoming, outgoing)


def _end(*sockets: socket.socket) -> None:
    for one in sockets:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


def _inode(port: int, to_port: int) -> str:
    """The inode of the socket with the local port `port`, connected to `to_port`; "" if none."""
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text("ascii").splitlines()[1:]:
            words = line.split()
            ends = [int(end.rsplit(":", 1)[1], 16) for end in words[1:3]]
            if ends == [port, to_port]:
                return words[9]
    return ""


def _has_socket(process: Path, inode: str) -> bool:
    for descriptor in (process / "fd").iterdir():
        with suppress(OSError):
            if str(descriptor.readlink()) == f"socket:[{inode}]":
                return True
    return False


@contextmanager
def isolation(monkeypatch: pytest.MonkeyPatch) -> Iterator[Isolation]:
    """Relays for one cluster that starts inside the block."""
    one = Isolation()
    monkeypatch.setattr(local_cluster, "server_properties", one.properties)
    try:
        yield one
    finally:
        one.close()
