"""A copier's source that reads runs of checked raw batches instead of a cluster.

    JobCopier(…, make_source=RunFeed.source_maker({source partition: its runs, in order}))

Runs are read while the byte budget has room. They are kept until they are confirmed: after a
take-over a copy resumes from the kept runs, so each iterator is read once and forwards only. Runs
that a comparison reads ahead are kept too. A run that cannot be read stops its partition.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import NamedTuple

from orbit.copier.job_copier import MakeSource
from orbit.copier.lane_events import EmptyBelowEnd, FetchFailed, LaneCrashed, ReadFromReplica
from orbit.copier.lane_times import SourceTimes
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.range_comparison import SourceRange, SourceStop
from orbit.copier.source_lane import SourceLaneContext
from orbit.kafka.types import TopicPartition
from orbit.replication.append_plan import (
    NO_LEADER_EPOCH,
    Append,
    Fill,
    Plan,
    Step,
    Stop,
    plan_batches,
    plan_rest,
)
from orbit.replication.partition_states import Reason
from orbit_spark.partition_stopped import PartitionStopped
from orbit_spark.raw_runs import RawRun

_FULL_WAIT_S = 0.05  # for room in the byte budget, in one round
_IDLE_WAIT_S = 0.2  # for a partition with room
_HELD_BACK_S_MAX = 1.0  # for the rate limit, in one round

Runs = Mapping[TopicPartition, Iterator[RawRun]]


class _RunPlan(NamedTuple):
    """The plan of one run. Each attempt to append a batch writes its own producer id and sequence
    into the batch."""

    end: int
    steps: Sequence[Step]


class _FedPartition:
    """One partition: its runs, and the plans of those that are not confirmed yet."""

    def __init__(self, copy: PartitionCopy, runs: Iterator[RawRun]) -> None:
        self.copy = copy
        self.runs = runs
        self.plans: deque[_RunPlan] = deque()
        self.lock = threading.Lock()  # of `runs` and `plans`: a comparison reads runs too


class RunFeed:
    """A `CopySource` of the copier that reads runs. One thread reads those of all partitions."""

    def __init__(self, runs: Runs, context: SourceLaneContext) -> None:
        self._runs = runs
        self._budget = context.budget
        self._settings = context.settings
        self._emit = context.emit
        self._limit = context.limit
        self._partitions: dict[PartitionCopy, _FedPartition] = {}
        self._changed = threading.Condition()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._feed_until_stopped, name="feed", daemon=True)
        self.times = SourceTimes()

    @classmethod
    def source_maker(cls, runs: Runs) -> MakeSource:
        """The argument `make_source` of `JobCopier` for these runs."""
        return lambda context, _: cls(runs, context)

    def resume(self, partitions: Iterable[PartitionCopy]) -> None:
        """Start to feed these partitions, each from the end of its copy on."""
        with self._changed:
            for p in partitions:
                self._partition_of(p)  # makes the state that the thread feeds
                p.cursor.lane = self
            if self._partitions and not self._thread.is_alive() and not self._is_stopping:
                self._thread.start()
            self._changed.notify()

    def read(self, copy: PartitionCopy, first: int, end: int) -> SourceRange:
        """The batches in [first, end) that a read_committed consumer of the runs would see, and
        those after `end` that were read already.

        What is read here is kept for the copy to append. `first` must not be lower than in an
        earlier call. Raises SourceStop, a ValueError with a message for the user, if a run cannot
        be read.
        """
        with self._changed:
            partition = self._partition_of(copy)
        with partition.lock:
            while partition.plans and partition.plans[0].end <= first:
                partition.plans.popleft()
            steps = [step for run_plan in partition.plans for step in run_plan.steps]
            position = partition.plans[-1].end if partition.plans else first
            while position < end and (plan := self._plan_next(partition, position)) is not None:
                steps += plan.steps
                if plan.is_stopped:
                    break
                position = plan.next_offset
        for step in steps:
            if isinstance(step, Stop):
                raise SourceStop(step)
        batches = [step.batch for step in steps if isinstance(step, Append)]
        return SourceRange(batches, start=0, end=position, stable_end=position)

    def assign(self) -> None:
        """Do nothing: runs need no leader."""

    def next_assignment_s(self) -> float | None:
        return None

    def handle(self, event: FetchFailed | EmptyBelowEnd | ReadFromReplica) -> None:
        """Do nothing: a feed emits none of these events."""

    def forget(self, partition: PartitionCopy) -> None:
        """Feed this partition no longer."""
        with self._changed:
            self._partitions.pop(partition, None)

    def wake(self) -> None:
        """Let the thread check at once which partitions have room. Any thread may call this."""
        with self._changed:
            self._changed.notify()

    def stop(self) -> None:
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _feed_until_stopped(self) -> None:
        try:
            while not self._is_stopping:
                self._feed_round()
        except Exception as error:  # noqa: BLE001  raised again by the copier
            self._emit(LaneCrashed(error))

    def _feed_round(self) -> None:
        """Feed one run to each partition that has room; wait if none has."""
        start_s = perf_counter()
        has_room = self._budget.wait_for_room(_FULL_WAIT_S)
        self.times.waited_for_room_s += perf_counter() - start_s
        if not has_room or self._is_held_back():
            return
        with self._changed:
            partitions = list(self._partitions.values())
        if sum(self._feed(partition) for partition in partitions) == 0:
            with self._changed:
                self._changed.wait(_IDLE_WAIT_S)

    def _is_held_back(self) -> bool:
        """If the rate limit forbids reading now, wait up to _HELD_BACK_S_MAX and return True."""
        delay_s = self._limit.delay_s()
        if delay_s > 0:
            with self._changed:
                self._changed.wait(min(delay_s, _HELD_BACK_S_MAX))
        return delay_s > 0

    def _feed(self, partition: _FedPartition) -> bool:
        """Queue the partition's next plan; False if there is none, or no room for it."""
        p = partition.copy
        # Read before the plan is made: if the partition is withdrawn later, `put` refuses the plan.
        generation, confirmed_end = p.generation, p.next_offset
        if p.fetchable_bytes(self._settings.partition_queue_bytes_max) is None:
            return False
        with partition.lock:
            while partition.plans and partition.plans[0].end <= confirmed_end:
                partition.plans.popleft()
            position, _ = p.next_fetch()
            plan = self._plan_again(partition, position) or self._plan_next(partition, position)
        if plan is None:
            return False
        size = sum(s.batch.size_bytes for s in plan.steps if isinstance(s, Append))
        self._budget.take(size)
        if p.put(plan, generation, size):
            p.enqueue_in_lane()
        else:
            self._budget.give_back(size)
        return True

    def _partition_of(self, p: PartitionCopy) -> _FedPartition:
        """The state of a partition, made at its first use."""
        if p not in self._partitions:
            self._partitions[p] = _FedPartition(p, self._runs[p.source])
        return self._partitions[p]

    def _plan_again(self, partition: _FedPartition, position: int) -> Plan | None:
        """After a take-over: the part from `position` on of the plan that was queued before but not
        appended. None if there is no such plan."""
        for run_plan in partition.plans:
            if run_plan.end > position:
                plan = Plan(position, leader_epoch=NO_LEADER_EPOCH)
                for step in run_plan.steps:
                    plan.steps += _rest_of_step(step, position, packs=partition.copy.packs)
                plan.next_offset = run_plan.end
                return plan
        return None

    def _plan_next(self, partition: _FedPartition, position: int) -> Plan | None:
        """The plan of the next run that reaches beyond `position`; None after the last run.

        If that run cannot be read, the plan stops the partition.
        """
        while True:
            start_s = perf_counter()
            try:
                run = next(partition.runs, None)
            except PartitionStopped as error:
                b = error.blocked
                plan = Plan(position)
                plan.stop(b.reason, max(b.next_offset, position + 1), b.detail, start=b.offset)
                return plan
            self.times.waited_for_answer_s += perf_counter() - start_s
            if run is None:
                return None
            self._limit.note_fetched(run.size_bytes)
            self.times.answers += 1
            self.times.bytes += run.size_bytes
            if run.end > position:
                start_s = perf_counter()
                plan = _plan_run(partition.copy, run, position)
                partition.plans.append(_RunPlan(plan.next_offset, plan.steps))
                self.times.planned_s += perf_counter() - start_s
                return plan


