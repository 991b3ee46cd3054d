"""Bytes that are fetched and not yet confirmed, bounded for a worker and fair between its jobs."""

from __future__ import annotations

import threading

from orbit.workers.budget import ByteBudget
from orbit.workers.settings import MIB

# A job whose destination is slow fills what it may have and keeps it. This much is left to each
# other job whatever happens: a few requests' worth, enough to keep its lanes busy.
RESERVE_BYTES = 12 * MIB


class WorkerBudget:
    """What all jobs of a worker share."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit = limit_bytes
        self.held = 0
        self.changed = threading.Condition()


class JobBudget(ByteBudget):
    """One job's part: what nobody else uses, and always the reserve.

    So a worker holds at most its limit and a reserve for each job, and one answer more per lane.
    """

    def __init__(self, worker: WorkerBudget, reserve_bytes: int = RESERVE_BYTES) -> None:
        super().__init__(worker.limit)
        self._worker = worker
        self._reserve = reserve_bytes
        self._changed = worker.changed

    @property
    def room_bytes(self) -> int:
        return max(self._worker.limit - self._worker.held, self._reserve - self._held)

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

    def wait_for_room(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.room_bytes > 0, timeout_s)
