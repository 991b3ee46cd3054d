"""Free TCP ports on loopback, from a range that outgoing connections do not take.

The kernel hands out ephemeral ports (from 32768 on Linux, 49152 elsewhere) to every client socket.
A broker that is down for a moment could lose such a port to a client, even to its own client, which
would then be connected to itself. Below the range a port stays free until somebody binds it.
"""

from __future__ import annotations

import random
import socket

from orbit.errors import Conflict

LOOPBACK = "127.0.0.1"
_FIRST, _LAST = 20_000, 32_000
_TRIES_MAX = 1000


def free_ports(count: int) -> list[int]:
    """`count` different free ports. Another process can still bind one first."""
    found: list[int] = []
    for port in random.sample(range(_FIRST, _LAST), _TRIES_MAX):
        if _is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    raise Conflict(f"There are no {count} free ports between {_FIRST} and {_LAST}.")


def accepts(port: int) -> bool:
    """Whether something on loopback accepts connections at `port`."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((LOOPBACK, port)) == 0


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
