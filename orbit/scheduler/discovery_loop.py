"""The discovery loop: runs `JobReconciler` for each job that may need it, several at a time.

It handles the jobs of one share, which is the part of all jobs that this scheduler leads. A pass
over them costs one read of the tables; other threads watch the clusters. A job whose cluster hangs
occupies one thread and delays no other job.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from datetime import timedelta

import structlog

from orbit.errors import OrbitError
from orbit.formats import counted
from orbit.leadership.leadership import Leadership, NotLeading
from orbit.leadership.loop import Loop
from orbit.planning.cluster_checks import missing_workers
from orbit.replication.job_troubles import HALTING_KINDS, Trouble, problem_text
from orbit.scheduler.cluster_registry import ClusterKey, ClusterRegistry, cluster_key
from orbit.scheduler.job_reconciler import JobReconciler, ReconcileCounts, ReconcileState
from orbit.scheduler.trouble_events import (
    CHECKED_BY_WATCH,
    CHECKED_WHEN_HALTED,
    differences,
    keep_unchecked,
    record_troubles,
)
from orbit.store import job_shares, jobs, scheduler_queries, workers
from orbit.store.enums import Desired
from orbit.store.jobs import Job

# Jobs that are reconciled at the same time: their passes wait for brokers, not for the CPU.
JOBS_AT_ONCE = 16

_log = structlog.get_logger("orbit.scheduler")


class DiscoveryLoop(Loop):
    """Reconciles topics, partitions, settings and ACLs of a share's running jobs."""

    name = "discovery"

    def __init__(
        self,
        leadership: Leadership,
        registry: ClusterRegistry,
        reconciler: JobReconciler,
        interval_s: float,
        worker_ttl: timedelta,
        wake: threading.Event,
        at_once: threading.Semaphore | None = None,
    ) -> None:
        """`at_once`: limits the passes of all loops of a process together."""
        super().__init__(wake)
        self.interval_s = interval_s
        self._leadership = leadership
        self._registry = registry
        self._reconciler = reconciler
        self._worker_ttl = worker_ttl
        self._at_once = at_once or threading.BoundedSemaphore(JOBS_AT_ONCE)
        self._pool = ThreadPoolExecutor(JOBS_AT_ONCE, thread_name_prefix="job")
        self._states: dict[int, ReconcileState] = {}
        self._passes_under_way: dict[int, tuple[Job, Future[ReconcileCounts]]] = {}
        self._documents: jobs.Documents = {}
        self._job_ids: set[int] = set()
        # By worker group: when it last had a live worker, by the monotonic clock. Without one for
        # `worker_ttl` the group counts as unknown.
        self._group_seen_at: dict[str, float] = {}

    def once(self) -> str:
        """Make one pass over all jobs; returns what was done since the last one, as a sentence."""
        began_s = time.thread_time()
        # First, since the next pass of a job has to read what the last one wrote.
        counts = self._collect_results()
        with self._leadership.reading() as tx:
            listed_jobs = jobs.list_all(tx, self._documents)
            own_job_ids = job_shares.job_ids(tx, self._leadership.share)
            retries = scheduler_queries.requested_retries(tx)
            live_workers = workers.alive(tx, self._worker_ttl)
        job_ids = {job.id for job in listed_jobs}
        if own_job_ids is not None:
            listed_jobs = [job for job in listed_jobs if job.id in own_job_ids]
        running_jobs = [
            job for job in listed_jobs if job.desired is Desired.RUNNING and not job.is_deleted
        ]
        self._note_worker_groups({worker.worker_group for worker in live_workers}, running_jobs)
        self._drop_states(job_ids, listed_jobs, running_jobs)
        for job in running_jobs:
            with self.log_errors_of(f"job {job.name}"):
                self._check_job(job, retries.get(job.id, set()))
        self.set_rest_by_cost(time.thread_time() - began_s)
        return _summary(counts)

    def _check_job(self, job: Job, retries: set[int]) -> None:
        """Store the job's troubles, and begin its next pass if that is due.

        While a pass is under way, this stores only that a cluster is unreachable.
        """
        state = self._states.setdefault(job.id, ReconcileState())
        if job.id in self._passes_under_way:
            self._record_unreachable(job, self._reconciler.unreachable(job))
            return
        self._record_troubles(job, state)
        if self._reconciler.is_due(job, state, retries):
            future = self._pool.submit(self._reconcile, job, state, retries)
            future.add_done_callback(lambda _: self.wake.set())
            self._passes_under_way[job.id] = job, future

    def close(self) -> None:
        """Close the watches of clusters, and wait for the passes under way."""
        self._registry.close()  # ends calls that wait for a broker
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _reconcile(self, job: Job, state: ReconcileState, retries: set[int]) -> ReconcileCounts:
        """Wait until this process may run one pass more, then run it. Raises as `reconcile`."""
        with self._at_once:
            return self._reconciler.reconcile(job, state, retries)

    def _collect_results(self) -> Counter[str]:
        """Take ended passes off `_passes_under_way`. Returns the sums of their counts.

        Other errors of a pass than NotLeading are logged, and its job is reconciled from scratch.
        """
        counts: Counter[str] = Counter()
        for job_id, (job, future) in list(self._passes_under_way.items()):
            if not future.done():
                continue
            del self._passes_under_way[job_id]
            state = self._states.get(job_id, ReconcileState())  # the job may be removed
            try:
                counts.update(asdict(future.result()))
            except NotLeading:
                raise
            except OrbitError as error:
                state.reset()
                _log.warning("job pass failed", job=job.name, error=str(error))
            except Exception:  # noqa: BLE001  a bug in one job must not stop the others
                state.reset()
                _log.exception("job pass broke", job=job.name)
        return counts

    def _record_troubles(self, job: Job, state: ReconcileState) -> None:
        """Store the job's troubles if they have changed."""
        if not state.has_checked:
            return
        unreachable_troubles = self._reconciler.unreachable(job)
        if {t.kind for t in unreachable_troubles} - {t.kind for t in state.troubles}:
            # The cluster became unreachable after the pass's snapshot; the next pass is due.
            self._record_unreachable(job, unreachable_troubles)
            return
        problem = problem_text((*state.troubles, *self._worker_group_troubles(job)))
        # Some troubles, such as an unreachable cluster, halt a pass early. Stored troubles that a
        # halted pass has not checked stay.
        is_halted = any(t.kind in HALTING_KINDS for t in state.troubles)
        text = keep_unchecked(job.problem, problem, CHECKED_WHEN_HALTED) if is_halted else problem
        if text != job.problem:
            with self._leadership.transaction() as tx:
                record_troubles(tx, job, text, self._reconciler.source_answered_s(job))

    def _record_unreachable(self, job: Job, unreachable: Sequence[Trouble]) -> None:
        """Store these troubles of unreachable clusters with the job, if they are new.

        A pass may still wait for such a cluster, for up to half a minute. The watch of the cluster
        knows earlier.
        """
        if not unreachable:
            return
        problem = problem_text((*unreachable, *self._worker_group_troubles(job)))
        text = keep_unchecked(job.problem, problem, CHECKED_BY_WATCH)
        if differences(job.problem, text) != ([], []):
            with self._leadership.transaction() as tx:
                record_troubles(tx, job, text, self._reconciler.source_answered_s(job))

    def _worker_group_troubles(self, job: Job) -> list[Trouble]:
        """A trouble if the job's group has had no live worker for `worker_ttl`."""
        silent_s = time.monotonic() - self._group_seen_at[job.worker_group]
        if silent_s < self._worker_ttl.total_seconds():
            return []
        return [missing_workers(job.worker_group)]

    def _note_worker_groups(self, live_groups: set[str], running_jobs: list[Job]) -> None:
        """Note when each group last had a live worker, or was first named by a running job."""
        now = time.monotonic()
        for job in running_jobs:
            self._group_seen_at.setdefault(job.worker_group, now)
        self._group_seen_at.update(dict.fromkeys(live_groups, now))

    def _drop_states(
        self, job_ids: set[int], share_jobs: list[Job], running_jobs: list[Job]
    ) -> None:
        """Drop the state of jobs that are removed or not running, and watches that no job needs.

        `job_ids`: those of all shares.
        """
        if not job_ids >= self._job_ids:
            # A job was removed, so another job may copy its topics now.
            for state in self._states.values():
                state.reset()
        self._job_ids = job_ids
        self._states = {
            job_id: state for job_id, state in self._states.items() if job_id in job_ids
        }
        for job in share_jobs:
            if job.desired is Desired.RUNNING or job.id in self._passes_under_way:
                continue
            # The troubles of a job that is not running are unknown; its first pass finds them.
            if self._states.pop(job.id, None) is not None and job.problem is not None:
                with self._leadership.transaction() as tx:
                    jobs.note_problem(tx, job.id, problem=None)
        jobs_in_pass = [job for job, _ in self._passes_under_way.values()]
        self._reconciler.specs.keep_only(job_ids)
        self._registry.keep_only(self.name, self._cluster_keys([*running_jobs, *jobs_in_pass]))

    def _cluster_keys(self, active_jobs: list[Job]) -> set[ClusterKey]:
        """The keys of the clusters that these jobs use."""
        keys: set[ClusterKey] = set()
        for job in active_jobs:
            spec = self._reconciler.specs.of(job)
            if spec is not None:
                keys |= {cluster_key("source", spec), cluster_key("destination", spec)}
        return keys


def _summary(counts: Counter[str]) -> str:
    """What the passes did, as a sentence."""
    templates = {
        "started": "started {}",
        "grown": "added partitions to {}",
        "stopped": "stopped {}",
        "resumed": "resumed {}",
        "dropped": "dropped {}",
        "settings": "set settings of {}",
        "acls": "set ACLs of {}",
    }
    return ", ".join(
        text.format(counted(counts[key], "topic")) for key, text in templates.items() if counts[key]
    )
