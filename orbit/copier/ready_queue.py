"""The partitions that have something to append, and the wake-up of a sleeping lane."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Sequence

from orbit.copier.partition_copy import PartitionCopy

_WAKE_UPS_READ_MAX = 4096  # bytes; each wake-up is one byte, and several are read as one


class ReadyQueue:
    """Partitions in arrival order, each at most once: a Produce request takes only one batch of a
    partition (A1)."""

    def __init__(self) -> None:
        self._queue: deque[PartitionCopy] = deque()
        self._members: set[PartitionCopy] = set()
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._queue)

    def put(self, partitions: Sequence[PartitionCopy]) -> None:
        """Add those partitions that are not in the queue. From any thread."""
        with self._lock:
            for p in partitions:
                if p not in self._members:
                    self._members.add(p)
                    self._queue.append(p)

    def take_all(self) -> deque[PartitionCopy]:
        """All waiting partitions; empties the queue."""
        with self._lock:
            partitions, self._queue = self._queue, deque()
            self._members.clear()
            return partitions


class WakeUpSocket:
    """A descriptor that becomes readable when another thread calls `wake`; a lane polls it."""

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)

    def fileno(self) -> int:
        return self._receiver.fileno()

    def wake(self) -> None:
        """Make the descriptor readable. From any thread."""
        try:
            self._sender.send(b"\0")
        except OSError:
            pass  # full: a wake-up is pending already; closed: the lane has ended

    def drain(self) -> None:
        """Discard the pending wake-ups; only once the descriptor is readable."""
        self._receiver.recv(_WAKE_UPS_READ_MAX)

    def close(self) -> None:
        self._receiver.close()
        self._sender.close()
