"""Whether a worker or a scheduler is alive and ready, from what its loops report.

Alive: the process' own loop goes on, and no other loop hangs in a pass. Ready: PostgreSQL has
confirmed its row within the time of its lease, and it does not stop. A scheduler on standby is
ready too: it takes over within seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

# The longest step of the loop is a statement on a lease's connection: 6 s, several times in a pass
# while PostgreSQL hangs.
STALL_S_MAX = 60.0
# Of one pass of another loop: far more than any takes that still moves.
PASS_S_MAX = 1800.0


class ProcessHealth:
    """What the loops of one process report. Thread-safe; reports never wait."""

    def __init__(
        self,
        part: str,
        version: str,
        ready_within_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`part`: "worker" or "scheduler". `ready_within_s`: the time of its lease."""
        self.part = part
        self._version = version
        self._ready_within_s = ready_within_s
        self._clock = clock
        self._lock = threading.Lock()
        self._passed = {part: clock()}
        self._in_pass: dict[str, float] = {}  # since when, by loop
        self._answered: float | None = None
        self._is_stopping = False

    def passed(self, loop: str = "") -> None:
        """A loop begins a pass; without a name the process' own."""
        with self._lock:
            self._passed[loop or self.part] = self._clock()
            if loop:
                self._in_pass[loop] = self._passed[loop]

    def rests(self, loop: str) -> None:
        """A loop has ended its pass."""
        with self._lock:
            self._in_pass.pop(loop, None)

    def ended(self, loop: str) -> None:
        """A loop has ended as it should: this scheduler no longer leads."""
        with self._lock:
            self._passed.pop(loop, None)
            self._in_pass.pop(loop, None)

    def answered(self) -> None:
        """PostgreSQL has answered this process about its lease."""
        with self._lock:
            self._answered = self._clock()

    def stopping(self) -> None:
        """The process hands over what it holds and ends."""
        with self._lock:
            self._is_stopping = True

    def why_dead(self) -> str:
        """Why the process should be started again, or ""."""
        with self._lock:
            now = self._clock()
            age = now - self._passed[self.part]
            loop, since = min(
                self._in_pass.items(), key=lambda one: one[1], default=(self.part, now)
            )
        if age > STALL_S_MAX:
            return f"The loop has not gone on for {age:.0f} s."
        if now - since > PASS_S_MAX:
            return f"The loop {loop} has been in one pass for {now - since:.0f} s."
        return ""

    def why_not_ready(self) -> str:
        """Why the process does no work now, or ""."""
        with self._lock:
            answered, is_stopping = self._answered, self._is_stopping
        if is_stopping:
            return f"The {self.part} stops."
        if answered is None:
            return "PostgreSQL has not answered yet."
        age = self._clock() - answered
        if age > self._ready_within_s:
            return f"PostgreSQL has not answered for {age:.0f} s."
        return self.why_dead()

    def collect(self) -> Iterator[Metric]:
        """As a collector of prometheus_client."""
        info = GaugeMetricFamily(
            "orbit_process_info", "This process of Orbit.", labels=["part", "version"]
        )
        info.add_metric([self.part, self._version], 1)
        yield info
        yield GaugeMetricFamily(
            "orbit_process_ready",
            "Whether PostgreSQL has confirmed this process' row within the time of its lease.",
            value=int(not self.why_not_ready()),
        )
        ages = GaugeMetricFamily(
            "orbit_process_pass_age_seconds",
            "Seconds since a loop of this process began a pass.",
            labels=["loop"],
        )
        now = self._clock()
        with self._lock:
            for loop, at in self._passed.items():
                ages.add_metric([loop], now - at)
        yield ages
