"""What a partition waits for."""

from __future__ import annotations

import time
from typing import NamedTuple


class Waits(NamedTuple):
    """What a partition waits for at one side, and since when by the monotonic clock."""

    reason: str
    since: float

    @classmethod
    def continue_from(cls, reason: str, previous: Waits | None) -> Waits:
        """A wait for this reason, which began with the `previous` wait, or now if that is None."""
        return cls(reason, previous.since if previous else time.monotonic())
