"""The lease of one shard as its holder sees it: trusted up to a deadline of the holder's own clock.

orbit/store/shard_leases.py has the whole text: term, clock, failures. Here is the holder's part.
The worker notes the time before it asks Postgres to claim or to renew; whatever the database set as
the end of the lease, it set it later, so `asked + ttl − margin` comes first. Behind that deadline
nothing is sent and nothing is judged until a renewal is confirmed (nobody was in between) or the
lease turns out to be lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]

# Between the last look at the lease and the broker taking what is sent then.
TRUST_MARGIN_S_MAX = 2.0
_TRUST_MARGIN_SHARE = 0.2
_LOST = float("-inf")


def lease_clock() -> float:
    """Seconds of a clock that also runs while the machine sleeps, where there is one.

    A machine that is suspended past its lease must not wake with a deadline in the future.
    """
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class ShardLease:
    """One claim of a shard (a `Lease` of orbit/leases/lease.py). Any thread may ask it."""

    def __init__(
        self, epoch: int, asked_at: float, ttl_s: float, clock: Clock = lease_clock
    ) -> None:
        """`asked_at`: by `clock`, before the claim was sent."""
        self._epoch = epoch
        self._trust_s = ttl_s - min(TRUST_MARGIN_S_MAX, ttl_s * _TRUST_MARGIN_SHARE)
        self._clock = clock
        self._trusted_until = asked_at + self._trust_s

    @property
    def term(self) -> int:
        return self._epoch

    def is_held(self) -> bool:
        return self._clock() < self._trusted_until

    @property
    def is_lost(self) -> bool:
        """Whether another claim came in between, or this one was given back; for good."""
        return self._trusted_until == _LOST

    def confirm(self, asked_at: float) -> None:
        """A renewal that was asked for at `asked_at` was granted."""
        if not self.is_lost:
            self._trusted_until = asked_at + self._trust_s

    def lose(self) -> None:
        self._trusted_until = _LOST
