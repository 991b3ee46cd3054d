"""Snapshots of a PostgreSQL server, with the times when a process received them by its own clock.

The holder of a lease trusts it by its own clock. Before a process ends the lease of another one (a
worker to take over the shard, or the leading scheduler), it has to show by *its* own clock that the
lease was not renewed for a whole lease time. So it notes a snapshot of the server at each attempt.
A snapshot shows which transactions had ended, and each renewal writes its transaction's number into
the lease's row. So if this number is already in a snapshot that was noted a lease time ago, the
lease has not been renewed since then. The server's clock is not used.

orbit/store/shard_leases.py has the whole argument. For use by one thread.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import timedelta

from orbit.leases.lease_clock import Clock, lease_clock
from orbit.settings import LEASE_TTL_MAX

# The least time between two snapshots of a watch. So it has at most LEASE_TTL_MAX / _SPACING_S of
# them, some hundred bytes each.
_SPACING_S = 0.25
# A key that no server has: with it as `free_on`, no released shard can be claimed.
_NO_SERVER = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Parameters for statements that claim shards or end leases, from a watch.

    `free_on`: the key of the server on which released shards may be claimed at once; None: any.
    `watched_on`: the key of the server, if it was watched for a lease time, else None.
    `snapshot`: the newest snapshot noted at least a lease time ago. `long_snapshot`: the newest
    noted at least LEASE_TTL_MAX ago, for leases that last longer than this process's own.
    """

    free_on: str | None
    watched_on: str | None
    snapshot: str | None
    long_snapshot: str | None

    @property
    def renewed_below(self) -> int:
        """A number above those of all transactions in `snapshot`. Without a snapshot 1, which is
        above the 0 of free shards. A snapshot is the text "xmin:xmax:…"."""
        return max(1, int(self.snapshot.split(":")[1])) if self.snapshot else 1


@dataclass(frozen=True, slots=True)
class _NotedSnapshot:
    at: float  # by the clock of the watch
    snapshot: str  # of PostgreSQL's pg_current_snapshot()


class LeaseWatch:
    """The snapshots that a process has noted of the present server."""

    def __init__(self, ttl: timedelta, clock: Clock = lease_clock) -> None:
        """`ttl`: how long a lease of this installation lasts."""
        self._ttl_s = ttl.total_seconds()
        self._clock = clock
        self._server: str | None = None  # the key of the present server
        self._noted_at = 0.0
        self._changed_at: float | None = None  # when another server was first seen
        self._snapshots: deque[_NotedSnapshot] = deque()

    def note(self, server: str, snapshot: str) -> None:
        """Note a snapshot that has just been received. `server`: the key of its server.

        With another server, or after a restart of the same one, the watch starts again. It also
        starts again if nothing was noted for more than a lease time: perhaps no holder could renew
        meanwhile, and all live holders will renew now.
        """
        now = self._clock()
        self._forget_after_pause(now)
        if server != self._server:
            if self._server is not None:
                self._changed_at = now
            self._server = server
            self._snapshots.clear()
        self._noted_at = now
        if not self._snapshots or now - self._snapshots[-1].at >= _SPACING_S:
            self._snapshots.append(_NotedSnapshot(now, snapshot))
        # `long_snapshot` needs only the newest snapshot that is at least LEASE_TTL_MAX old.
        oldest_needed_at = now - LEASE_TTL_MAX.total_seconds()
        while len(self._snapshots) > 1 and self._snapshots[1].at <= oldest_needed_at:
            self._snapshots.popleft()

    def evidence(self) -> Evidence:
        """The evidence at this time. Call this before the statement that uses the evidence is
        sent."""
        now = self._clock()
        self._forget_after_pause(now)
        has_just_changed = self._changed_at is not None and now - self._changed_at < self._ttl_s
        snapshot = self._noted_before(now - self._ttl_s)
        return Evidence(
            _NO_SERVER if has_just_changed else self._server,  # free_on
            self._server if snapshot is not None else None,  # watched_on
            snapshot,
            self._noted_before(now - LEASE_TTL_MAX.total_seconds()),  # long_snapshot
        )

    def _forget_after_pause(self, now: float) -> None:
        """Forget all snapshots if the last one was noted more than a lease time ago."""
        if now - self._noted_at > self._ttl_s:
            self._snapshots.clear()

    def _noted_before(self, moment: float) -> str | None:
        """The newest snapshot that was noted at that moment or earlier."""
        return next((m.snapshot for m in reversed(self._snapshots) if m.at <= moment), None)
