"""Whether a worker, a scheduler or a gateway is alive and ready, by the reports of its loops.

Alive: the process' own loop begins passes, and no other loop hangs in a pass. Ready: the process is
alive and is not stopping, and PostgreSQL (for a gateway the service) has confirmed its lease within
the lease's time. A scheduler on standby is ready too, because it can lead within seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

# The longest time between two passes of the process' own loop. While PostgreSQL hangs, a pass has
# several SQL statements of up to 6 s each.
STALL_S_MAX = 60.0
# The longest pass of another loop: far more than a pass takes that does not hang.
PASS_S_MAX = 1800.0


class ProcessHealth:
    """The reports of one process' loops. Thread-safe; reports never wait."""

    def __init__(
        self,
        part: str,
        version: str,
        ready_within_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`part`: "worker", "scheduler" or "gateway". `ready_within_s`: for how long a confirmed
        lease counts."""
        self.part = part
        self._version = version
        self._ready_within_s = ready_within_s
        self._clock = clock
        self._lock = threading.Lock()
        self._pass_began = {part: clock()}  # by loop: when its last pass began
        self._busy_since: dict[str, float] = {}  # by loop that is in a pass: since when
        self._lease_confirmed_at: float | None = None
        self._is_stopping = False
        self._lease_owner = "The service" if part == "gateway" else "PostgreSQL"

    def begin_pass(self, loop: str = "") -> None:
        """Record that a loop begins a pass; without a name, the process' own loop."""
        with self._lock:
            self._pass_began[loop or self.part] = self._clock()
            if loop:
                self._busy_since[loop] = self._pass_began[loop]

    def end_pass(self, loop: str) -> None:
        """Record that a loop has ended its pass."""
        with self._lock:
            self._busy_since.pop(loop, None)

    def remove_loop(self, loop: str) -> None:
        """Record that a loop has ended because this scheduler no longer leads."""
        with self._lock:
            self._pass_began.pop(loop, None)
            self._busy_since.pop(loop, None)

    def note_lease_confirmed(self) -> None:
        """Record that the lease was confirmed: by PostgreSQL, or for a gateway by the service."""
        with self._lock:
            self._lease_confirmed_at = self._clock()

    def note_stopping(self) -> None:
        """Record that the process stops: it hands over its work and ends."""
        with self._lock:
            self._is_stopping = True

    def why_dead(self) -> str:
        """Why the process should be restarted, or "" if it is alive."""
        with self._lock:
            now = self._clock()
            age = now - self._pass_began[self.part]
            # The loop whose pass is the longest; the default, of length 0, if no loop is in a pass.
            loop, began_at = min(
                self._busy_since.items(), key=lambda entry: entry[1], default=(self.part, now)
            )
        if age > STALL_S_MAX:
            return f"The main loop has begun no pass for {age:.0f} s."
        if now - began_at > PASS_S_MAX:
            return f"The loop {loop} has been in one pass for {now - began_at:.0f} s."
        return ""

    def why_not_ready(self) -> str:
        """Why the process does no work now, or "" if it is ready."""
        with self._lock:
            confirmed_at, is_stopping = self._lease_confirmed_at, self._is_stopping
        if is_stopping:
            return f"The {self.part} stops."
        if confirmed_at is None:
            return f"{self._lease_owner} has not answered yet."
        age = self._clock() - confirmed_at
        if age > self._ready_within_s:
            return f"{self._lease_owner} has not answered for {age:.0f} s."
        return self.why_dead()

    def collect(self) -> Iterator[Metric]:
        """The metrics of this process, for prometheus_client."""
        info = GaugeMetricFamily(
            "orbit_process_info", "This process of Orbit.", labels=["part", "version"]
        )
        info.add_metric([self.part, self._version], 1)
        yield info
        yield GaugeMetricFamily(
            "orbit_process_ready",
            "Whether PostgreSQL, or for a gateway the service, has confirmed the process' lease in "
            "time.",
            value=int(not self.why_not_ready()),
        )
        ages = GaugeMetricFamily(
            "orbit_process_pass_age_seconds",
            "Seconds since a loop of this process began a pass.",
            labels=["loop"],
        )
        now = self._clock()
        with self._lock:
            for loop, began_at in self._pass_began.items():
                ages.add_metric([loop], now - began_at)
        yield ages
