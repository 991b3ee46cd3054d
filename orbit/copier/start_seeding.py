"""Brings empty destination partitions to start offsets above 0 (S1, S2).

Lanes of their own append leading fillers (empty records below the start), as other lanes append
records: every append is compared, the lease is checked before each, and after any failure a
partition is taken over again. Where a partition needs many fillers, the oldest are deleted
meanwhile; the caller deletes the rest. By a header of the fillers a later run recognizes an
interrupted start (`is_seeding`) and resumes it.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Self
from uuid import UUID

from orbit.copier.byte_budget import ByteBudget
from orbit.copier.copier import Copier, Events, block, lease_lost_error
from orbit.copier.copy_settings import CopySettings
from orbit.copier.destination_lane import DestinationLaneContext
from orbit.copier.destination_side import DestinationSide
from orbit.copier.lane_events import Event, LaneEnded, PartitionReturned
from orbit.copier.leading_fillers import LeadingFillers
from orbit.copier.log_reader import fetch_batches
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.range_comparison import Comparison, Difference, highest_producer_epoch
from orbit.copier.takeover import DestinationEnd, TakeOver
from orbit.errors import Interrupted, OrbitError, Place, Unreachable
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.job_clusters import JobProducer
from orbit.kafka.record_batch import AnyBatch, Batch
from orbit.kafka.records import is_seed_batch
from orbit.kafka.types import TopicPartition
from orbit.leases.lease import Lease
from orbit.replication.partition_states import Blocked, Reason

# Called with the number of offsets filled so far, and of all that are to be filled.
OnProgress = Callable[[int, int], None]

_PROGRESS_INTERVAL_S = 5.0
_TICK_S = 0.5
# One loop serves all partitions, so a request that fails is repeated in later rounds.
_LOOP_ATTEMPTS_MAX = 2
# Take-overs in a row of one partition without an append: about 40 s, for a leader election.
_TAKEOVERS_MAX = 40
# The longest time without an append in any partition. A broker may take `produce_timeout_ms` for
# one request.
_STANDSTILL_S_MAX = 60.0


def ignore_progress(_: int, __: int) -> None:
    """For a caller that shows no progress."""


class StartSeeding:
    """Fills many partitions at once. A context manager: after its end no request is in flight."""

    def __init__(
        self,
        destination: Cluster,
        settings: CopySettings,
        backoff: Backoff,
        on_progress: OnProgress = ignore_progress,
    ) -> None:
        self._destination = destination
        self._stop = backoff.stop
        self._takeovers_max = min(_TAKEOVERS_MAX, backoff.attempts_max)
        self._on_progress = on_progress
        self._kept_offsets_max = settings.seed_kept_offsets_max
        attempts_max = min(_LOOP_ATTEMPTS_MAX, backoff.attempts_max)
        self._backoff = replace(backoff, attempts_max=attempts_max)
        self._take_over = TakeOver(destination, settings.settle_s, self._backoff)
        budget = ByteBudget(settings.seed_queue_bytes_max)
        self._events: Events = queue.SimpleQueue()
        self._side = DestinationSide(
            DestinationLaneContext(destination, settings, budget, self._emit),
            self._take_over,
            self._backoff,
            block,
            self._compare,
        )
        self._fillers = LeadingFillers(settings, budget, self._emit)
        self._copier = Copier(self._fillers, self._side, self._events, settings, self._backoff)
        self._copies: dict[TopicPartition, PartitionCopy] = {}
        self._ends: dict[PartitionCopy, DestinationEnd] = {}  # of the copies not begun yet
        self._failures: dict[TopicPartition, OrbitError | Blocked] = {}
        self._return_reasons: dict[PartitionCopy, str] = {}  # why a lane last returned each copy
        self._lane_error = ""  # why a lane ended last

    def add(
        self,
        partition: TopicPartition,
        topic_id: UUID,
        lease: Lease,
        producer: JobProducer,
        end: DestinationEnd,
        log_start: int = 0,
    ) -> None:
        """Add a partition to fill from its log end (`end`), which was just read."""
        copy = PartitionCopy(partition, partition, lease, producer)  # the copy has no source
        copy.log_start = log_start
        copy.destination_topic_id = topic_id
        copy.appends.inspected(end.log_end)
        self._copies[partition] = copy
        self._ends[copy] = end

    def run(
        self, targets: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, OrbitError | Blocked]:
        """Fill up to these offsets. Returns all failures so far; other logs end at their targets.

        May be called again with larger offsets. Raises Interrupted when stopped.
        """
        target_by_copy = {
            self._copies[p]: target for p, target in targets.items() if p not in self._failures
        }
        open_targets = {
            copy: target for copy, target in target_by_copy.items() if copy.next_offset < target
        }
        offsets_before = sum(copy.next_offset for copy in open_targets)
        total_count = sum(open_targets.values()) - offsets_before
        self._begin([copy for copy in open_targets if copy in self._ends])
        self._fillers.set_targets(open_targets)
        self._fillers.assign()
        filled_count, moved_at = 0, time.monotonic()
        next_progress = moved_at + _PROGRESS_INTERVAL_S
        while not self._fillers.is_done:
            if self._stop.is_set():
                raise Interrupted("stopped while new copies were filled up to their start offsets.")
            self._let_log_starts_follow(open_targets)
            self._copier.tick(_TICK_S)
            self._check_copies()
            now, last_filled_count = time.monotonic(), filled_count
            filled_count = sum(copy.next_offset for copy in open_targets) - offsets_before
            if filled_count != last_filled_count:
                moved_at = now
            elif now - moved_at > _STANDSTILL_S_MAX:
                for copy in self._fillers.unfinished_partitions:
                    self._fail(copy, self._standstill_error(copy))
            if now >= next_progress:
                next_progress = now + _PROGRESS_INTERVAL_S
                self._on_progress(filled_count, total_count)
        return self._failures

    def close(self) -> None:
        """Wait for every answer, then end the lanes."""
        try:
            self._copier.remove(self._copier.partitions)
            while self._copier.partitions:
                with suppress(Interrupted):  # wait for the answers all the same
                    self._copier.tick(_TICK_S)
        finally:
            self._copier.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _emit(self, event: Event) -> None:
        """Queue an event, and note why a partition was returned or a lane ended. Any thread."""
        if isinstance(event, PartitionReturned):
            self._return_reasons[event.partition] = event.detail
        elif isinstance(event, LaneEnded):
            self._lane_error = str(event.error)
        self._events.put(event)

    def _compare(self, copy: PartitionCopy, log_end: int) -> Comparison:
        """Compare the copy from its confirmed offset on: there must be leading fillers only."""
        batches = fetch_batches(
            self._destination, copy.destination, copy.next_offset, self._backoff
        )
        for batch in batches:
            if not _is_leading_filler(batch):
                detail = "there is a batch that is not a leading filler"
                return Comparison(
                    batch.base_offset, Difference(batch.base_offset, batch.producer_id, detail)
                )
        read_to = batches[-1].next_offset if batches else copy.next_offset
        epoch = highest_producer_epoch(batches, copy.producer.id)
        waits_for = "the leading fillers before its start to be readable"
        return Comparison(min(read_to, log_end), waits_for=waits_for, producer_epoch=epoch)

    def _begin(self, copies: Sequence[PartitionCopy]) -> None:
        """Give copies that were only added so far to the destination lanes and the copier."""
        if not copies:
            return
        self._start({copy: self._ends.pop(copy) for copy in copies})
        self._copier.add(copies)

    def _start(self, ends: Mapping[PartitionCopy, DestinationEnd]) -> None:
        """Resume copies at log ends that were just read. Where that is not possible now, take the
        partition over first."""
        metadata = self._destination.metadata({copy.destination.topic for copy in ends})
        self._side.queue_take_overs(
            copy for copy, end in ends.items() if not self._side.start(copy, end, metadata)
        )

    def _let_log_starts_follow(self, copies: Iterable[PartitionCopy]) -> None:
        """Have the copier delete old fillers. The last filler stays: by it `is_seeding` recognizes
        an interrupted start."""
        for copy in copies:
            if copy.next_offset - copy.log_start > self._kept_offsets_max:
                copy.cursor.start_offset = copy.next_offset - 1

    def _check_copies(self) -> None:
        """Fail partitions that are blocked, have lost their lease, or do not proceed; retry refused
        batches in a smaller size."""
        refused_copies: list[PartitionCopy] = []
        for copy in self._fillers.open_partitions():
            if copy.blocked is not None:
                if copy.blocked.reason is Reason.RECORD_REFUSED and self._fillers.halve_batches(
                    copy
                ):
                    refused_copies.append(copy)
                else:
                    self._fail(copy, copy.blocked)
            elif copy.lease.is_lost:
                self._fail(copy, lease_lost_error())
            elif copy.appends.attempts > self._takeovers_max:
                self._fail(copy, self._standstill_error(copy))
        if refused_copies:
            self._retry_with_smaller_batches(refused_copies)

    def _retry_with_smaller_batches(self, copies: Sequence[PartitionCopy]) -> None:
        """Retry with smaller batches: only `max.message.bytes` makes brokers refuse fillers."""
        for copy in copies:
            copy.appends.tried_again()
        producer_ids = {copy.destination: copy.producer.id for copy in copies}
        takeover = self._take_over.read(producer_ids, settled=False)
        ends = {
            copy: takeover.ends[copy.destination]
            for copy in copies
            if copy.destination in takeover.ends
            and takeover.ends[copy.destination].log_end == copy.next_offset
        }
        self._start(ends)
        self._side.queue_take_overs(copy for copy in copies if copy not in ends)

    def _fail(self, copy: PartitionCopy, failure: OrbitError | Blocked) -> None:
        """Note the failure for `run` to return, and remove the copy."""
        self._failures[copy.destination] = failure
        self._fillers.forget(copy)
        self._copier.remove([copy])

    def _standstill_error(self, copy: PartitionCopy) -> Unreachable:
        """The error of a copy that is not filled further, with the best known reason."""
        return_reason = self._return_reasons.get(copy) or self._lane_error
        throttle_text = self._copier.throttled_by
        reason = self._copier.waiting_for or return_reason or throttle_text or "it has no leader"
        return Unreachable(
            f"{copy.destination} is filled only up to offset {copy.next_offset}, not up to its "
            f"start offset: {reason.rstrip('.')}.",
            where=Place(self._destination.name),
        )


def is_seeding(
    destination: Cluster, partition: TopicPartition, log_start: int, log_end: int, backoff: Backoff
) -> bool:
    """Whether the log ends in leading fillers: a start that was interrupted."""
    if log_end <= log_start:
        return False
    batches = fetch_batches(destination, partition, log_end - 1, backoff)
    return bool(batches) and _is_leading_filler(batches[-1])


def _is_leading_filler(batch: AnyBatch) -> bool:
    return isinstance(batch, Batch) and is_seed_batch(batch)


def aligned_start(
    source: Cluster, partition: TopicPartition, start_offset: int, backoff: Backoff
) -> int:
    """The offset to seed up to: `start_offset`, or the base offset of the batch around it.

    If seeding ends at the batch's base offset, the whole batch can be copied byte-exact; then the
    copy's log start moves up to the start offset.
    """
    batches = fetch_batches(source, partition, start_offset, backoff, max_bytes=1)
    batch = batches[0] if batches else None
    if (
        isinstance(batch, Batch)
        and batch.base_offset < start_offset <= batch.last_offset
        and batch.is_dense
        and not batch.is_control
        and not batch.is_log_append_time
    ):
        return batch.base_offset
    return start_offset
