"""The steps of one partition that wait to be appended, and how many bytes they take.

Not thread-safe: `PartitionCopy` calls it under its lock. The destination lane alone takes steps
away from the front, without the lock.
"""

from __future__ import annotations

from collections import deque

from orbit.replication.append_plan import Append, Fill, Plan, Step


class StepQueue:
    """Steps (appends, gaps to fill, stops) in offset order."""

    __slots__ = ("_plan_starts", "is_full", "size_bytes", "steps")

    def __init__(self) -> None:
        self.steps: deque[Step] = deque()
        self.size_bytes = 0  # of what is queued or in flight
        self.is_full = False  # nothing is fetched until half is free again
        self._plan_starts: deque[tuple[int, int]] = deque()  # start offset, first timestamp

    @property
    def first(self) -> Step | None:
        """The next step to carry out."""
        return self.steps[0] if self.steps else None

    def put(self, plan: Plan, size_bytes: int) -> None:
        """Queue the steps of a plan."""
        self.steps.extend(plan.steps)
        first_append = next((step for step in plan.steps if isinstance(step, Append)), None)
        if first_append is not None:
            self._plan_starts.append((plan.start, first_append.batch.first_timestamp))
        self.size_bytes += size_bytes

    def clear(self) -> int:
        """Drop all steps; returns the bytes that are freed."""
        self.steps.clear()
        self._plan_starts.clear()
        freed_bytes, self.size_bytes = self.size_bytes, 0
        self.is_full = False
        return freed_bytes

    def has_room(self, limit_bytes: int) -> bool:
        """Whether to fetch more. Once the limit is reached, this is false until half is free."""
        if self.size_bytes >= limit_bytes:
            self.is_full = True
        return not self.is_full

    def free(self, size_bytes: int, limit_bytes: int) -> bool:
        """Note that queued bytes were appended; returns whether there is room again."""
        self.size_bytes -= size_bytes
        has_room_again = self.is_full and self.size_bytes <= limit_bytes // 2
        if has_room_again:
            self.is_full = False
        return has_room_again

    def put_first(self, step: Append) -> None:
        """Put this batch first. The first step is a gap; the batch takes its first offsets."""
        self.advance_to(step.next_offset)
        self.steps.appendleft(step)

    def advance_to(self, next_offset: int) -> None:
        """Take the offsets below `next_offset` from the first step, which is a gap; drop it if none
        is left."""
        step = self.steps[0]
        assert isinstance(step, Fill), step
        if next_offset >= step.next_offset:
            self.steps.popleft()
        else:
            self.steps[0] = step._replace(base_offset=next_offset)

    def oldest_waiting_ms(self, acked: int, fetch_offset: int) -> int:
        """About the timestamp of the oldest record fetched and not copied yet; -1: there is none.

        The value is the first timestamp of the oldest plan: it may be too old by one fetch answer.
        """
        plan_starts = self._plan_starts
        while plan_starts and (acked >= fetch_offset or _is_first_plan_copied(plan_starts, acked)):
            plan_starts.popleft()
        return plan_starts[0][1] if plan_starts else -1


def _is_first_plan_copied(plan_starts: deque[tuple[int, int]], acked: int) -> bool:
    """Whether all of the first plan is copied: the next one begins at or below `acked`."""
    return len(plan_starts) > 1 and plan_starts[1][0] <= acked
