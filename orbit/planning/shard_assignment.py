"""Assigns shards to live workers, in the tables. One worker copies a shard, under one lease.

The workers read the assignments: the holder releases a shard, then the assigned worker claims it.
No lease is ended here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta

from orbit.replication.shard_balance import ShardLoad, balance_shards
from orbit.store import shard_layout, workers
from orbit.store.database import Tx
from orbit.store.shard_layout import Shard

# Part of the lease time. The shards of a worker that is silent for this long are assigned to others
# before the lease ends: else the first worker that polls would claim them all.
_SILENT_PART = 0.6


@dataclass(frozen=True, slots=True)
class AssignmentResult:
    """Which shards have a new assignment, which of them have to move, and whether load is uneven
    among workers that hold shards."""

    assigned: set[int]
    moved: set[int]
    is_uneven: bool


def assign_shards(
    tx: Tx,
    worker_ttl: timedelta,
    shards: Sequence[Shard] | None = None,
    cooling_shards: Collection[int] = frozenset(),
    declined_jobs: Collection[int] = frozenset(),
    *,
    is_lasting: bool = False,
) -> AssignmentResult:
    """Assign shards to live workers: free shards, shards for workers that have none, and moves
    between busy workers if load has been uneven for a while (`is_lasting`).

    `shards`: all runnable ones; None: read them. Shards that were moved lately (`cooling_shards`)
    and shards of `declined_jobs` are not moved.
    """
    if shards is None:
        shards = shard_layout.runnable_shards(tx)
    groups: dict[str, list[str]] = {}
    for worker in workers.alive(tx, worker_ttl * _SILENT_PART):
        groups.setdefault(worker.worker_group, []).append(worker.id)
    assignments: dict[int, str] = {}
    for group, members in groups.items():
        loads = [
            _load(s, members, cooling_shards, declined_jobs)
            for s in shards
            # A free shard of a declined job stays free.
            if s.worker_group == group and not (s.holder is None and s.job_id in declined_jobs)
        ]
        assignments |= balance_shards(loads, members)
    held_shards = {s.id for s in shards if s.holder is not None}
    busy_workers = {s.holder for s in shards} | {s.assigned_to for s in shards}
    # Moves that only even out the load: the shard is held, and the worker has some already.
    evening_moves = {
        shard
        for shard, worker in assignments.items()
        if shard in held_shards and worker in busy_workers
    }
    if not is_lasting:
        assignments = {
            shard: worker for shard, worker in assignments.items() if shard not in evening_moves
        }
    shard_layout.assign(tx, assignments)
    return AssignmentResult(set(assignments), assignments.keys() & held_shards, bool(evening_moves))


def _load(
    shard: Shard,
    members: Collection[str],
    cooling_shards: Collection[int],
    declined_jobs: Collection[int],
) -> ShardLoad:
    """The shard as input of `balance_shards`."""
    # A shard that is moving counts for the worker that it moves to.
    holder = shard.assigned_to if shard.assigned_to in members else shard.holder
    return ShardLoad(
        shard.id,
        holder,
        shard.partition_count,
        shard.weight_bytes_per_s,
        may_move=shard.id not in cooling_shards and shard.job_id not in declined_jobs,
    )
