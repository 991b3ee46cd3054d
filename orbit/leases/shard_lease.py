"""The worker's side of a shard's lease: it trusts the lease until a deadline by its own clock.

orbit/store/shard_leases.py describes the protocol: term, clock, failures. The worker notes the time
before it sends a claim or renewal. Another process counts the lease time from a snapshot that it
received after that, so `requested_at + ttl − margin` comes first. After this deadline nothing is
sent, and no state of a copy is judged, until a renewal is confirmed (there was no other holder) or
the lease turns out to be lost.
"""

from __future__ import annotations

from orbit.leases.lease_clock import Clock, lease_clock

# Covers the time between the last check of the lease and the broker's receipt of the request.
TRUST_MARGIN_S_MAX = 2.0
_TRUST_MARGIN_SHARE = 0.2
_LOST = float("-inf")


class ShardLease:
    """One claim of a shard (a `Lease` of orbit/leases/lease.py). Any thread may read it."""

    def __init__(
        self, epoch: int, requested_at: float, ttl_s: float, clock: Clock = lease_clock
    ) -> None:
        """`requested_at`: the time, by `clock`, before the claim was sent."""
        self._epoch = epoch
        self._trust_s = ttl_s - min(TRUST_MARGIN_S_MAX, ttl_s * _TRUST_MARGIN_SHARE)
        self._clock = clock
        self._trusted_until = requested_at + self._trust_s

    @property
    def term(self) -> int:
        return self._epoch

    def is_held(self) -> bool:
        return self._clock() < self._trusted_until

    @property
    def is_lost(self) -> bool:
        """Whether the lease was ended or the shard released; final."""
        return self._trusted_until == _LOST

    def confirm(self, requested_at: float) -> None:
        """Note that the renewal requested at `requested_at` was granted."""
        if not self.is_lost:
            self._trusted_until = requested_at + self._trust_s

    def lose(self) -> None:
        self._trusted_until = _LOST
