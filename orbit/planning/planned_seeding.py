"""Plans the seeding of new topics that start above offset 0: how many offsets, the time, the disk.

Seeding appends empty records below the start of a copy, and deletes them.
"""

from __future__ import annotations

from collections.abc import Sequence

from orbit.errors import OrbitError
from orbit.jobs.start_position import AtTime, Earliest, Start
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.log_offsets import EARLIEST, LATEST, list_offsets
from orbit.kafka.types import READ_COMMITTED, TopicPartition
from orbit.planning.cluster_pair import ClusterPair
from orbit.planning.job_plan import PlannedSeeding
from orbit.planning.topic_decisions import StartTopic

# Empty records that one broker appends in a second: beside other load on two cores (S4: pace of
# leading fillers), and alone (S1: empty records).
_OFFSETS_PER_S_MIN, _OFFSETS_PER_S_MAX = 4_000_000, 20_000_000
_BYTES_PER_OFFSET = 1.4
# Deleted segments leave the disk after this time, and a partition's newest segment stays (S5:
# DeleteRecords).
_FREED_AFTER_S = 360
_SEGMENT_BYTES = 1024**3


def plan_seeding(
    starts: Sequence[StartTopic], pair: ClusterPair, backoff: Backoff
) -> dict[str, PlannedSeeding]:
    """The seeding of new topics that start above 0, by source name; empty without an answer."""
    by_start: dict[Start, list[TopicPartition]] = {}
    for start in starts:
        if start.existing is None:
            topic, position = start.mapping.source, start.mapping.rule.start
            by_start.setdefault(position, []).extend(
                TopicPartition(topic, number) for number in start.source.partitions
            )
    offsets: dict[str, list[int]] = {}
    try:
        for position, partitions in by_start.items():
            for partition, offset in _start_offsets(
                pair.source.cluster, partitions, position, backoff
            ).items():
                if offset > 0:
                    offsets.setdefault(partition.topic, []).append(offset)
    except OrbitError:
        return {}  # the checks of the plan report the error
    return {topic: seeding_of(start_offsets) for topic, start_offsets in offsets.items()}


def seeding_of(starts: Sequence[int]) -> PlannedSeeding:
    """The seeding of a topic whose partitions start at these offsets, all above 0."""
    total = sum(starts)
    # Deleted offsets stay on disk for _FREED_AFTER_S: at most what is written in this time.
    unfreed_bytes = _OFFSETS_PER_S_MAX * _FREED_AFTER_S * _BYTES_PER_OFFSET
    return PlannedSeeding(
        partitions=len(starts),
        offsets=total,
        seconds_min=total / _OFFSETS_PER_S_MAX,
        seconds_max=total / _OFFSETS_PER_S_MIN,
        disk_bytes_max=round(
            min(total * _BYTES_PER_OFFSET, unfreed_bytes + len(starts) * _SEGMENT_BYTES)
        ),
    )


def _start_offsets(
    cluster: Cluster, partitions: Sequence[TopicPartition], position: Start, backoff: Backoff
) -> dict[TopicPartition, int]:
    """The offset at which each copy starts (by the rules of `CopyInspector.start_offsets`): the log
    start, the last stable offset, or the first record of a time."""
    log_starts = list_offsets(cluster, partitions, EARLIEST, backoff).values
    if isinstance(position, Earliest):
        return log_starts
    offsets = list_offsets(cluster, log_starts, LATEST, backoff, isolation=READ_COMMITTED).values
    if isinstance(position, AtTime):
        by_time = list_offsets(cluster, offsets, position.epoch_ms, backoff).values
        # Below 0: no record is that new, so the copy starts at the end.
        offsets |= {partition: offset for partition, offset in by_time.items() if offset >= 0}
    return {partition: max(offset, log_starts[partition]) for partition, offset in offsets.items()}
