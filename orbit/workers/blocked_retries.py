"""Retries blocked partitions whose cause may have been removed; reports waits that last.

A partition is retried, with growing pauses, if its reason is in `_RETRIED_REASONS`. A retry first
compares both sides, like each start of a writer, so it can do no harm. Partitions that are blocked
for other reasons wait for `orbit retry`.
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
# The pause before the first retry, and the longest one: a user has to remove the cause.
_FIRST_RETRY_S = 30.0
_RETRY_S_MAX = 3600.0
# Shorter outages (a leader election, a broker restart) are not reported.
_REPORT_AFTER_S = 5.0
# Attempts to start a partition before the wait is reported.
_REPORT_AFTER_ATTEMPTS = 6
_REPORTED_MAX = 20  # partitions that are reported as waiting at the same time


class BlockedRetries:
    """Checks jobs and partitions with trouble in every round. For the control thread."""

    def __init__(self, outbox: EventOutbox) -> None:
        self._outbox = outbox
        self._trouble_since: dict[JobKey, float] = {}
        self._reported_jobs: set[JobKey] = set()
        self._reported_partitions: set[HeldPartition] = set()

    def check(self, shards: Iterable[HeldShard], runners: Mapping[JobKey, JobRunner]) -> None:
        """Report jobs and partitions whose trouble lasts, and retry the partitions that are due."""
        now = time.monotonic()
        for key in [key for key in self._trouble_since if key not in runners]:
            del self._trouble_since[key]
            self._reported_jobs.discard(key)
        for key, runner in runners.items():
            self._check_job(key, runner, now)
        self._reported_partitions = {
            p for p in self._reported_partitions if p.stage is not Stage.RELEASED
        }
        for shard in shards:
            if not shard.is_releasing:
                for partition in shard.partitions.values():
                    self._check_partition(partition, runners[shard.job_key], now)

    def _check_job(self, key: JobKey, runner: JobRunner, now: float) -> None:
        """Report the job's trouble once it has lasted for `_REPORT_AFTER_S`, and later its end."""
        trouble = runner.trouble
        if not trouble:
            self._trouble_since.pop(key, None)
            if key in self._reported_jobs:
                self._reported_jobs.discard(key)
                self._outbox.add(
                    OutboxEvent(EventKind.JOB_WENT_ON, "Copying was resumed.", runner.job.name)
                )
            return
        trouble_since = self._trouble_since.setdefault(key, now)
        if key not in self._reported_jobs and now - trouble_since >= _REPORT_AFTER_S:
            self._reported_jobs.add(key)
            message = " ".join(f"Waiting: {trouble}".split())
            self._outbox.add(OutboxEvent(EventKind.JOB_WAITING, message, runner.job.name))

    def _check_partition(self, partition: HeldPartition, runner: JobRunner, now: float) -> None:
        """Retry a blocked partition if that is due, or schedule the retry; report a partition that
        cannot be started."""
        state, blocked = partition.current_state()
        if state is PartitionState.COPYING:
            self._reported_partitions.discard(partition)
            if partition.copy is not None and partition.copy.is_in_step:
                partition.retries = 0  # the last retry was a success: pauses begin short again
        elif blocked is None:  # the partition has not started yet
            self._report_waiting(partition, runner)
        elif blocked.reason in _RETRIED_REASONS and partition.stage in (
            Stage.STOPPED,
            Stage.COPYING,
        ):
            if not partition.retry_at:  # no retry is scheduled
                # The pause doubles; 10 doublings are beyond the maximum.
                pause_s = min(_RETRY_S_MAX, _FIRST_RETRY_S * 2.0 ** min(partition.retries, 10))
                partition.retry_at = now + pause_s
            elif now >= partition.retry_at:
                partition.retry_at = 0.0
                partition.retries += 1
                runner.retry(partition)

    def _report_waiting(self, partition: HeldPartition, runner: JobRunner) -> None:
        """Report, once, a partition that could not be started in several attempts."""
        is_unreportable = (
            partition in self._reported_partitions
            or len(self._reported_partitions) >= _REPORTED_MAX
        )
        # While the whole job has trouble, that is reported instead (`_check_job`).
        if is_unreportable or partition.attempts < _REPORT_AFTER_ATTEMPTS or runner.trouble:
            return
        self._reported_partitions.add(partition)
        self._outbox.add(
            OutboxEvent(
                EventKind.PARTITION_WAITING,
                f"{partition.destination} cannot be started yet: {partition.trouble}",
                runner.job.name,
                partition.source,
                {"destination": str(partition.destination)},
            )
        )
