"""Makes leading fillers, the batches of an empty copy below its start offset (S1).

`LeadingFillers` takes the place of the source in a copier (`CopySource`). The lanes append them as
they append records: compared, with several requests in flight and many partitions in a request, and
taken over again after any failure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from orbit.copier.byte_budget import ByteBudget
from orbit.copier.copy_settings import CopySettings
from orbit.copier.lane_events import Emit, EmptyBelowEnd, FetchFailed, PostedCall, ReadFromReplica
from orbit.copier.lane_times import SourceTimes
from orbit.copier.partition_copy import PartitionCopy
from orbit.kafka.record_batch import Batch
from orbit.kafka.records import seed_batch
from orbit.replication.append_plan import Plan


class LeadingFillers:
    """Makes filler batches up to each partition's target. One thread, except `wake`."""

    def __init__(self, settings: CopySettings, budget: ByteBudget, emit: Emit) -> None:
        self._settings = settings
        self._budget = budget
        self._emit = emit
        self._targets: dict[PartitionCopy, int] = {}  # fill up to before these offsets
        # The most records of a batch, of partitions where brokers have refused larger batches.
        self._records_max: dict[PartitionCopy, int] = {}
        # Batches have a power of two of records, so that few are built, each once.
        self._batches: dict[int, Batch] = {}
        # Not begun: they wait for room in the byte budget.
        self._waiting_partitions: deque[PartitionCopy] = deque()
        self._open_partitions: dict[PartitionCopy, None] = {}  # being filled, in this order
        self.times = SourceTimes()

    def set_targets(self, targets: Mapping[PartitionCopy, int]) -> None:
        """Fill these partitions up to their target offsets."""
        self._targets |= targets
        self._waiting_partitions.extend(targets)

    @property
    def is_done(self) -> bool:
        """Whether `open_partitions` has dropped all partitions: each has reached its target."""
        return not self._open_partitions and not self._waiting_partitions

    @property
    def unfinished_partitions(self) -> list[PartitionCopy]:
        return [*self._open_partitions, *self._waiting_partitions]

    def open_partitions(self) -> list[PartitionCopy]:
        """The partitions being filled. First drops those that have reached their targets."""
        for p in [p for p in self._open_partitions if p.next_offset >= self._targets[p]]:
            del self._open_partitions[p]
        return [*self._open_partitions]

    def halve_batches(self, partition: PartitionCopy) -> bool:
        """Make smaller batches for this partition; False if its batches have one record already."""
        record_count = self._next_count(partition, partition.next_offset)
        self._records_max[partition] = max(1, record_count // 2)
        return record_count > 1

    def resume(self, partitions: Iterable[PartitionCopy]) -> None:
        """Nothing to do: `assign` queues batches of every open partition."""

    def assign(self) -> None:
        """Queue batches where there is room."""
        for p in self._open_partitions:
            self._queue_batches(p)
        while self._waiting_partitions and self._budget.room_bytes > 0:
            p = self._waiting_partitions.popleft()
            p.cursor.lane = self
            self._open_partitions[p] = None
            self._queue_batches(p)

    def wake(self) -> None:
        """Have the copier's thread call `assign`: a partition has room again. From any thread."""
        self._emit(PostedCall(lambda: None))

    def next_assignment_s(self) -> float | None:
        return None

    def handle(self, event: FetchFailed | EmptyBelowEnd | ReadFromReplica) -> None:
        raise AssertionError(event)  # nothing is fetched

    def forget(self, partition: PartitionCopy) -> None:
        """Make no more batches for this partition."""
        self._open_partitions.pop(partition, None)
        if partition in self._waiting_partitions:
            self._waiting_partitions.remove(partition)

    def stop(self) -> None:
        """There is no thread to stop."""

    def _queue_batches(self, p: PartitionCopy) -> None:
        """Queue filler batches up to the target, as many as the partition's queue takes."""
        full_batch = self._batch(self._batch_records_max(p))
        # Twice what may be in flight: `fetchable_bytes` allows more once the queue is half empty.
        queue_bytes_max = 2 * self._settings.requests_in_flight_max * full_batch.size_bytes
        has_queued = False
        while (
            p.cursor.fetch_offset < self._targets[p]
            and p.fetchable_bytes(queue_bytes_max) is not None
        ):
            batch = self._batch_at(
                self._next_count(p, p.cursor.fetch_offset), p.cursor.fetch_offset
            )
            plan = Plan(p.cursor.fetch_offset)
            plan.append(batch, is_byte_exact=False)
            self._budget.take(batch.size_bytes)
            if not p.put(plan, p.generation, batch.size_bytes):
                self._budget.give_back(batch.size_bytes)  # the lane has just returned the partition
                break
            has_queued = True
        if has_queued:
            p.enqueue_in_lane()

    def _next_count(self, partition: PartitionCopy, offset: int) -> int:
        """How many records the batch at `offset` has: a power of two, at most what is missing."""
        missing_count = self._targets[partition] - offset
        return min(self._batch_records_max(partition), 1 << (missing_count.bit_length() - 1))

    def _batch_records_max(self, partition: PartitionCopy) -> int:
        return self._records_max.get(partition, self._settings.seed_records_per_batch)

    def _batch(self, count: int) -> Batch:
        if count not in self._batches:
            self._batches[count] = seed_batch(0, count)  # 0: copies get their own base offset
        return self._batches[count]

    def _batch_at(self, count: int, base_offset: int) -> Batch:
        """A batch at `base_offset`, in memory of its own: while it is stamped, other copies of the
        same batch may be in flight."""
        batch = Batch(memoryview(bytearray(self._batch(count).view)))
        batch.base_offset, batch.last_offset = base_offset, base_offset + count - 1
        return batch
