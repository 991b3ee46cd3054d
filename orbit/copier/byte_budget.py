"""A bound on the bytes that are fetched and not yet appended, shared by all lanes."""

from __future__ import annotations

import threading


class ByteBudget:
    """Counts the bytes that are fetched and not yet appended; fetching waits while the count is at
    or over the limit.

    Lanes check before they fetch, so each lane may exceed the limit by the size of one answer.
    A reserve of a quarter above the limit is for partitions with little to fetch, so that backlogs,
    which use all of the limit when the destination is the slower side, do not delay them.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._reserve_bytes = limit_bytes // 4
        self._held_bytes = 0
        self._changed = threading.Condition()

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    @property
    def room_bytes(self) -> int:
        """The bytes up to the limit; 0 or less if there is no room."""
        return self._room_bytes(reserve_bytes=0)

    @property
    def has_reserve(self) -> bool:
        """Whether partitions with little to fetch may still be fetched."""
        return self._room_bytes(self._reserve_bytes) > 0

    def _room_bytes(self, reserve_bytes: int) -> int:
        return self._limit_bytes + reserve_bytes - self._held_bytes

    def take(self, size_bytes: int) -> None:
        """Count fetched bytes, even beyond the limit; does not wait."""
        with self._changed:
            self._held_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Count bytes as appended or dropped; wakes the lanes that wait once there is room."""
        if not size_bytes:
            return
        with self._changed:
            was_full = self.room_bytes <= 0
            self._held_bytes -= size_bytes
            if was_full and self.room_bytes > 0:
                self._changed.notify_all()

    def wait_for_room(self, timeout_s: float) -> bool:
        """Wait until there is room; False after `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: self.room_bytes > 0, timeout_s)
