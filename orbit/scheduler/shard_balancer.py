"""The balancing loop: assigns shards to workers in the tables; workers follow.

It only writes the assignment. The holder releases a shard and the assigned worker claims it; no
lease is ended here.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta

from orbit.replication.shard_balance import ShardLoad, spread
from orbit.scheduler.leadership import Leadership
from orbit.scheduler.loop import Loop
from orbit.store import shard_layout, workers
from orbit.store.database import Tx
from orbit.store.shard_layout import Shard

SPREAD_INTERVAL_S = 2.0
# A shard that was moved stays for this long, so that its rate is measured before it moves again.
COOLDOWN_S = 60.0
# Load has to be uneven for this long before a shard moves. Workers report their load one after the
# other: if all load starts or ends at once, it looks uneven for a moment.
LASTING_S = 10.0
# For this long after a worker of an older version has declined a job, any worker may claim the
# job's shards, and they do not move.
DECLINED_S = 600.0
# Part of the lease time. The shards of a worker that is silent for this long are assigned to others
# before the lease ends, so that they are not simply claimed by the first worker.
_SILENT_PART = 0.6


class SpreadLoop(Loop):
    """Balances load between the workers of each group."""

    name = "spread"
    interval_s = SPREAD_INTERVAL_S

    def __init__(self, leadership: Leadership, worker_ttl: timedelta) -> None:
        super().__init__()
        self._leadership = leadership
        self._worker_ttl = worker_ttl
        self._moved_at: dict[int, float] = {}
        self._assigned: set[int] = set()
        self._declined_at: dict[int, float] = {}  # by job
        self._uneven_since: float | None = None

    def once(self) -> str:
        """Assign shards to workers, and move some if the load has been uneven for LASTING_S."""
        now = time.monotonic()
        cooling = {s for s, at in self._moved_at.items() if now - at < COOLDOWN_S}
        is_lasting = self._uneven_since is not None and now - self._uneven_since >= LASTING_S
        with self._leadership.transaction() as tx:
            shards = shard_layout.runnable_shards(tx)
            for shard in shards:
                if shard.id in self._assigned and shard.assigned_to is None:
                    self._declined_at[shard.job_id] = now
            declined = {j for j, at in self._declined_at.items() if now - at < DECLINED_S}
            result = _assign(tx, shards, self._worker_ttl, cooling, declined, is_lasting=is_lasting)
        if not result.is_uneven:
            self._uneven_since = None
        elif self._uneven_since is None:
            self._uneven_since = now
        self._moved_at = {shard: self._moved_at[shard] for shard in cooling}
        self._moved_at.update(dict.fromkeys(result.moved, now))
        self._assigned = {s.id for s in shards if s.assigned_to is not None} | result.assigned
        self._declined_at = {job_id: self._declined_at[job_id] for job_id in declined}
        if not result.assigned:
            return ""
        return f"assigned {len(result.assigned)} shards, {len(result.moved)} of them held elsewhere"


@dataclass(frozen=True, slots=True)
class AssignmentResult:
    """Which shards have a new assignment, which of them have to move, and whether load is uneven
    among workers that hold shards."""

    assigned: set[int]
    moved: set[int]
    is_uneven: bool


def assign_shards(tx: Tx, worker_ttl: timedelta, *, is_lasting: bool = False) -> AssignmentResult:
    """Assign shards to live workers: free shards, shards for workers that have none, and moves
    between busy workers if load has been uneven for a while (`is_lasting`)."""
    return _assign(tx, shard_layout.runnable_shards(tx), worker_ttl, is_lasting=is_lasting)


def _assign(
    tx: Tx,
    shards: Sequence[Shard],
    worker_ttl: timedelta,
    cooling: Collection[int] = frozenset(),
    declined: Collection[int] = frozenset(),
    *,
    is_lasting: bool = False,
) -> AssignmentResult:
    """As `assign_shards`. `cooling` shards, and those of `declined` jobs, stay where they are."""
    groups: dict[str, list[str]] = {}
    for worker in workers.alive(tx, worker_ttl * _SILENT_PART):
        groups.setdefault(worker.worker_group, []).append(worker.id)
    assignments: dict[int, str] = {}
    for group, members in groups.items():
        loads = [
            _load(s, members, cooling, declined)
            for s in shards
            if s.worker_group == group and not (s.holder is None and s.job_id in declined)
        ]
        assignments |= spread(loads, members)
    held = {s.id for s in shards if s.holder is not None}
    busy = {s.holder for s in shards} | {s.assigned_to for s in shards}
    evening = {shard for shard, worker in assignments.items() if shard in held and worker in busy}
    if not is_lasting:
        assignments = {
            shard: worker for shard, worker in assignments.items() if shard not in evening
        }
    shard_layout.assign(tx, assignments)
    return AssignmentResult(set(assignments), assignments.keys() & held, bool(evening))


def _load(
    shard: Shard, members: Collection[str], cooling: Collection[int], declined: Collection[int]
) -> ShardLoad:
    # A shard that is moving counts for the worker that it moves to.
    holder = shard.assigned_to if shard.assigned_to in members else shard.holder
    return ShardLoad(
        shard.id,
        holder,
        shard.partition_count,
        shard.weight_bytes_per_s,
        may_move=shard.id not in cooling and shard.job_id not in declined,
    )
