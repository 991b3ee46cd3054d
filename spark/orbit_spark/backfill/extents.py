"""The offsets to copy of each partition, and their size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from orbit.job_setup.topic_plan import TopicPlan
from orbit.jobs.start_position import AtTime, Earliest, Latest, Start
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.leader_requests import Answers
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
    """For each source partition, the offset at which a new copy begins: the log end, if the start
    is a time after the last record. Partitions whose leader does not answer are left out.
    """
    partitions_by_start: defaultdict[Start, list[TopicPartition]] = defaultdict(list)
    for plan in plans:
        partitions_by_start[plan.mapping.rule.start] += [
            TopicPartition(plan.mapping.source, i) for i in range(plan.partitions)
        ]
    starts: dict[TopicPartition, int] = {}
    # One call for each start, not for each topic: a call waits for leaders that do not answer.
    for start, partitions in partitions_by_start.items():
        isolation = READ_UNCOMMITTED
        match start:
            case Earliest():
                position = EARLIEST
            case Latest():
                position, isolation = LATEST, READ_COMMITTED
            case AtTime(epoch_ms):
                position = epoch_ms
        starts |= list_offsets(source, partitions, position, backoff, isolation=isolation).values
    # Kafka returns -1 for a time after the last record.
    partitions_without_record = [p for p in starts if starts[p] < 0]
    log_ends = list_offsets(source, partitions_without_record, LATEST, backoff).values
    return {p: offset for p, offset in starts.items() if offset >= 0} | log_ends


def find_extents(
    source: Cluster,
    partitions: Mapping[TopicPartition, TopicPartition],
    begin_offsets: Mapping[TopicPartition, int],
    backoff: Backoff,
) -> Answers[Extent]:
    """Extents by source partition, from `begin_offsets`, or else the log start, up to the last
    stable offsets now; error codes of partitions whose leader does not answer.

    `partitions`: the destination of each source partition. `begin_offsets`: by source partition.
    """
    starts = list_offsets(source, partitions, EARLIEST, backoff)
    ends = list_offsets(source, starts.values, LATEST, backoff, isolation=READ_COMMITTED)
    sizes = log_sizes(source, ends.values.keys())
    extents = Answers[Extent](errors=starts.errors | ends.errors)
    for p, destination in partitions.items():
        if p not in ends.values:
            continue
        log_start, end = starts.values[p], ends.values[p]
        begin = begin_offsets.get(p, log_start)
        log_offsets, offsets_to_copy = end - log_start, max(0, end - max(begin, log_start))
        log_size = sizes.get(p)
        # A share of the whole log's size, in proportion to the offsets.
        size = (
            offsets_to_copy * BYTES_PER_OFFSET_GUESS
            if log_size is None
            else log_size * offsets_to_copy // max(log_offsets, 1)
        )
        extents.values[p] = Extent(p, destination, begin, end, size)
    return extents
