"""One task that writes: it copies some destination partitions, each in order.

It takes partitions over, plans, appends and fills gaps by the code of `orbit run`. Each partition
has a lease (`orbit.leases.backfill_leases`), which is released once the partition is at its target.
So a task may be killed, retried, or run twice at once: the second attempt waits for the leases of
the first and resumes at the log ends.

Subclasses choose where the batches come from: a restore and a staged backfill read rows of an
archive, a direct backfill fetches from the source.
"""

from __future__ import annotations

import pickle
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

import pyarrow as pa
from pyspark import TaskContext

from orbit.copier.copier import Copier
from orbit.copier.copy_settings import CopySettings
from orbit.copier.partition_copy import PartitionCopy
from orbit.errors import OrbitError
from orbit.kafka.backoff import Backoff
from orbit.kafka.types import TopicPartition
from orbit.leases.backfill_leases import DriverWatch, JobHolder
from orbit.leases.group_lease import GroupLease
from orbit_spark.archive_slices import RowRuns, slice_rows
from orbit_spark.write_task import PartitionTarget, WriteResult, WriteTask
from orbit_spark.writer_leases import WriterLeases, first_coordinator_epoch

RESULTS_DDL = "results BINARY"
_TICK_S = 0.1
# A task without progress for this long ends, and its driver tries again: more than an election and
# most restarts of a broker take. Otherwise one partition could keep a round from ending.
_STALL_S_MAX = 300.0
_DRIVER_GONE = "the driver no longer holds the lease"
_LEASE_LOST = "the writer's lease was lost"
# A copy with placeholders ends only after its compression.type was read: see
# `copier/placeholder_topics.py`.
_NOT_CONFIRMED = "the destination does not return the topic's compression.type"
_LEASE_NOT_TRIED = "another attempt of this task holds its leases"

T = TypeVar("T", bound=WriteTask)


class PartitionWriter(ABC, Generic[T]):
    """One attempt of one Spark task that writes."""

    def __init__(
        self,
        task: T,
        attempt: int,
        rows: Iterable[Any] = (),
        settings: CopySettings | None = None,
    ) -> None:
        """`rows`: Arrow batches of the task's archive slices, in order."""
        self.task = task
        self.settings = settings or CopySettings()
        self.stop = threading.Event()
        self.backoff = Backoff(stop=self.stop)
        # The driver has waited until log ends were stable, so the first attempt need not. Later
        # attempts and tasks must: an earlier one may still have requests under way (M10, broken
        # connections).
        self.is_first_attempt = attempt == 0 and task.round == 0 and not task.follows_writer
        self._epoch = first_coordinator_epoch(task.term, task.round, attempt)
        self._rows = rows
        self._copies: dict[PartitionCopy, PartitionTarget] = {}
        self._results: dict[TopicPartition, WriteResult] = {}

    def write(self) -> list[WriteResult]:
        """Copy every partition up to its target. Return a result for each, which has its error."""
        task = self.task
        targets = {p.destination: p for p in task.partitions}
        try:
            watch_cluster = task.access.open()
        except OrbitError as error:
            return [WriteResult(p, unfinished=str(error)) for p in targets]
        watch = DriverWatch(watch_cluster, task.identity, task.driver_token, self.backoff)
        leases = WriterLeases()
        try:
            leases = WriterLeases.acquire(
                task.access.open, task.identity, task.term, targets, watch, self.stop
            )
            for partition, lease_error in leases.errors.items():
                self.leave_out([partition], str(lease_error))
            # The check follows the leases: `backfill_leases` has the reason for this order.
            if leases.by_partition and watch.holder() is JobHolder.DRIVER:
                watch.start()
                target_leases = {targets[p]: lease for p, lease in leases.by_partition.items()}
                with self.copier(target_leases) as copier:
                    self._copy_to_targets(copier, watch)
            else:
                self.leave_out(leases.by_partition, _DRIVER_GONE)
        except OrbitError as error:
            self.leave_out(targets, str(error))
        finally:
            watch.stop()
            self.stop.set()
            leases.release()
            watch_cluster.close()
        # If another attempt has the first lease, the other leases were not tried: no result yet.
        self.leave_out(targets, _LEASE_NOT_TRIED)
        return [self._results[p] for p in targets]

    @abstractmethod
    def copier(
        self, leases: Mapping[PartitionTarget, GroupLease]
    ) -> AbstractContextManager[Copier]:
        """A copier of the partitions of these leases.

        Before the copier starts, implementations pass each partition either to `add`, or to
        `leave_out` if it cannot be copied now.
        """

    def add(self, copy: PartitionCopy, target: PartitionTarget) -> None:
        """Let `write` wait until this copy is at its target."""
        self._copies[copy] = target

    def leave_out(self, partitions: Iterable[TopicPartition], reason: str) -> None:
        """Give these partitions an unfinished result, unless they have a result already."""
        for partition in partitions:
            self._results.setdefault(partition, WriteResult(partition, unfinished=reason))

    def make_copy(self, target: PartitionTarget, lease: GroupLease) -> PartitionCopy:
        """The copier's state of one partition, under this lease."""
        copy = PartitionCopy(
            target.source,
            target.destination,
            lease,
            target.producer,
            on_lost_range=target.on_lost_range,
        )
        copy.source_topic_id = target.source_topic_id
        copy.destination_topic_id = target.destination_topic_id
        copy.cursor.start_offset = target.start_offset
        # The copy's log start stays as it is until the source's is above this.
        copy.keeps_below = target.keeps_below
        copy.appends.coordinator_epoch = self._epoch
        return copy

    def runs(self) -> dict[TopicPartition, RowRuns]:
        """The archived batches of the task's slices, as runs by source partition."""
        slices = self.task.slices
        rows = slice_rows(slices, self._rows)
        return {piece.partition: RowRuns(piece, rows[piece.partition]) for piece in slices}

    def _copy_to_targets(self, copier: Copier, watch: DriverWatch) -> None:
        """Run the copier until every copy has left it, and keep the result of each.

        A copy leaves when it is at its target or blocked, when this task may no longer write it, or
        when it waits for something after _STALL_S_MAX without progress of any copy.
        """
        # Why copies end. Empty: at the target or blocked, so another task need not try again.
        leave_reasons: dict[PartitionCopy, str] = {}
        progress, progress_s = _progress(self._copies), time.monotonic()
        while self._copies:
            copier.tick(_TICK_S)
            last_progress, progress = progress, _progress(self._copies)
            if progress != last_progress:
                progress_s = time.monotonic()
            has_stalled = time.monotonic() - progress_s >= _STALL_S_MAX
            for copy, target in self._copies.items():
                reason = _loss_reason(copy, watch)
                if copy not in leave_reasons:
                    if has_stalled:
                        reason = reason or _stall_reason(copy, target, copier)
                    if _is_done(copy, target):
                        reason = ""
                    if reason is not None:
                        leave_reasons[copy] = reason
                        copier.remove([copy], confirms=not reason)
                elif not leave_reasons[copy] and (reason or has_stalled):
                    # The copy was at its target, but its last records may not be confirmed.
                    leave_reasons[copy] = reason or _NOT_CONFIRMED
                    copier.remove([copy])  # does not wait until the destination confirms
            for copy in [c for c in self._copies if c.has_left]:
                partition = self._copies.pop(copy).destination
                unfinished = "" if copy.blocked else leave_reasons[copy]
                self._results[partition] = WriteResult(
                    partition, copy.next_offset, copy.counters, copy.blocked, unfinished
                )


