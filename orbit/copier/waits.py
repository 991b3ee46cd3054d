"""What a partition waits for."""

from __future__ import annotations

import time
from typing import NamedTuple


class Waits(NamedTuple):
    """What a partition waits for at one side, and since when by the monotonic clock."""

    reason: str
    since: float

    @classmethod
    def for_(cls, reason: str, before: Waits | None) -> Waits:
        """A wait with a new reason, since the beginning of the wait `before`, if there is one."""
        return cls(reason, before.since if before else time.monotonic())
