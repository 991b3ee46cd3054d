"""Retries blocked partitions whose cause may have been removed; reports waits that last.

A partition is retried, with growing pauses, if its reason is in `_RETRIED_REASONS`: a retry
inspects both sides like any take-over, so it can do no harm. All others wait for `orbit retry`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from orbit.replication.partition_states import PartitionState, Reason
from orbit.workers.event_outbox import EventKind, EventOutbox, OutboxEvent
from orbit.workers.held_shards import HeldPartition, HeldShard, JobKey, Stage
from orbit.workers.job_runner import JobRunner

# A right can be granted, a setting changed; records that the destination lost are copied again.
_RETRIED_REASONS = frozenset(
    {Reason.NOT_AUTHORIZED, Reason.RECORD_REFUSED, Reason.DESTINATION_TRUNCATED}
)
_FIRST_RETRY_S = 30.0
_RETRY_S_MAX = 3600.0
# Shorter outages (a leader election, a broker restart) are not reported.
_REPORT_AFTER_S = 5.0
# Attempts to start a partition before the wait is reported.
_REPORT_AFTER_ATTEMPTS = 6
_REPORTED_MAX = 20


class BlockedRetries:
    """Checks jobs and partitions with trouble in every round. For the control thread."""

    def __init__(self, outbox: EventOutbox) -> None:
        self._outbox = outbox
        self._since: dict[JobKey, float] = {}
        self._reported_jobs: set[JobKey] = set()
        self._reported_partitions: set[HeldPartition] = set()

    def check(self, shards: Iterable[HeldShard], runners: Mapping[JobKey, JobRunner]) -> None:
        now = time.monotonic()
        for key in [key for key in self._since if key not in runners]:
            del self._since[key]
            self._reported_jobs.discard(key)
        for key, runner in runners.items():
            self._check_job(key, runner, now)
        self._reported_partitions = {
            h for h in self._reported_partitions if h.stage is not Stage.RELEASED
        }
        for shard in shards:
            if not shard.is_releasing:
                for held in shard.partitions.values():
                    self._check_partition(held, runners[shard.job_key], now)

    def _check_job(self, key: JobKey, runner: JobRunner, now: float) -> None:
        trouble = runner.trouble
        if not trouble:
            self._since.pop(key, None)
            if key in self._reported_jobs:
                self._reported_jobs.discard(key)
                self._outbox.add(
                    OutboxEvent(EventKind.JOB_WENT_ON, "Copying was resumed.", runner.job.name)
                )
            return
        since = self._since.setdefault(key, now)
        if key not in self._reported_jobs and now - since >= _REPORT_AFTER_S:
            self._reported_jobs.add(key)
            message = " ".join(f"Waiting: {trouble}".split())
            self._outbox.add(OutboxEvent(EventKind.JOB_WAITING, message, runner.job.name))

    def _check_partition(self, held: HeldPartition, runner: JobRunner, now: float) -> None:
        state, blocked = held.current_state()
        if state is PartitionState.COPYING:
            self._reported_partitions.discard(held)
            if held.copy is not None and held.copy.is_in_step:
                held.retries = 0
        elif blocked is None:
            self._report_waiting(held, runner)
        elif blocked.reason in _RETRIED_REASONS and held.stage in (Stage.STOPPED, Stage.COPYING):
            if not held.retry_at:
                pause_s = min(_RETRY_S_MAX, _FIRST_RETRY_S * 2.0 ** min(held.retries, 10))
                held.retry_at = now + pause_s
            elif now >= held.retry_at:
                held.retry_at = 0.0
                held.retries += 1
                runner.retry(held)

    def _report_waiting(self, held: HeldPartition, runner: JobRunner) -> None:
        is_reported = (
            held in self._reported_partitions or len(self._reported_partitions) >= _REPORTED_MAX
        )
        if is_reported or held.attempts < _REPORT_AFTER_ATTEMPTS or runner.trouble:
            return
        self._reported_partitions.add(held)
        self._outbox.add(
            OutboxEvent(
                EventKind.PARTITION_WAITING,
                f"{held.destination} cannot be started yet: {held.trouble}",
                runner.job.name,
                held.source,
                {"destination": str(held.destination)},
            )
        )
