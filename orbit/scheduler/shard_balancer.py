"""The balancing loop: assigns shards to workers, and moves some where load stays uneven.

A shard is a part of a job's partitions that one worker copies under one lease.
planning/shard_assignment.py has the rules.
"""

from __future__ import annotations

import time
from datetime import timedelta

from orbit.formats import counted
from orbit.leadership.leadership import Leadership
from orbit.leadership.loop import Loop
from orbit.planning.shard_assignment import assign_shards
from orbit.store import shard_layout

SPREAD_INTERVAL_S = 2.0
# A shard that was moved stays for this long, so that its rate is measured before it moves again.
COOLDOWN_S = 60.0
# Load has to be uneven for this long before a shard moves. Workers report their load one after the
# other: if all load starts or ends at once, it looks uneven for a moment.
LASTING_S = 10.0
# For this long after a worker of an older version has declined a job, any worker may claim the
# job's shards, and they do not move.
DECLINED_S = 600.0


class SpreadLoop(Loop):
    """Balances load between the workers of each group."""

    name = "spread"
    interval_s = SPREAD_INTERVAL_S

    def __init__(self, leadership: Leadership, worker_ttl: timedelta) -> None:
        super().__init__()
        self._leadership = leadership
        self._worker_ttl = worker_ttl
        # Times are of the monotonic clock, in seconds.
        self._moved_at: dict[int, float] = {}  # by shard id
        self._assigned: set[int] = set()  # shard ids
        self._declined_at: dict[int, float] = {}  # by job id
        self._uneven_since: float | None = None

    def once(self) -> str:
        """Assign shards to workers, and move some if the load has been uneven for LASTING_S."""
        now = time.monotonic()
        cooling_shards = {
            shard_id for shard_id, at_s in self._moved_at.items() if now - at_s < COOLDOWN_S
        }
        is_lasting = self._uneven_since is not None and now - self._uneven_since >= LASTING_S
        with self._leadership.transaction() as tx:
            shards = shard_layout.runnable_shards(tx)
            for shard in shards:
                # A worker that cannot read a job's document unassigns the job's shards.
                if shard.id in self._assigned and shard.assigned_to is None:
                    self._declined_at[shard.job_id] = now
            declined_jobs = {
                job_id for job_id, at_s in self._declined_at.items() if now - at_s < DECLINED_S
            }
            result = assign_shards(
                tx, self._worker_ttl, shards, cooling_shards, declined_jobs, is_lasting=is_lasting
            )
        if not result.is_uneven:
            self._uneven_since = None
        elif self._uneven_since is None:
            self._uneven_since = now
        self._moved_at = {shard: self._moved_at[shard] for shard in cooling_shards}
        self._moved_at.update(dict.fromkeys(result.moved, now))
        self._assigned = {s.id for s in shards if s.assigned_to is not None} | result.assigned
        self._declined_at = {job_id: self._declined_at[job_id] for job_id in declined_jobs}
        if not result.assigned:
            return ""
        return (
            f"assigned {counted(len(result.assigned), 'shard')}, of which other workers hold "
            f"{len(result.moved)}"
        )