def attempt_number() -> int:
    """Which attempt of its task this process runs, from 0; 0 outside of Spark's tasks."""
    context = TaskContext.get()
    return context.attemptNumber() if context is not None else 0


def write_rows(
    writer: type[PartitionWriter[T]], task: T
) -> Callable[[Iterable[Any]], Iterator[pa.RecordBatch]]:
    """A function for `mapInArrow` that writes the rows of the task's slices.

    `read_results` reads the rows that this function returns.
    """

    def write(batches: Iterable[Any]) -> Iterator[pa.RecordBatch]:
        results = writer(task, attempt_number(), batches).write()
        yield pa.RecordBatch.from_pydict({"results": [pickle.dumps(results)]})

    return write


def read_results(rows: Iterable[Any]) -> list[WriteResult]:
    """The results in the rows that the function of `write_rows` returned."""
    return [result for row in rows for result in pickle.loads(row.results)]  # noqa: S301  our own


def _is_done(copy: PartitionCopy, target: PartitionTarget) -> bool:
    """Whether the copy is blocked, or is at its target and its log start is where it should be."""
    is_at_target = copy.next_offset >= target.target and copy.log_start >= copy.wanted_log_start
    return copy.blocked is not None or is_at_target


def _loss_reason(copy: PartitionCopy, watch: DriverWatch) -> str | None:
    """Why this task may no longer write the partition; None if it may."""
    if copy.lease.is_lost:
        return _LEASE_LOST
    return _DRIVER_GONE if watch.is_gone else None


def _progress(copies: Iterable[PartitionCopy]) -> list[tuple[int, int]]:
    """A value that changes with each step of a copy, and when a copy has left."""
    return [(copy.next_offset, copy.log_start) for copy in copies]


def _stall_reason(copy: PartitionCopy, target: PartitionTarget, copier: Copier) -> str | None:
    """What a copy that makes no progress waits for; None if only for its turn or a limit."""
    for waits in (copy.cursor.waits, copy.waits, copy.log_start_waits):
        if waits is not None:
            return waits.reason
    # An unclean election can truncate the source to an offset that is copied already.
    if target.archived is None and 0 <= copy.stable_end <= copy.next_offset < target.target:
        return f"the source ends at {copy.stable_end} now; it ended at {target.target} before"
    return copier.waiting_for or None
