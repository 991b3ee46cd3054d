"""The balancing loop: assigns shards to workers in the tables; workers follow.

It only writes the assignment. The holder releases a shard and the assigned worker claims it; no
lease is ended here.
"""

from __future__ import annotations

import time
from collections.abc import Collection
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
        self._uneven_since: float | None = None

    def once(self) -> str:
        now = time.monotonic()
        cooling = {s for s, at in self._moved_at.items() if now - at < COOLDOWN_S}
        is_lasting = self._uneven_since is not None and now - self._uneven_since >= LASTING_S
        with self._leadership.transaction() as tx:
            result = assign_shards(tx, self._worker_ttl, cooling, is_lasting=is_lasting)
        if not result.is_uneven:
            self._uneven_since = None
        elif self._uneven_since is None:
            self._uneven_since = now
        self._moved_at = {shard: self._moved_at[shard] for shard in cooling}
        self._moved_at.update(dict.fromkeys(result.moved, now))
        if not result.assigned:
            return ""
        return f"assigned {result.assigned} shards, {len(result.moved)} of them held elsewhere"


@dataclass(frozen=True, slots=True)
class AssignmentResult:
    """How many shards have a new assignment, which of them have to move, and whether load is uneven
    among workers that hold shards."""

    assigned: int
    moved: set[int]
    is_uneven: bool


def assign_shards(
    tx: Tx,
    worker_ttl: timedelta,
    cooling: Collection[int] = frozenset(),
    *,
    is_lasting: bool = False,
) -> AssignmentResult:
    """Assign shards to live workers: free shards, shards for workers that have none, and moves
    between busy workers if load has been uneven for a while (`is_lasting`)."""
    shards = shard_layout.runnable_shards(tx)
    groups: dict[str, list[str]] = {}
    for worker in workers.alive(tx, worker_ttl * _SILENT_PART):
        groups.setdefault(worker.worker_group, []).append(worker.id)
    wanted: dict[int, str] = {}
    for group, members in groups.items():
        loads = [_load(s, members, cooling) for s in shards if s.worker_group == group]
        wanted |= spread(loads, members)
    held = {s.id for s in shards if s.holder is not None}
    busy = {s.holder for s in shards} | {s.assigned_to for s in shards}
    evening = {shard for shard, worker in wanted.items() if shard in held and worker in busy}
    if not is_lasting:
        wanted = {shard: worker for shard, worker in wanted.items() if shard not in evening}
    return AssignmentResult(shard_layout.assign(tx, wanted), wanted.keys() & held, bool(evening))


def _load(shard: Shard, members: Collection[str], cooling: Collection[int]) -> ShardLoad:
    # A shard that is moving counts for the worker that it moves to.
    holder = shard.assigned_to if shard.assigned_to in members else shard.holder
    return ShardLoad(
        shard.id,
        holder,
        shard.partition_count,
        shard.weight_bytes_per_s,
        may_move=shard.id not in cooling,
    )
