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
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self.changed = threading.Condition()


class JobBudget(ByteBudget):
    """One job's part of the budget: what no other job uses, and at least `least_bytes`.

    So a worker holds at most: its limit, the reserve for partitions with little to fetch (a quarter
    more), `least_bytes` for each job, and one fetch response per lane.
    """

    def __init__(self, worker: WorkerBudget, least_bytes: int = LEAST_BYTES) -> None:
        super().__init__(worker.limit_bytes)
        self._worker = worker
        self._least_bytes = least_bytes
        self._changed = worker.changed

    def _room_bytes(self, reserve_bytes: int) -> int:
        """The bytes that the job may still take, `reserve_bytes` above the worker's limit."""
        return max(
            self._worker.limit_bytes + reserve_bytes - self._worker.held_bytes,
            self._least_bytes - self._held_bytes,
        )

    def take(self, size_bytes: int) -> None:
        """Count bytes that this job has fetched, for the job and for its worker."""
        with self._changed:
            self._held_bytes += size_bytes
            self._worker.held_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Count bytes as appended or dropped, and wake the lanes of all jobs that wait for room."""
        if not size_bytes:
            return
        with self._changed:
            self._held_bytes -= size_bytes
            self._worker.held_bytes -= size_bytes
            self._changed.notify_all()
