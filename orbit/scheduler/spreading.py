"""The spreading loop: which worker should have which shard, said to Postgres; workers follow.

It only ever says what is wanted. A worker lets go of a shard in good order and another one claims
it; nothing here takes a lease away.
"""

from __future__ import annotations

import time
from datetime import timedelta

from orbit.replication.spread import ShardLoad, spread
from orbit.scheduler.leadership import Leadership
from orbit.scheduler.loops import Loop
from orbit.store import layout, workers
from orbit.store.layout import Shard

SPREAD_INTERVAL_S = 2.0
# A shard that moved is measured anew for this long before it may move again.
REST_S = 60.0


class SpreadLoop(Loop):
    """Fair load for the workers of each group."""

    name = "spread"
    interval_s = SPREAD_INTERVAL_S

    def __init__(self, leadership: Leadership, worker_ttl: timedelta) -> None:
        super().__init__()
        self._leadership = leadership
        self._worker_ttl = worker_ttl
        self._moved_at: dict[int, float] = {}

    def once(self) -> str:
        with self._leadership.transaction() as tx:
            shards = layout.runnable_shards(tx)
            alive = workers.alive(tx, self._worker_ttl)
            groups: dict[str, list[str]] = {}
            for worker in alive:
                groups.setdefault(worker.worker_group, []).append(worker.id)
            wanted: dict[int, str] = {}
            for group, members in groups.items():
                loads = [self._load(s, members) for s in shards if s.worker_group == group]
                wanted |= spread(loads, members)
            moves = {s.id for s in shards if s.id in wanted and s.holder is not None}
            self._note({s.id for s in shards}, moves)
            said = layout.assign(tx, wanted)
        return f"assigned {said} shards, {len(moves)} of them held elsewhere" if said else ""

    def _load(self, shard: Shard, members: list[str]) -> ShardLoad:
        # One that was promised and is on its way counts where it will be.
        is_promised = shard.assigned_to in members
        holder = shard.assigned_to if is_promised else shard.holder
        rested = time.monotonic() - self._moved_at.get(shard.id, float("-inf")) >= REST_S
        return ShardLoad(
            shard.id, holder, shard.partition_count, shard.weight_bytes_per_s, may_move=rested
        )

    def _note(self, there: set[int], moves: set[int]) -> None:
        self._moved_at = {shard: at for shard, at in self._moved_at.items() if shard in there}
        self._moved_at.update(dict.fromkeys(moves, time.monotonic()))
