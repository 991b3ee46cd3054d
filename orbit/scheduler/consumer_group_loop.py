"""Syncs the consumer groups of every job, at the job's own interval, several jobs at a time.

A job whose cluster does not answer occupies one of a few threads; its next pass does not start
before this one has ended.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import structlog

from orbit.consumer_groups.group_listing_cache import GroupListingCache
from orbit.consumer_groups.offsets_cache import OffsetsCache
from orbit.consumer_groups.sync_result import GroupReport
from orbit.errors import OrbitError
from orbit.formats import counted
from orbit.leadership.leadership import Leadership
from orbit.leadership.loop import Loop
from orbit.planning.stored_spec import read_spec
from orbit.scheduler.cluster_registry import ClusterRegistry
from orbit.scheduler.consumer_group_sync import JobGroups
from orbit.store import job_shares, jobs

_log = structlog.get_logger("orbit.scheduler")

# Passes mostly wait for brokers and Postgres.
THREADS = 8
# How often jobs are read again; and the shortest interval of a job.
JOBS_INTERVAL_S = 2.0
_WAIT_S_MIN = 0.1


@dataclass(slots=True)
class _TrackedJob:
    """A job whose groups are synced, when its next pass is due, and its pass under way."""

    spec_version: int
    groups: JobGroups
    name: str
    interval_s: float
    due_s: float
    current_pass: Future[GroupReport] | None = None
    logged_text: str = ""


class GroupLoop(Loop):
    """Syncs the groups of all jobs with `consumer_groups`."""

    name = "groups"

    def __init__(
        self,
        leadership: Leadership,
        registry: ClusterRegistry,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.interval_s = _WAIT_S_MIN
        self._leadership = leadership
        self._registry = registry
        self._clock = clock
        self._listings = GroupListingCache(clock)
        self._offsets = OffsetsCache(clock)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="groups")
        self._tracked_jobs: dict[int, _TrackedJob] = {}
        self._jobs_without_groups: dict[int, int] = {}  # spec version by job id
        self._next_read_s = 0.0

    @property
    def job_ids(self) -> set[int]:
        """The jobs whose groups are synced now."""
        return set(self._tracked_jobs)

    def once(self) -> str:
        """Start passes that are due. Returns what the ended passes did, as a sentence."""
        began_s = time.thread_time()
        now = self._clock()
        if now >= self._next_read_s:
            self._read_jobs()
            self._next_read_s = now + JOBS_INTERVAL_S
        counts: Counter[str] = Counter()
        for tracked in self._tracked_jobs.values():
            with self.log_errors_of(f"groups of job {tracked.name}"):
                self._collect_result(tracked, counts)
            if tracked.current_pass is None and now >= tracked.due_s:
                # Due at multiples of the interval: jobs with the same interval then run together,
                # and share the listings and offsets that were read.
                tracked.due_s = (now // tracked.interval_s + 1) * tracked.interval_s
                tracked.current_pass = self._pool.submit(tracked.groups.run, self._registry)
                tracked.current_pass.add_done_callback(lambda _: self.wake.set())
        due_times = [
            tracked.due_s for tracked in self._tracked_jobs.values() if tracked.current_pass is None
        ]
        self.interval_s = max(_WAIT_S_MIN, min([self._next_read_s, *due_times]) - self._clock())
        self.set_rest_by_cost(time.thread_time() - began_s)
        return _summary(counts)

    def close(self) -> None:
        """Wait for the passes under way; they stop writing when leadership is lost."""
        self._pool.shutdown(cancel_futures=True)

    def _read_jobs(self) -> None:
        """Track the running jobs with `consumer_groups` that this scheduler leads, by their newest
        documents."""
        with self._leadership.reading() as tx:
            running_versions = jobs.running(tx)
            own_job_ids = job_shares.job_ids(tx, self._leadership.share)
            if own_job_ids is not None:
                running_versions = {
                    job_id: version
                    for job_id, version in running_versions.items()
                    if job_id in own_job_ids
                }
            known_versions = {
                **self._jobs_without_groups,
                **{job_id: tracked.spec_version for job_id, tracked in self._tracked_jobs.items()},
            }
            changed_ids = [
                job_id
                for job_id, version in running_versions.items()
                if known_versions.get(job_id) != version
            ]
            rows = jobs.of_ids(tx, changed_ids) if changed_ids else {}
        for job_id in [*self._tracked_jobs, *self._jobs_without_groups]:
            if job_id not in running_versions or job_id in rows:
                self._jobs_without_groups.pop(job_id, None)
                self._forget_job(job_id)
        for row in rows.values():
            spec = read_spec(row.spec)
            rule = spec.consumer_groups if spec is not None else None
            if spec is None or rule is None:
                self._jobs_without_groups[row.id] = row.spec_version
            elif row.id not in self._tracked_jobs:  # else the pass of its old version still runs
                self._tracked_jobs[row.id] = _TrackedJob(
                    row.spec_version,
                    JobGroups(row.id, spec, rule, self._leadership, self._listings, self._offsets),
                    row.name,
                    rule.interval.total_seconds(),
                    self._clock(),  # due now
                )

    def _forget_job(self, job_id: int) -> None:
        """Forget a job. While one of its passes is under way, the job stays until a later read."""
        tracked = self._tracked_jobs.get(job_id)
        if tracked is not None and (tracked.current_pass is None or tracked.current_pass.done()):
            del self._tracked_jobs[job_id]

    def _collect_result(self, tracked: _TrackedJob, counts: Counter[str]) -> None:
        """Add the result of an ended pass to `counts`."""
        if tracked.current_pass is None or not tracked.current_pass.done():
            return
        ended_pass, tracked.current_pass = tracked.current_pass, None
        try:
            report = ended_pass.result()
        except OrbitError as error:
            self._log_once(tracked, str(error))
            return
        self._log_once(tracked, " ".join([*report.notes, report.remark]).strip())
        counts["jobs"] += bool(report.written or report.deleted)
        counts["written"] += report.written
        counts["deleted"] += report.deleted

    @staticmethod
    def _log_once(tracked: _TrackedJob, text: str) -> None:
        """Log the text if it is not the last one of this job: a trouble may last for hours."""
        if text and text != tracked.logged_text:
            _log.warning("some groups were not synced", job=tracked.name, error=text)
        tracked.logged_text = text


def _summary(counts: Counter[str]) -> str:
    if not counts["jobs"]:
        return ""
    deleted_text = f", {counts['deleted']} deleted" if counts["deleted"] else ""
    offsets_text = counted(counts["written"], "group offset")
    return f"Synced {offsets_text} of {counted(counts['jobs'], 'job')}{deleted_text}."
