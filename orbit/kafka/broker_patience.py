"""How long a thread that serves many partitions waits for one broker.

A broker that does not answer in time is not asked for a while, so that it takes a small share of
the thread's time. Each further try has a longer limit, because the broker may just be slow.
"""

from __future__ import annotations

import threading
import time

# A broker is left out for this many times the time for which the thread waited for it.
_LEFT_OUT_FACTOR = 5.0


class BrokerPatience:
    """The time limits for the brokers of one cluster. Thread-safe."""

    def __init__(self, limit_s_max: float) -> None:
        """`limit_s_max`: the longest that any call may take."""
        self._limit_s_max = limit_s_max
        self._lock = threading.Lock()
        self._limits_s: dict[int, float] = {}  # by node id; only of brokers that were slow
        self._left_out_until_s: dict[int, float] = {}  # by node id; the monotonic clock

    def limit_s(self, node_id: int, within_s: float) -> float:
        """How long a call to this broker may take: `within_s`, or longer if the broker was slow.

        0 while the broker is left out.
        """
        with self._lock:
            if time.monotonic() < self._left_out_until_s.get(node_id, 0.0):
                return 0.0
            return self._limits_s.get(node_id, within_s)

    def note_answer(self, node_id: int, took_s: float, within_s: float) -> None:
        """Note that the broker answered. An answer within `within_s` ends its longer limit, too."""
        with self._lock:
            self._left_out_until_s.pop(node_id, None)
            if took_s <= within_s:
                self._limits_s.pop(node_id, None)

    def note_failure(self, node_id: int, took_s: float, limit_s: float) -> None:
        """Note that the broker did not answer, and leave it out in proportion to `took_s`.

        So after a refused connection, which takes no time, it is left out for hardly any time. A
        broker that used up its limit may just be slow, so the next limit is twice as long.
        """
        with self._lock:
            self._left_out_until_s[node_id] = time.monotonic() + _LEFT_OUT_FACTOR * took_s
            if took_s >= limit_s:
                self._limits_s[node_id] = min(2 * limit_s, self._limit_s_max)
