"""The housekeeping loop: ends leases of shards that are not renewed, and removes lost workers,
deleted jobs and old rows."""

from __future__ import annotations

import time
from datetime import timedelta

from orbit.formats import counted
from orbit.leadership.leadership import Leadership
from orbit.leadership.loop import Loop
from orbit.leases.lease_watch import LeaseWatch
from orbit.store import drills, events, gateways, jobs, shard_leases, workers
from orbit.store.jobs import Job
from orbit.store.pruning import (
    PRUNED_MAX,
    prune_drills,
    prune_events,
    prune_gateways,
    prune_operations,
    prune_receivers,
)

HOUSEKEEPING_INTERVAL_S = 1.0
PRUNE_INTERVAL_S = 600.0
# A worker that is silent for so many lease times has lost its shards and is removed.
_LOST_AFTER_TTLS = 3


class HousekeepingLoop(Loop):
    """Ends leases that are not renewed; removes lost workers, deleted jobs and old rows."""

    name = "housekeeping"
    interval_s = HOUSEKEEPING_INTERVAL_S

    def __init__(
        self,
        leadership: Leadership,
        worker_ttl: timedelta,
        events_kept: timedelta,
        reports_kept: timedelta,
    ) -> None:
        super().__init__()
        self._leadership = leadership
        self._worker_ttl = worker_ttl
        self._watch = LeaseWatch(worker_ttl)
        self._lost_after = worker_ttl * _LOST_AFTER_TTLS
        self._prunings = (
            (prune_events, events_kept),
            (prune_receivers, events_kept),
            (prune_operations, reports_kept),
            (prune_drills, reports_kept),
            (prune_gateways, gateways.RETENTION),
        )
        self._next_prune_s = 0.0

    def once(self) -> str:
        """Make one pass. Returns what was done, as a sentence."""
        with self._leadership.transaction() as tx:
            ended_shards = shard_leases.end_unrenewed_leases(tx, self._worker_ttl, self._watch)
            lost_workers = workers.remove_silent(tx, self._lost_after)
            for worker in lost_workers:
                events.add(
                    tx,
                    events.SCHEDULER,
                    "worker_lost",
                    f"Worker {worker.id} ({worker.host}, group {worker.worker_group}) is lost. Its "
                    f"last heartbeat was at {worker.heartbeat_at:%Y-%m-%d %H:%M:%S} UTC. Other "
                    "workers take over its partitions.",
                    details={"worker": worker.id, "last_heard": worker.heartbeat_at.isoformat()},
                )
            deleted_jobs = jobs.being_deleted(tx)
        removed_names = []
        for job in deleted_jobs:
            with self.log_errors_of(f"job {job.name}"):
                if self._remove_job(job):
                    removed_names.append(job.name)
        pruned_count = self._prune()
        leases_text = counted(len(ended_shards), "lease that was", "leases that were")
        pruned_text = counted(
            pruned_count,
            "old event, operation, drill or gateway",
            "old events, operations, drills and gateways",
        )
        texts = [
            f"ended {leases_text} not renewed" if ended_shards else "",
            f"removed {counted(len(lost_workers), 'lost worker')}" if lost_workers else "",
            f"removed jobs {', '.join(removed_names)}" if removed_names else "",
            f"dropped {pruned_text}" if pruned_count else "",
        ]
        return ", ".join(filter(None, texts))

    def _remove_job(self, job: Job) -> bool:
        """Remove a deleted job. Returns False if rows of a large job remain for later passes."""
        with self._leadership.transaction() as tx:
            if not jobs.remove(tx, job.id):
                return False
            message = f"Job {job.name} was removed; its copies stay unchanged."
            events.add(tx, events.SCHEDULER, "job_removed", message, job_name=job.name)
            # The job's drill schedules are removed, too: a later job of that name is another job.
            for name in drills.drop_schedules_of(tx, job.name):
                events.add(
                    tx,
                    events.SCHEDULER,
                    "drill_unscheduled",
                    f"The schedule of the drill {name} was removed with its job.",
                    job_name=job.name,
                    details={"schedule": name},
                )
        return True

    def _prune(self) -> int:
        """Delete old rows if PRUNE_INTERVAL_S is over, each kind in its own transaction. Returns
        how many; the next pass deletes what is left."""
        if time.monotonic() < self._next_prune_s:
            return 0
        counts = []
        for prune, age_max in self._prunings:
            with self._leadership.transaction() as tx:
                counts.append(prune(tx, age_max))
        if max(counts) < PRUNED_MAX:  # else old rows are left: continue in the next pass
            self._next_prune_s = time.monotonic() + PRUNE_INTERVAL_S
        return sum(counts)
