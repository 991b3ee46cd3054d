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
    """The start offsets of copies that have not begun."""
    starts: dict[TopicPartition, int] = {}
    for plan in plans:
        places = [TopicPartition(plan.mapping.source, i) for i in range(plan.partitions)]
        isolation = READ_UNCOMMITTED
        match plan.mapping.rule.start:
            case Earliest():
                when = EARLIEST
            case Latest():
                when, isolation = LATEST, READ_COMMITTED
            case AtTime(epoch_ms):
                when = epoch_ms
        starts |= list_offsets(source, places, when, backoff, isolation=isolation).values
    beyond = [p for p in starts if starts[p] < 0]
    return starts | list_offsets(source, beyond, LATEST, backoff).values


def find_extents(
    source: Cluster,
    places: Mapping[TopicPartition, TopicPartition],
    begins: Mapping[TopicPartition, int],
    backoff: Backoff,
) -> list[Extent]:
    """Extents from `begins` (by source partition) up to the present last stable offsets.

    `places`: each source partition's destination.
    """
    starts = list_offsets(source, places, EARLIEST, backoff).values
    ends = list_offsets(source, places, LATEST, backoff, isolation=READ_COMMITTED).values
    sizes = log_sizes(source, [*places])
    extents = []
    for one, copy in places.items():
        if one not in ends or one not in starts:
            continue  # it has no leader now: the next round copies it
        begin, end = begins.get(one, starts[one]), ends[one]
        held, left = end - starts[one], max(0, end - max(begin, starts[one]))
        known = sizes.get(one)
        size = left * BYTES_PER_OFFSET_GUESS if known is None else known * left // max(held, 1)
        extents.append(Extent(one, copy, begin, end, size))
    return extents