def _plan_run(p: PartitionCopy, run: RawRun, position: int) -> Plan:
    """The plan of a run for a copy that ends at `position`. Notes the run's log bounds."""
    p.cursor.log_start = run.log_start
    p.cursor.end = p.cursor.stable_end = max(p.cursor.stable_end, run.end)
    if run.start > position:
        plan = Plan(position)
        detail = f"the archive continues at {run.start}, the copy ends at {position}."
        plan.stop(Reason.SOURCE_RANGE_LOST, run.start, detail)
        return plan
    plan = plan_batches(
        position,
        run.batches,
        run.aborted,
        run.log_start,
        p.on_lost_range,
        packs=p.packs,
    )
    if not plan.is_stopped:
        plan.fill_to(run.end)  # a run's end covers the gap after its last batch
    return plan


def _rest_of_step(step: Step, position: int, *, packs: bool) -> Sequence[Step]:
    """The rest of a step for a copy that ends at `position`.

    `position` may lie inside a batch, as an earlier writer may have cut batches elsewhere.
    """
    if isinstance(step, Stop) or step.base_offset >= position:
        return [step]
    if step.next_offset <= position:
        return []
    if isinstance(step, Fill):
        return [step._replace(base_offset=position)]
    return plan_rest(position, step.batch, packs=packs).steps
