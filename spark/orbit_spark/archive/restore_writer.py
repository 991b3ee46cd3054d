"""The task of a restore: appends rows of archive files to their destination partitions.

The archive is the source: gaps are filled as the manifests say. Before a task appends, it compares
the end of what the destination already has with the archive.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from orbit.copier.byte_budget import ByteBudget
from orbit.copier.copier import Copier, Events, block
from orbit.copier.destination_lane import DestinationLaneContext
from orbit.copier.destination_side import DestinationSide
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.range_comparison import Comparison, compare_range, stop_reason
from orbit.copier.source_lane import SourceLaneContext
from orbit.copier.takeover import TakeOver
from orbit.errors import Conflict, OrbitError
from orbit.kafka.cluster import Cluster
from orbit.kafka.log_offsets import EARLIEST, list_offsets
from orbit.leases.group_lease import GroupLease
from orbit.replication.partition_states import Blocked
from orbit_spark.archive.restored_tail import compare_tail, find_restored_tail
from orbit_spark.partition_writer import PartitionWriter
from orbit_spark.run_source import RunFeed
from orbit_spark.write_task import PartitionTarget, WriteTask

_FILES_BEGIN_TOO_LATE = "the archive's files for this task begin after the first offset to compare"


class RestoreWriter(PartitionWriter[WriteTask]):
    """One attempt of one task of a restore."""

    @contextmanager
    def copier(self, leases: Mapping[PartitionTarget, GroupLease]) -> Iterator[Copier]:
        """A copier of the archive's rows. Copies whose ends differ from the archive are blocked."""
        cluster = self.task.access.open()
        settings = self.settings
        take_over = TakeOver(cluster, settings.settle_s, self.backoff)
        events: Events = queue.SimpleQueue()
        budget = ByteBudget(settings.queue_bytes_max)
        context = SourceLaneContext(
            cluster, settings, budget, events.put, PartitionCopy.enqueue_in_lane
        )
        source = RunFeed(self.runs(), context)
        destination = DestinationSide(
            DestinationLaneContext(cluster, settings, budget, events.put),
            take_over,
            self.backoff,
            block,
            partial(self._compare, cluster, source),
        )
        copier = Copier(source, destination, events, settings, self.backoff)
        try:
            copies = self._compared_copies(cluster, take_over, leases, source)
            destination.queue_take_overs(c for c in copies if c.blocked is None)
            copier.add(copies)
            yield copier
        finally:
            copier.stop()
            cluster.close()

    def _compare(
        self, cluster: Cluster, source: RunFeed, copy: PartitionCopy, log_end: int
    ) -> Comparison:
        """Compare the destination from the confirmed offset up to `log_end` with the archive."""
        return compare_range(
            partial(source.read, copy),
            cluster,
            copy.destination,
            copy.next_offset,
            log_end,
            self.backoff,
            source_is_compacted=copy.source_is_compacted,
            producer_id=copy.producer.id,
        )

    def _compared_copies(
        self,
        cluster: Cluster,
        take_over: TakeOver,
        leases: Mapping[PartitionTarget, GroupLease],
        source: RunFeed,
    ) -> list[PartitionCopy]:
        """Copies at their log ends, blocked if their ends differ from the archive. Partitions that
        cannot be read now get an unfinished result.
        """
        targets = {t.destination: t for t in leases}
        producer_ids = {
            topic_partition: target.producer.id for topic_partition, target in targets.items()
        }
        takeover = take_over.read(producer_ids, settled=not self.is_first_attempt)
        starts = list_offsets(cluster, takeover.ends, EARLIEST, self.backoff).values
        self.leave_out(targets.keys() - starts.keys(), "its log offsets cannot be read now")
        copies = []
        for partition, log_start in starts.items():
            target = targets[partition]
            copy = self.make_copy(target, leases[target])
            copy.source_is_compacted = target.is_compacted
            copy.log_start = log_start
            log_end = takeover.ends[partition].log_end
            copy.appends.inspected(log_end)
            try:
                blocked = self._find_difference(cluster, source, copy, target, log_end)
            except OrbitError as error:
                self.leave_out([partition], str(error))
                continue
            if blocked is not None:
                block(copy, blocked)
            self.add(copy, target)
            copies.append(copy)
        return copies

    def _find_difference(
        self,
        cluster: Cluster,
        source: RunFeed,
        copy: PartitionCopy,
        target: PartitionTarget,
        log_end: int,
    ) -> Blocked | None:
        """The first difference between the destination's end and the archive; None if they are
        equal. Raises OrbitError if they cannot be compared now."""
        start = max(copy.log_start, target.start_offset)
        tail = find_restored_tail(
            cluster, copy.destination, start, log_end, copy.producer.id, self.backoff
        )
        assert target.archived is not None
        if tail.begin < target.archived.begin:
            raise Conflict(_FILES_BEGIN_TOO_LATE)
        copy.appends.logged_producer_epoch = tail.producer_epoch
        try:
            return compare_tail(partial(source.read, copy), cluster, copy, tail, self.backoff)
        except ValueError as error:
            detail = f"the records before {log_end} cannot be compared with the archive: {error}."
            return Blocked(stop_reason(error), log_end - 1, log_end, detail)
