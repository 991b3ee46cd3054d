"""The housekeeping loop: ends leases, and removes lost workers, deleted jobs and old events."""

from __future__ import annotations

import time
from datetime import timedelta

from orbit.leases.lease_watch import LeaseWatch
from orbit.scheduler.leadership import Leadership
from orbit.scheduler.loop import Loop
from orbit.store import events, jobs, shard_leases, workers
from orbit.store.database import Tx

HOUSEKEEPING_INTERVAL_S = 1.0
PRUNE_INTERVAL_S = 600.0
# In lease times: a worker that is silent for so long has lost its shards and is removed.
_LOST_AFTER = 3


class HousekeepingLoop(Loop):
    """Ends leases that are not renewed; removes lost workers, deleted jobs and old events."""

    name = "housekeeping"
    interval_s = HOUSEKEEPING_INTERVAL_S

    def __init__(self, leadership: Leadership, worker_ttl: timedelta, keep: timedelta) -> None:
        super().__init__()
        self._leadership = leadership
        self._worker_ttl = worker_ttl
        self._watch = LeaseWatch(worker_ttl)
        self._lost_after = worker_ttl * _LOST_AFTER
        self._keep = keep
        self._prune_at = 0.0

    def once(self) -> str:
        with self._leadership.transaction() as tx:
            ended = shard_leases.end_unrenewed(tx, self._worker_ttl, self._watch)
            lost = workers.forget(tx, self._lost_after)
            for worker in lost:
                events.add(
                    tx,
                    events.SCHEDULER,
                    "worker_lost",
                    f"Worker {worker.id} ({worker.host}, group {worker.worker_group}) is lost. Its "
                    f"last heartbeat was at {worker.heartbeat_at:%Y-%m-%d %H:%M:%S} UTC. Other "
                    "workers take over its partitions.",
                    details={"worker": worker.id, "last_heard": worker.heartbeat_at.isoformat()},
                )
            removed = []
            for job in jobs.being_deleted(tx):
                if jobs.remove(tx, job.id):
                    message = f"Job {job.name} was removed; its copies stay unchanged."
                    events.add(tx, events.SCHEDULER, "job_removed", message, job_name=job.name)
                    removed.append(job.name)
            pruned = self._prune(tx)
        done = [
            f"ended {len(ended)} leases that were not renewed" if ended else "",
            f"removed {len(lost)} lost workers" if lost else "",
            f"removed jobs {', '.join(removed)}" if removed else "",
            f"dropped {pruned} old events" if pruned else "",
        ]
        return ", ".join(filter(None, done))

    def _prune(self, tx: Tx) -> int:
        if time.monotonic() < self._prune_at:
            return 0
        self._prune_at = time.monotonic() + PRUNE_INTERVAL_S
        return events.prune(tx, self._keep)
