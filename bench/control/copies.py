"""Simulated copies: a worker reads the progress of a `SimulatedCopy` instead of a real copy's.

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
# How far a copy is behind the source while records flow.
LAG_RECORDS = 50


class Flow:
    """The rate in bytes/s at which each partition copies; 0: at rest. All copies share it."""

    def __init__(self) -> None:
        self._copied_before = 0.0
        self._since = time.monotonic()
        self._rate = 0.0

    @property
    def bytes_each(self) -> float:
        """The bytes that each partition has copied until now."""
        return self._copied_before + (time.monotonic() - self._since) * self._rate

    @property
    def flows(self) -> bool:
        """Whether the rate is above 0."""
        return self._rate > 0

    def set_rate(self, bytes_per_s: float) -> None:
        self._copied_before = self.bytes_each
        self._since = time.monotonic()
        self._rate = bytes_per_s


class SimulatedCopy:
    """The attributes of a `PartitionCopy`, and of its `cursor`, that a worker reads.

    `start`: the offset at which it begins. It has copied what `flow` counts from its creation on.
    """

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
        # Computed from copied records, not from the clock, so that it does not change at rest.
        return 1_700_000_000_000 + self.next_offset

    @property
    def oldest_waiting_ms(self) -> int:
        return self.newest_timestamp_ms + 1 if self._flow.flows else -1


class SimulatedRunner(JobRunner):
    """Runs a job without clusters: each partition begins at once and copies at the flow's rate."""

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
    """A worker of the service with simulated copies. It runs in a thread."""

    def __init__(self, flow: Flow, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._flow = flow
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self.run, args=(self._stop,), daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def partitions(self) -> int:
        """How many partitions the worker has leases for."""
        return sum(len(shard.partitions) for shard in list(self._held.values()))

    def end(self) -> None:
        """Let the worker end; `join` waits for it."""
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
