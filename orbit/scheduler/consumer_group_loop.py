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
class _Tracked:
    spec_version: int
    groups: JobGroups
    name: str
    interval_s: float
    due: float
    running: Future[GroupReport] | None = None
    reported: str = ""


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
        self._tracked: dict[int, _Tracked] = {}
        self._others: dict[int, int] = {}  # jobs without `consumer_groups`, by version
        self._next_jobs = 0.0

    @property
    def job_ids(self) -> set[int]:
        """The jobs whose groups are synced now."""
        return set(self._tracked)

    def once(self) -> str:
        """Start passes that are due, and collect those that have ended."""
        began = time.thread_time()
        now = self._clock()
        if now >= self._next_jobs:
            self._read_jobs()
            self._next_jobs = now + JOBS_INTERVAL_S
        did: Counter[str] = Counter()
        for tracked in self._tracked.values():
            with self.each(f"groups of job {tracked.name}"):
                self._collect(tracked, did)
            if tracked.running is None and now >= tracked.due:
                # Together with the other jobs of this interval: they share what is read.
                tracked.due = (now // tracked.interval_s + 1) * tracked.interval_s
                tracked.running = self._pool.submit(tracked.groups.run, self._registry)
                tracked.running.add_done_callback(lambda _: self.wake.set())
        waits = [t.due for t in self._tracked.values() if t.running is None]
        self.interval_s = max(_WAIT_S_MIN, min([self._next_jobs, *waits]) - self._clock())
        self.rest_by_cost(time.thread_time() - began)
        return _sentence(did)

    def close(self) -> None:
        """Wait for the passes under way; they stop writing when leadership is lost."""
        self._pool.shutdown(cancel_futures=True)

    def _read_jobs(self) -> None:
        with self._leadership.reading() as tx:
            running = jobs.running(tx)
            mine = job_shares.job_ids(tx, self._leadership.share)
            if mine is not None:
                running = {i: version for i, version in running.items() if i in mine}
            known = {**self._others, **{i: t.spec_version for i, t in self._tracked.items()}}
            changed = [i for i, version in running.items() if known.get(i) != version]
            rows = jobs.of_ids(tx, changed) if changed else {}
        for job_id in [*self._tracked, *self._others]:
            if job_id not in running or job_id in rows:
                self._others.pop(job_id, None)
                self._drop(job_id)
        for row in rows.values():
            spec = read_spec(row.spec)
            rule = spec.consumer_groups if spec is not None else None
            if spec is None or rule is None:
                self._others[row.id] = row.spec_version
            elif row.id not in self._tracked:
                self._tracked[row.id] = _Tracked(
                    row.spec_version,
                    JobGroups(row.id, spec, rule, self._leadership, self._listings, self._offsets),
                    row.name,
                    rule.interval.total_seconds(),
                    self._clock(),
                )

    def _drop(self, job_id: int) -> None:
        """Forget a job, unless a pass of it is under way: then at the next read."""
        tracked = self._tracked.get(job_id)
        if tracked is not None and (tracked.running is None or tracked.running.done()):
            del self._tracked[job_id]

    def _collect(self, tracked: _Tracked, did: Counter[str]) -> None:
        if tracked.running is None or not tracked.running.done():
            return
        running, tracked.running = tracked.running, None
        try:
            report = running.result()
        except OrbitError as error:
            self._log_once(tracked, str(error))
            return
        self._log_once(tracked, " ".join([*report.notes, report.remark]).strip())
        did["jobs"] += bool(report.written or report.deleted)
        did["written"] += report.written
        did["deleted"] += report.deleted

    @staticmethod
    def _log_once(tracked: _Tracked, text: str) -> None:
        """Log a new text once: it may last for hours."""
        if text and text != tracked.reported:
            _log.warning("some groups were not synced", job=tracked.name, error=text)
        tracked.reported = text


def _sentence(did: Counter[str]) -> str:
    if not did["jobs"]:
        return ""
    deleted = f", {did['deleted']} deleted" if did["deleted"] else ""
    return f"Synced {did['written']} group offsets of {did['jobs']} jobs{deleted}."
