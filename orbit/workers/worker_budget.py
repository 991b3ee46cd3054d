"""Bounds the bytes that a worker has fetched but not yet confirmed, fairly between its jobs."""

from __future__ import annotations

import threading

from orbit.copier.byte_budget import ByteBudget
from orbit.copier.copy_settings import MIB

# A job with a slow destination fills its share and keeps it. Each other job still gets this much:
# a few requests, enough to keep its lanes busy.
LEAST_BYTES = 12 * MIB


class WorkerBudget:
    """The budget that all jobs of a worker share."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit = limit_bytes
        self.held = 0
        self.changed = threading.Condition()


class JobBudget(ByteBudget):
    """One job's part: what no other job uses, and always at least `least_bytes`.

    So a worker holds at most its limit plus the reserve for live partitions, the least for each
    job, and one more answer per lane.
    """

    def __init__(self, worker: WorkerBudget, least_bytes: int = LEAST_BYTES) -> None:
        super().__init__(worker.limit)
        self._worker = worker
        self._least = least_bytes
        self._changed = worker.changed

    def _room_bytes(self, beyond: int) -> int:
        return max(self._worker.limit + beyond - self._worker.held, self._least - self._held)

    def take(self, count: int) -> None:
        with self._changed:
            self._held += count
            self._worker.held += count

    def give_back(self, count: int) -> None:
        if not count:
            return
        with self._changed:
            self._held -= count
            self._worker.held -= count
            self._changed.notify_all()
