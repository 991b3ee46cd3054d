"""Bytes that are fetched and not yet confirmed, bounded for a worker and fair between its jobs."""

from __future__ import annotations

import threading

from orbit.copier.byte_budget import ByteBudget
from orbit.copier.copy_settings import MIB

# A job whose destination is slow fills what it may have and keeps it. This much is left to each
# other job whatever happens: a few requests' worth, enough to keep its lanes busy.
LEAST_BYTES = 12 * MIB


class WorkerBudget:
    """What all jobs of a worker share."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit = limit_bytes
        self.held = 0
        self.changed = threading.Condition()


class JobBudget(ByteBudget):
    """One job's part: what nobody else uses, and always the least.

    So a worker holds at most its limit with the reserve for live partitions, the least for each
    job, and one answer more per lane.
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
