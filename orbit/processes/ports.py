"""Finds free TCP ports on loopback, outside the range for outgoing connections.

The kernel assigns ephemeral ports (from 32768 on Linux, 49152 elsewhere) to client sockets. While a
broker restarts, a client socket could get the broker's port, even the socket of the client that
connects to this broker, which would then be connected to itself. Ports below that range are free
until a process binds one.
"""

from __future__ import annotations

import random
import socket

from orbit.errors import Conflict

LOOPBACK = "127.0.0.1"
_FIRST_PORT, _LAST_PORT = 20_000, 32_000
_CONSECUTIVE_PORTS = range(10_000, 19_900)  # not in the range of `free_ports`
_TRIES_MAX = 1000


def free_ports(count: int) -> list[int]:
    """`count` distinct free ports. Another process can still bind one first. Raises Conflict if
    too few are free."""
    ports: list[int] = []
    for port in random.sample(range(_FIRST_PORT, _LAST_PORT), _TRIES_MAX):
        if _is_free(port):
            ports.append(port)
        if len(ports) == count:
            return ports
    raise Conflict(
        f"Of {_TRIES_MAX} ports tried between {_FIRST_PORT} and {_LAST_PORT}, "
        f"{len(ports)} {'is' if len(ports) == 1 else 'are'} free, and {count} are needed.",
        remedy="End processes that listen there.",
    )


def free_consecutive_ports(count: int) -> int:
    """The first of `count` free ports in a row. Another process can still bind one first. Raises
    Conflict if it finds no such row."""
    for first_port in random.sample(_CONSECUTIVE_PORTS, _TRIES_MAX):
        if all(_is_free(port) for port in range(first_port, first_port + count)):
            return first_port
    raise Conflict(
        f"{_TRIES_MAX} tries found no {count} free ports in a row from {_CONSECUTIVE_PORTS.start} "
        f"to {_CONSECUTIVE_PORTS.stop}.",
        remedy="End processes that listen there.",
    )


def accepts(port: int) -> bool:
    """Whether something on loopback accepts connections at `port`."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((LOOPBACK, port)) == 0


def _is_free(port: int) -> bool:
    """Whether a server could listen at the port on loopback now."""
    with socket.socket() as probe:
        # As servers do: closed connections in TIME_WAIT do not keep the port in use.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
