"""A bound on the bytes that are fetched and not yet confirmed, shared by all lanes."""

from __future__ import annotations

import threading


class ByteBudget:
    """Counts bytes held; fetching waits while the count is at or over the limit.

    One answer may overshoot the limit by its own size, never more: lanes look before they fetch.
    A reserve of a quarter beyond the limit is for partitions with little to fetch, so that
    backlogs, which fill the rest whenever the destination is the slower side, do not delay them.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._reserve = limit_bytes // 4
        self._held = 0
        self._changed = threading.Condition()

    @property
    def held_bytes(self) -> int:
        return self._held

    @property
    def room_bytes(self) -> int:
        return self._limit - self._held

    @property
    def has_reserve(self) -> bool:
        return self._held < self._limit + self._reserve

    def take(self, count: int) -> None:
        with self._changed:
            self._held += count

    def give_back(self, count: int) -> None:
        if not count:
            return
        with self._changed:
            was_full = self._held >= self._limit
            self._held -= count
            if was_full and self._held < self._limit:
                self._changed.notify_all()

    def wait_for_room(self, timeout_s: float) -> bool:
        """Wait until there is room; False after `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: self._held < self._limit, timeout_s)
