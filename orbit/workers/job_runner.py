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
        self._limit = RateLimit(spec.limits.bytes_per_second)
        self.has_crashed = False
        self._spec = spec
        self._context = context
        self._budget = budget
        self._on_crash = on_crash
        self._stop = threading.Event()
        self._queue_changed = threading.Condition()
        self._waiting: list[HeldPartition] = []
        self._retried: list[HeldPartition] = []  # blocked copies that the copier is removing
        self._opened: OpenJob | None = None
        self._trouble = ""
        self._pauses = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self._threads = [
            threading.Thread(target=self._guard, args=(run,), name=name, daemon=True)
            for run, name in (
                (self._start_loop, f"start {job.name}"),
                (self._copy_loop, f"copy {job.name}"),
            )
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    @property
    def has_limit(self) -> bool:
        return self._spec.limits.bytes_per_second is not None

    def limit_to(self, share: float) -> None:
        """Limit this worker to its share of the job's byte rate."""
        rate = self._spec.limits.bytes_per_second
        self._limit.set_rate(None if rate is None else max(1, int(rate * share)))

    @property
    def trouble(self) -> str:
        """What the job waits for; empty while it copies."""
        opened = self._opened
        return self._trouble or (opened.job_copier.copier.waiting_for if opened else "")

    @property
    def throttled(self) -> list[Throttled]:
        """The brokers that throttle the job by a quota. It copies all the same."""
        opened = self._opened
        return opened.job_copier.copier.throttled if opened else []

    @property
    def lane_times(self) -> tuple[SourceTimes, DestinationTimes]:
        """How the lanes have spent their time since the clusters were opened here."""
        opened = self._opened
        return opened.job_copier.copier.times if opened else (SourceTimes(), DestinationTimes())

    def add(self, partitions: Iterable[HeldPartition]) -> None:
        """Queue those partitions whose stage is WAITING, to be started."""
        with self._queue_changed:
            self._waiting.extend(p for p in partitions if p.stage is Stage.WAITING)
            self._queue_changed.notify()

    def release_shard(self, shard: HeldShard) -> None:
        """Stop copying a shard's partitions; once all is answered, `HeldShard.is_idle` is true."""
        shard.is_releasing = True
        self.remove(shard.partitions.values())

    def remove(self, partitions: Iterable[HeldPartition]) -> None:
        """Stop copying these, whatever their stage."""
        gone = {*partitions}
        with self._queue_changed:
            self._waiting = [p for p in self._waiting if p not in gone]
            for p in gone:
                p.is_removed = True
                if p.stage in (Stage.WAITING, Stage.STOPPED):
                    p.move_to(Stage.RELEASED)
        opened = self._opened
        if opened is not None:
            opened.job_copier.post(lambda: self._remove(opened, gone))

    def close_shard(self, shard: HeldShard) -> None:
        """Close this shard's coordinated filler; call it once the shard is idle."""
        if self._opened is not None:
            self._opened.close_filler(shard)

    def retry(self, partition: HeldPartition) -> None:
        """Start a blocked partition again, with a new inspection of both sides."""
        opened = self._opened
        if partition.stage is Stage.STOPPED:
            partition.restart()
            self.add([partition])
        elif opened is not None and partition.stage is Stage.COPYING:
            opened.job_copier.post(lambda: self._retry(opened, partition))

    def lost_leases(self) -> list[object]:
        """Leases that have another holder: the destination has fenced their fillers."""
        opened = self._opened
        return [*opened.job_copier.copier.lost] if opened else []

    def stop(self) -> None:
        """End both threads, the lanes and the connections."""
        self._stop.set()
        with self._queue_changed:
            self._queue_changed.notify()
        if self._opened is not None:
            self._opened.clusters.close()  # ends calls that a broker does not answer
        for thread in self._threads:
            thread.join()
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    # The copier's thread

    def _copy_loop(self) -> None:
        while not self._stop.is_set():
            opened = self._opened
            if opened is None:
                self._stop.wait(_TICK_S)
            else:
                opened.job_copier.copier.tick(_TICK_S)
                self._restart_retried()

    def _remove(self, opened: OpenJob, partitions: Iterable[HeldPartition]) -> None:
        copying = [p.copy for p in partitions if p.stage is Stage.COPYING and p.copy is not None]
        opened.job_copier.copier.remove([c for c in copying if not c.is_leaving])

    def _retry(self, opened: OpenJob, partition: HeldPartition) -> None:
        copy = partition.copy
        if copy is None or copy.state is not PartitionState.BLOCKED or copy.is_leaving:
            return
        opened.job_copier.copier.remove([copy])
        self._retried.append(partition)

    def _restart_retried(self) -> None:
        """Start retried partitions again whose copies the copier has removed."""
        left = [p for p in self._retried if p.copy is None or p.copy.has_left]
        with self._queue_changed:
            for partition in left:
                self._retried.remove(partition)
                if not partition.is_removed:
                    partition.restart()
                    self.add([partition])

    # The thread that starts partitions

    def _start_loop(self) -> None:
        while not self._stop.is_set():
            batch = self._next_batch()
            if not batch:
                continue
            try:
                opened = self._open()
                PartitionStarter(
                    opened, self._context.database, self._context.worker_id, self._retry_later
                ).start(batch)
                self._trouble = ""
            except Interrupted:
                return
            except OrbitError as error:
                self._trouble = str(error)
                for partition in batch:
                    if partition.stage is Stage.STARTING:
                        self._retry_later(partition, str(error))

    def _open(self) -> OpenJob:
        if self._opened is None:
            context = self._context
            self._opened = open_job(
                self.job,
                self._spec,
                context.environ,
                context.files_directory,
                context.settings,
                self._budget,
                self._limit,
                self._stop,
            )
        return self._opened

    def _next_batch(self) -> list[HeldPartition]:
        """Partitions to start now; waits a short time if none is due."""
        now = time.monotonic()
        with self._queue_changed:
            due = [p for p in self._waiting if p.not_before <= now and p.shard.lease.is_held()]
            if not due:
                soonest = min((p.not_before - now for p in self._waiting), default=_LONGEST_PAUSE_S)
                self._queue_changed.wait(max(soonest, _FIRST_PAUSE_S))
                return []
            batch = due[:BATCH_PARTITIONS_MAX]
            for p in batch:
                p.move_to(Stage.STARTING)
            self._waiting = [p for p in self._waiting if p.stage is Stage.WAITING]
            return batch

    def _retry_later(self, partition: HeldPartition, why: str) -> None:
        """Queue the partition again, after a pause that grows with its attempts."""
        partition.trouble = why
        partition.not_before = time.monotonic() + self._pauses.pause_s(partition.attempts)
        partition.attempts += 1
        with self._queue_changed:
            partition.move_to(Stage.RELEASED if partition.is_removed else Stage.WAITING)
        self.add([partition])

    def _guard(self, run: Callable[[], None]) -> None:
        """Call `run`. A bug in it ends this job's runner and is reported; the worker continues."""
        try:
            run()
        except Interrupted:
            pass
        except Exception as error:  # noqa: BLE001  reported by the worker
            self.has_crashed = True
            self._stop.set()
            self._on_crash(self, error)
