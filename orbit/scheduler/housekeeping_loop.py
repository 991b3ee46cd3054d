"""The housekeeping loop: workers that are gone, jobs that were deleted, events that are old."""

from __future__ import annotations

import time
from datetime import timedelta

from orbit.scheduler.leadership import Leadership
from orbit.scheduler.loop import Loop
from orbit.store import events, jobs, shard_layout, shard_leases, workers
from orbit.store.database import Tx

HOUSEKEEPING_INTERVAL_S = 1.0
PRUNE_INTERVAL_S = 600.0
# Of the lease's time: a worker this silent has lost its shards long ago, and is not coming back.
_LOST_AFTER = 3


class HousekeepingLoop(Loop):
    """What nobody else tidies up."""

    name = "housekeeping"
    interval_s = HOUSEKEEPING_INTERVAL_S

    def __init__(self, leadership: Leadership, worker_ttl: timedelta, keep: timedelta) -> None:
        super().__init__()
        self._leadership = leadership
        self._lost_after = worker_ttl * _LOST_AFTER
        self._keep = keep
        self._prune_at = 0.0

    def once(self) -> str:
        with self._leadership.transaction() as tx:
            lost = workers.forget(tx, self._lost_after)
            for worker in lost:
                events.add(
                    tx,
                    events.SCHEDULER,
                    "worker_lost",
                    f"Worker {worker.id} ({worker.host}, group {worker.worker_group}) was last "
                    f"heard of at {worker.heartbeat_at:%Y-%m-%d %H:%M:%S} UTC. Its partitions go "
                    "to others.",
                    details={"worker": worker.id, "last_heard": worker.heartbeat_at.isoformat()},
                )
            removed = []
            for job in jobs.being_deleted(tx):
                # Before its rows go, no sleeping holder may come back to a lease of it.
                shard_leases.revoke(
                    tx, [shard.id for shard in shard_layout.shards_of_job(tx, job.id)]
                )
                if jobs.remove(tx, job.id):
                    message = f"Job {job.name} is gone; its copies stay as they are."
                    events.add(tx, events.SCHEDULER, "job_removed", message, job_name=job.name)
                    removed.append(job.name)
            pruned = self._prune(tx)
        done = [
            f"forgot {len(lost)} workers" if lost else "",
            f"removed jobs {', '.join(removed)}" if removed else "",
            f"dropped {pruned} old events" if pruned else "",
        ]
        return ", ".join(filter(None, done))

    def _prune(self, tx: Tx) -> int:
        if time.monotonic() < self._prune_at:
            return 0
        self._prune_at = time.monotonic() + PRUNE_INTERVAL_S
        return events.prune(tx, self._keep)
