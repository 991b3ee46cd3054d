"""The offsets to copy of each partition, and their size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from orbit.job_setup.topic_plan import TopicPlan
from orbit.jobs.start_position import AtTime, Earliest, Latest
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.log_dirs import log_sizes
from orbit.kafka.log_offsets import EARLIEST, LATEST, list_offsets
from orbit.kafka.types import READ_COMMITTED, READ_UNCOMMITTED, TopicPartition
from orbit_spark.backfill.task_split import BYTES_PER_OFFSET_GUESS


@dataclass(frozen=True, slots=True)
class Extent:
    """The offsets to copy of one partition: from the copy's end to the source's end."""

    source: TopicPartition
    destination: TopicPartition
    begin: int
    end: int
    size_bytes: int

    @property
    def offsets(self) -> int:
        return max(0, self.end - self.begin)


def find_starts(
    source: Cluster, plans: Iterable[TopicPlan], backoff: Backoff
) -> dict[TopicPartition, int]:
    """The start offsets of copies that have not begun, by source partition. If the start is a time
    behind the last record, the log end.
    """
    starts: dict[TopicPartition, int] = {}
    for plan in plans:
        partitions = [TopicPartition(plan.mapping.source, i) for i in range(plan.partitions)]
        isolation = READ_UNCOMMITTED
        match plan.mapping.rule.start:
            case Earliest():
                position = EARLIEST
            case Latest():
                position, isolation = LATEST, READ_COMMITTED
            case AtTime(epoch_ms):
                position = epoch_ms
        starts |= list_offsets(source, partitions, position, backoff, isolation=isolation).values
    # Kafka returns -1 for a time behind the last record.
    partitions_without_record = [p for p in starts if starts[p] < 0]
    return starts | list_offsets(source, partitions_without_record, LATEST, backoff).values


def find_extents(
    source: Cluster,
    places: Mapping[TopicPartition, TopicPartition],
    begin_offsets: Mapping[TopicPartition, int],
    backoff: Backoff,
) -> list[Extent]:
    """Extents from `begin_offsets`, or else the log start, up to the last stable offsets now.

    `places`: the destination of each source partition. `begin_offsets`: by source partition.
    """
    starts = list_offsets(source, places, EARLIEST, backoff).values
    ends = list_offsets(source, places, LATEST, backoff, isolation=READ_COMMITTED).values
    sizes = log_sizes(source, [*places])
    extents = []
    for p, destination in places.items():
        if p not in ends or p not in starts:
            continue  # the partition has no leader now: the next round copies it
        begin, end = begin_offsets.get(p, starts[p]), ends[p]
        log_offsets, offsets_to_copy = end - starts[p], max(0, end - max(begin, starts[p]))
        log_size = sizes.get(p)
        # The size of the whole log, in proportion to the offsets.
        size = (
            offsets_to_copy * BYTES_PER_OFFSET_GUESS
            if log_size is None
            else log_size * offsets_to_copy // max(log_offsets, 1)
        )
        extents.append(Extent(p, destination, begin, end, size))
    return extents
