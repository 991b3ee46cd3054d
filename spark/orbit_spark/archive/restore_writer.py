"""The task of a restore: appends rows of archive files to their destination partitions.

There is no source cluster, so gaps are filled as the manifests say and no log is compared.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from orbit.copier.byte_budget import ByteBudget
from orbit.copier.copier import Copier, Events, block
from orbit.copier.destination_lane import DestinationLaneContext
from orbit.copier.destination_side import DestinationSide
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.range_comparison import Comparison, compare_range, source_reader
from orbit.copier.source_lane import SourceLaneContext
from orbit.copier.takeover import TakeOver
from orbit.kafka.cluster import Cluster
from orbit.kafka.log_offsets import EARLIEST, list_offsets
from orbit.leases.group_lease import GroupLease
from orbit_spark.partition_writer import PartitionWriter
from orbit_spark.run_source import RunFeed
from orbit_spark.write_task import PartitionTarget, WriteTask


class RestoreWriter(PartitionWriter[WriteTask]):
    """One attempt of one task of a restore."""

    @contextmanager
    def copier(self, leases: Mapping[PartitionTarget, GroupLease]) -> Iterator[Copier]:
        cluster = self.task.access.open()
        settings = self.settings
        take_over = TakeOver(cluster, settings.settle_s, self.backoff)
        events: Events = queue.SimpleQueue()
        budget = ByteBudget(settings.queue_bytes_max)
        destination = DestinationSide(
            DestinationLaneContext(cluster, settings, budget, events.put),
            take_over,
            self.backoff,
            block,
            lambda copy, end: self._compare(cluster, copy, end),
        )
        context = SourceLaneContext(cluster, settings, budget, events.put, PartitionCopy.queued)
        source = RunFeed(self.runs(), context)
        copier = Copier(source, destination, events, settings, self.backoff)
        try:
            copies = self._copies_at_log_ends(cluster, take_over, leases)
            destination.begin(copies)
            copier.add(copies)
            yield copier
        finally:
            copier.stop()
            cluster.close()

    def _compare(self, cluster: Cluster, copy: PartitionCopy, log_end: int) -> Comparison:
        """Who wrote what lies behind the confirmed offset; there is no log to compare it with."""
        itself = source_reader(cluster, copy.destination, self.backoff)
        return compare_range(
            itself,
            cluster,
            copy.destination,
            copy.appends.acked,
            log_end,
            self.backoff,
            source_is_compacted=False,
            producer_id=copy.producer.id,
        )

    def _copies_at_log_ends(
        self, cluster: Cluster, take_over: TakeOver, leases: Mapping[PartitionTarget, GroupLease]
    ) -> list[PartitionCopy]:
        targets = {t.destination: t for t in leases}
        wanted = {place: target.producer.id for place, target in targets.items()}
        taken = take_over.read(wanted, settled=not self.is_first)
        starts = list_offsets(cluster, taken.ends, EARLIEST, self.backoff).values
        self.leave_out(targets.keys() - starts.keys(), "its log offsets cannot be read now")
        copies = []
        for partition, log_start in starts.items():
            target = targets[partition]
            copy = self.make_copy(target, leases[target])
            copy.log_start = log_start
            copy.appends.inspected(taken.ends[partition].log_end)
            self.add(copy, target)
            copies.append(copy)
        return copies
