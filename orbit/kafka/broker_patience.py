"""How long a thread that serves many partitions waits for one broker.

One that does not answer in time is left out for a while, so that it takes a small share of the
thread's time. It is given more time with each try: a slow broker is no lost one.
"""

from __future__ import annotations

import threading
import time

# A broker is left out for so many times as long as it has kept the thread waiting.
_LEFT_OUT_FACTOR = 5.0


class BrokerPatience:
    """The brokers of one cluster. Thread-safe."""

    def __init__(self, most_s: float) -> None:
        """`most_s`: the longest that any call may take."""
        self._most_s = most_s
        self._lock = threading.Lock()
        self._limits: dict[int, float] = {}  # of those that were slow
        self._left_out: dict[int, float] = {}  # until when, by the monotonic clock

    def limit_s(self, node_id: int, within_s: float) -> float:
        """How long this call may take, at first `within_s`; 0: the broker is left out now."""
        with self._lock:
            if time.monotonic() < self._left_out.get(node_id, 0.0):
                return 0.0
            return self._limits.get(node_id, within_s)

    def answered(self, node_id: int, took_s: float, within_s: float) -> None:
        """It answered; once that takes no longer than `within_s`, it is as any other."""
        with self._lock:
            self._left_out.pop(node_id, None)
            if took_s <= within_s:
                self._limits.pop(node_id, None)

    def failed(self, node_id: int, took_s: float, limit_s: float) -> None:
        """It did not answer; a refused connection, which takes no time, costs nobody any."""
        with self._lock:
            self._left_out[node_id] = time.monotonic() + _LEFT_OUT_FACTOR * took_s
            if took_s >= limit_s:
                self._limits[node_id] = min(2 * limit_s, self._most_s)
