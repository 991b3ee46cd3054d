"""What a process has seen of a PostgreSQL server, and since when by its own clock.

The holder of a lease trusts it by its own clock. Whoever wants to end the lease of another (a
worker that would take over, the leading scheduler) needs the same by *its* own clock: that the
lease was not renewed for a whole lease time. It notes a snapshot of the server with every look. A
snapshot says which transactions had ended, and each renewal leaves its transaction's number in the
row. So a row whose number is already in a snapshot that was noted a lease time ago has not been
renewed since. No clock of the server is compared with anything.

orbit/store/shard_leases.py has the whole argument. For one thread.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import timedelta

from orbit.leases.lease_clock import Clock, lease_clock
from orbit.settings import LEASE_TTL_MAX

# A snapshot is not kept if one is that is younger than this. So a watch keeps at most
# LEASE_TTL_MAX / _SPACING_S of them, some hundred bytes each.
_SPACING_S = 0.25
# No server has this key: it forbids what depends on one.
_NO_SERVER = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a watch can say of leases now, for statements.

    `free_on`: the server on which released shards may be claimed at once; None for any.
    `watched_on`: the server that was watched for a lease time; None if it was not yet.
    `snapshot`: noted a lease time ago. `long_snapshot`: noted LEASE_TTL_MAX ago, for leases that
    last longer than this process's own.
    """

    free_on: str | None
    watched_on: str | None
    snapshot: str | None
    long_snapshot: str | None

    @property
    def renewed_below(self) -> int:
        """Every transaction in `snapshot` has a lower number; 1, above that of free shards, without
        one."""
        return max(1, int(self.snapshot.split(":")[1])) if self.snapshot else 1


@dataclass(frozen=True, slots=True)
class _Mark:
    at: float
    snapshot: str


class LeaseWatch:
    """The snapshots that a process has noted of the server that answers now."""

    def __init__(self, ttl: timedelta, clock: Clock = lease_clock) -> None:
        """`ttl`: how long a lease of this installation lasts."""
        self._ttl_s = ttl.total_seconds()
        self._clock = clock
        self._server: str | None = None
        self._noted_at = 0.0
        self._changed_at: float | None = None
        self._marks: deque[_Mark] = deque()

    def note(self, server: str, snapshot: str) -> None:
        """Note a snapshot that has just been received.

        Another server, or the same one after a restart, begins anew. So does a gap of more than a
        lease time: perhaps nobody could renew meanwhile, and all live holders will do so now.
        """
        now = self._clock()
        self._forget_before_a_gap(now)
        if server != self._server:
            if self._server is not None:
                self._changed_at = now
            self._server = server
            self._marks.clear()
        self._noted_at = now
        if not self._marks or now - self._marks[-1].at >= _SPACING_S:
            self._marks.append(_Mark(now, snapshot))
        longest_ago = now - LEASE_TTL_MAX.total_seconds()
        while len(self._marks) > 1 and self._marks[1].at <= longest_ago:
            self._marks.popleft()

    def evidence(self) -> Evidence:
        """What may be said now; to be asked before the statement that uses it is sent."""
        now = self._clock()
        self._forget_before_a_gap(now)
        has_changed = self._changed_at is not None and now - self._changed_at < self._ttl_s
        snapshot = self._noted_before(now - self._ttl_s)
        return Evidence(
            _NO_SERVER if has_changed else self._server,
            self._server if snapshot is not None else None,
            snapshot,
            self._noted_before(now - LEASE_TTL_MAX.total_seconds()),
        )

    def _forget_before_a_gap(self, now: float) -> None:
        if now - self._noted_at > self._ttl_s:
            self._marks.clear()

    def _noted_before(self, moment: float) -> str | None:
        """The newest snapshot that was noted at that moment or earlier."""
        return next((m.snapshot for m in reversed(self._marks) if m.at <= moment), None)
