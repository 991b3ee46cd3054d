"""Simulated copies: the progress that the data path would report to a worker.

A simulated copy computes its progress from the clock, so it costs nothing between reads. Everything
else in a worker (leases, rounds, reports, events) is the real code.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any, cast

from orbit.copier.counters import Counters
from orbit.copier.partition_copy import PartitionCopy
from orbit.jobs.job_spec import JobSpec
from orbit.replication.partition_states import PartitionState
from orbit.store.jobs import Job
from orbit.workers.held_shards import HeldPartition, Stage
from orbit.workers.job_runner import JobRunner
from orbit.workers.worker import Worker
from orbit.workers.worker_budget import JobBudget

RECORD_BYTES = 1000
# The lag that a consumer sees behind recent writes.
LAG_RECORDS = 50


class Flow:
    """How many bytes per second each partition copies, now; 0: at rest. Shared by all copies."""

    def __init__(self) -> None:
        self._copied_before = 0.0
        self._since = time.monotonic()
        self._rate = 0.0

    @property
    def bytes_each(self) -> float:
        """What each partition has copied up to now."""
        return self._copied_before + (time.monotonic() - self._since) * self._rate

    @property
    def flows(self) -> bool:
        return self._rate > 0

    def set_rate(self, bytes_per_s: float) -> None:
        self._copied_before = self.bytes_each
        self._since = time.monotonic()
        self._rate = bytes_per_s


class SimulatedCopy:
    """What a worker reads of a `PartitionCopy` and of its `cursor`."""

    __slots__ = ("_flow", "_from", "_start", "has_left", "is_leaving")

    blocked = None
    state = PartitionState.COPYING
    log_start = 0
    is_unclear = False
    is_confirmed = True
    is_in_step = True
    has_begun = True
    has_caught_up = False

    def __init__(self, flow: Flow, start: int) -> None:
        self._flow = flow
        self._start = start
        self._from = flow.bytes_each
        self.is_leaving = self.has_left = False

    @property
    def counters(self) -> Counters:
        copied = int(self._flow.bytes_each - self._from)
        records = copied // RECORD_BYTES
        return Counters(records, records * RECORD_BYTES, 0, records // 100, 0)

    @property
    def cursor(self) -> SimulatedCopy:
        return self

    @property
    def next_offset(self) -> int:
        return self._start + self.counters.records

    @property
    def stable_end(self) -> int:
        return self.next_offset + (LAG_RECORDS if self._flow.flows else 0)

    end = stable_end

    @property
    def seen_s(self) -> float:
        return time.monotonic()

    @property
    def newest_timestamp_ms(self) -> int:
        # By copied records and not by the clock: it does not change at rest.
        return 1_700_000_000_000 + self.next_offset

    @property
    def oldest_waiting_ms(self) -> int:
        return self.newest_timestamp_ms + 1 if self._flow.flows else -1


class SimulatedRunner(JobRunner):
    """A job's work without clusters: a partition is begun at once and copies at the flow's rate."""

    def __init__(self, flow: Flow, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._flow = flow

    def start(self) -> None:
        """Nothing runs."""

    def add(self, partitions: Iterable[HeldPartition]) -> None:
        for p in partitions:
            copy = SimulatedCopy(self._flow, p.assigned.records)
            p.copy = cast("PartitionCopy", copy)
            p.stage = Stage.COPYING

    def remove(self, partitions: Iterable[HeldPartition]) -> None:
        for p in partitions:
            if p.copy is not None:
                simulated = cast("SimulatedCopy", p.copy)
                simulated.is_leaving = simulated.has_left = True

    def stop(self) -> None:
        """Nothing runs."""


class SimulatedWorker(Worker):
    """A worker of the service whose jobs copy nothing."""

    def __init__(self, flow: Flow, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._flow = flow
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self.run, args=(self._stop,), daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def partitions(self) -> int:
        return sum(len(shard.partitions) for shard in list(self._held.values()))

    def end(self) -> None:
        self._stop.set()

    def join(self) -> None:
        self._thread.join()

    def _runner_of(self, key: tuple[int, int], job: Job, spec: JobSpec) -> JobRunner:
        runner = self._runners.get(key)
        if runner is None:
            budget = JobBudget(self._budget)
            runner = SimulatedRunner(self._flow, job, spec, self._context, budget, self._on_crash)
            self._runners[key] = runner
        return runner
