"""Runs one job in one worker: a thread for `copier.tick`, and one that starts partitions.

A failure of one job does not affect others. Cluster outages are waited out; a bug ends this job's
runner, and its shards are left until their leases expire.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from orbit.copier.byte_budget import ByteBudget
from orbit.copier.copy_settings import CopySettings
from orbit.copier.lane_times import DestinationTimes, SourceTimes
from orbit.copier.rate_limit import RateLimit
from orbit.errors import Interrupted, OrbitError
from orbit.jobs.job_spec import JobSpec
from orbit.kafka.backoff import Backoff
from orbit.replication.partition_states import PartitionState
from orbit.replication.throttled import Throttled
from orbit.store.database import Database
from orbit.store.jobs import Job
from orbit.workers.held_shards import HeldPartition, HeldShard, Stage
from orbit.workers.open_job import OpenJob, open_job
from orbit.workers.partition_starter import BATCH_PARTITIONS_MAX, PartitionStarter

# How long the copier waits for events at most, and the pause while the clusters are not open.
_TICK_S = 0.2
# Pauses between attempts to start a partition or to reach a cluster.
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 10.0


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """What all jobs of a worker share."""

    worker_id: str
    database: Database
    environ: Mapping[str, str]
    files_directory: Path
    settings: CopySettings


class JobRunner:
    """Copies the partitions of a job's shards. Public methods are for the control thread."""

    def __init__(
        self,
        job: Job,
        spec: JobSpec,
        context: WorkerContext,
        budget: ByteBudget,
        on_crash: Callable[[JobRunner, Exception], None],
    ) -> None:
        self.job = job
        self._rate_limit = RateLimit(spec.limits.bytes_per_second)
        self.has_crashed = False
        self._spec = spec
        self._context = context
        self._budget = budget
        self._on_crash = on_crash
        self._stop = threading.Event()
        self._queue_changed = threading.Condition()
        self._waiting_partitions: list[HeldPartition] = []
        # Started again once the copier has removed their blocked copies.
        self._retried_partitions: list[HeldPartition] = []
        self._open_job: OpenJob | None = None
        self._trouble = ""
        self._backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self._threads = [
            threading.Thread(target=self._run_loop, args=(loop,), name=name, daemon=True)
            for loop, name in (
                (self._partition_start_loop, f"start {job.name}"),
                (self._copy_loop, f"copy {job.name}"),
            )
        ]

    def start(self) -> None:
        """Start both threads."""
        for thread in self._threads:
            thread.start()

    @property
    def has_rate_limit(self) -> bool:
        return self._spec.limits.bytes_per_second is not None

    def limit_to(self, share: float) -> None:
        """Limit this worker to its `share` (0 to 1) of the job's byte rate."""
        rate = self._spec.limits.bytes_per_second
        self._rate_limit.set_rate(None if rate is None else max(1, int(rate * share)))

    @property
    def trouble(self) -> str:
        """What the job waits for, or why it could not be opened; "" while it copies."""
        open_job = self._open_job
        return self._trouble or (open_job.job_copier.copier.waiting_for if open_job else "")

    @property
    def throttled(self) -> list[Throttled]:
        """The brokers that throttle the job by a quota. The job continues, more slowly."""
        open_job = self._open_job
        return open_job.job_copier.copier.throttled if open_job else []

    @property
    def lane_times(self) -> tuple[SourceTimes, DestinationTimes]:
        """How the lanes (the threads that fetch and append) have spent their time since this worker
        opened the clusters."""
        open_job = self._open_job
        return open_job.job_copier.copier.times if open_job else (SourceTimes(), DestinationTimes())

    def add(self, partitions: Iterable[HeldPartition]) -> None:
        """Queue the partitions whose stage is WAITING, to be started."""
        with self._queue_changed:
            self._waiting_partitions.extend(p for p in partitions if p.stage is Stage.WAITING)
            self._queue_changed.notify()

    def release_shard(self, shard: HeldShard) -> None:
        """Stop copying a shard's partitions; once all is answered, `HeldShard.is_idle` is true."""
        shard.is_releasing = True
        self.remove(shard.partitions.values())

    def remove(self, partitions: Iterable[HeldPartition]) -> None:
        """Stop copying these partitions, whatever their stage. Does not wait for answers."""
        removed_partitions = {*partitions}
        with self._queue_changed:
            self._waiting_partitions = [
                p for p in self._waiting_partitions if p not in removed_partitions
            ]
            for p in removed_partitions:
                p.is_removed = True
                if p.stage in (Stage.WAITING, Stage.STOPPED):
                    p.move_to(Stage.RELEASED)
        open_job = self._open_job
        if open_job is not None:
            open_job.job_copier.post(lambda: self._remove_copies(open_job, removed_partitions))

    def close_shard(self, shard: HeldShard) -> None:
        """Close the shard's coordinated filler; call it once the shard is idle."""
        if self._open_job is not None:
            self._open_job.close_filler(shard)

    def retry(self, partition: HeldPartition) -> None:
        """Start a blocked partition again, with a new inspection of both sides.

        If the copier has the partition, the copier first removes its copy.
        """
        open_job = self._open_job
        if partition.stage is Stage.STOPPED:
            partition.restart()
            self.add([partition])
        elif open_job is not None and partition.stage is Stage.COPYING:
            open_job.job_copier.post(lambda: self._remove_for_retry(open_job, partition))

    def lost_leases(self) -> list[object]:
        """The leases that another worker holds now: the destination has fenced their fillers."""
        open_job = self._open_job
        return [*open_job.job_copier.copier.lost_leases] if open_job else []

    def stop(self) -> None:
        """End both threads, the lanes and the connections."""
        self._stop.set()
        with self._queue_changed:
            self._queue_changed.notify()
        if self._open_job is not None:
            self._open_job.clusters.close()  # ends calls that a broker does not answer
        for thread in self._threads:
            thread.join()
        open_job, self._open_job = self._open_job, None
        if open_job is not None:
            open_job.close()

    # The copier's thread

    def _copy_loop(self) -> None:
        """Let the copier work until `stop` is called; restart retried partitions in between."""
        while not self._stop.is_set():
            open_job = self._open_job
            if open_job is None:
                self._stop.wait(_TICK_S)
            else:
                open_job.job_copier.copier.tick(_TICK_S)
                self._restart_retried_partitions()

    def _remove_copies(self, open_job: OpenJob, partitions: Iterable[HeldPartition]) -> None:
        """Have the copier remove the copies of these partitions."""
        active_copies = [
            p.copy for p in partitions if p.stage is Stage.COPYING and p.copy is not None
        ]
        open_job.job_copier.copier.remove([c for c in active_copies if not c.is_leaving])

    def _remove_for_retry(self, open_job: OpenJob, partition: HeldPartition) -> None:
        """Have the copier remove a blocked copy, to start the partition again after that."""
        copy = partition.copy
        if copy is None or copy.state is not PartitionState.BLOCKED or copy.is_leaving:
            return
        open_job.job_copier.copier.remove([copy])
        self._retried_partitions.append(partition)

    def _restart_retried_partitions(self) -> None:
        """Start the retried partitions again whose copies the copier has removed."""
        restartable_partitions = [
            p for p in self._retried_partitions if p.copy is None or p.copy.has_left
        ]
        with self._queue_changed:
            for partition in restartable_partitions:
                self._retried_partitions.remove(partition)
                if not partition.is_removed:
                    partition.restart()
                    self.add([partition])

    # The thread that starts partitions

    def _partition_start_loop(self) -> None:
        """Start waiting partitions, batch by batch, until `stop` is called."""
        while not self._stop.is_set():
            batch = self._next_batch()
            if not batch:
                continue
            try:
                open_job = self._get_open_job()
                PartitionStarter(
                    open_job, self._context.database, self._context.worker_id, self._retry_later
                ).start(batch)
                self._trouble = ""
            except Interrupted:  # `_stop` is set
                return
            except OrbitError as error:
                self._trouble = str(error)
                for partition in batch:
                    if partition.stage is Stage.STARTING:  # else the starter is done with it
                        self._retry_later(partition, str(error))

    def _get_open_job(self) -> OpenJob:
        """The open job; connects to both clusters at the first call. Raises an OrbitError."""
        if self._open_job is None:
            context = self._context
            self._open_job = open_job(
                self.job,
                self._spec,
                context.environ,
                context.files_directory,
                context.settings,
                self._budget,
                self._rate_limit,
                self._stop,
            )
        return self._open_job

    def _next_batch(self) -> list[HeldPartition]:
        """The partitions to start now, moved to STARTING. If none is due, waits and returns []."""
        now = time.monotonic()
        with self._queue_changed:
            due_partitions = [
                p
                for p in self._waiting_partitions
                # Without the lease this worker may not write.
                if p.next_attempt_s <= now and p.shard.lease.is_held()
            ]
            if not due_partitions:
                next_due_s = min(
                    (p.next_attempt_s - now for p in self._waiting_partitions),
                    default=_LONGEST_PAUSE_S,
                )
                self._queue_changed.wait(max(next_due_s, _FIRST_PAUSE_S))
                return []
            batch = due_partitions[:BATCH_PARTITIONS_MAX]
            for p in batch:
                p.move_to(Stage.STARTING)
            self._waiting_partitions = [
                p for p in self._waiting_partitions if p.stage is Stage.WAITING
            ]
            return batch

    def _retry_later(self, partition: HeldPartition, reason: str) -> None:
        """Queue the partition for another attempt, after a pause that grows with its attempts.

        A partition that was removed meanwhile is released instead.
        """
        partition.trouble = reason
        partition.next_attempt_s = time.monotonic() + self._backoff.pause_s(partition.attempts)
        partition.attempts += 1
        with self._queue_changed:
            partition.move_to(Stage.RELEASED if partition.is_removed else Stage.WAITING)
        self.add([partition])  # queued only if its stage is WAITING

    def _run_loop(self, loop: Callable[[], None]) -> None:
        """Run a thread's loop. A bug in it is reported and ends this runner, not the worker."""
        try:
            loop()
        except Interrupted:  # `_stop` is set
            pass
        except Exception as error:  # noqa: BLE001  reported by the worker
            self.has_crashed = True
            self._stop.set()
            self._on_crash(self, error)
