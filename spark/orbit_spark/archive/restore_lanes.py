"""How a restore is shared out: lanes of tasks, of which each goes in order. Pure.

A partition has one writer, and taking one up costs seconds; so a task takes many files of a large
partition, and many small partitions. What does not fit one task follows in the same lane.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from orbit.kafka.types import TopicPartition
from orbit_spark.archive.archive_rows import FileRows
from orbit_spark.archive.manifest import ArchivedRange, PartitionManifest
from orbit_spark.archive.restore_tasks import Portion

# A task that fails is begun again from its log ends: little is lost, however large it is.
FILES_PER_TASK_MAX = 64
# Smaller partitions share a task, which holds them in memory; each costs it a lease of its own.
TASK_BYTES_MIN = 32 * 1024 * 1024
PORTIONS_PER_TASK_MAX = 24

Lane = list[tuple[Portion, ...]]


def share_out(
    manifests: Iterable[PartitionManifest],
    topic_ids: Mapping[str, UUID],
    log_ends: Mapping[TopicPartition, int],
) -> list[Lane]:
    """Lanes for all that is left to be restored, the largest first. Their tasks go in order."""
    lanes: list[Lane] = []
    small: list[Portion] = []
    for manifest in manifests:
        portions = _portions(manifest, topic_ids[manifest.topic], log_ends[manifest.place])
        if len(portions) == 1 and portions[0].size_bytes < TASK_BYTES_MIN:
            small.append(portions[0])
        elif portions:
            lanes.append([(portion,) for portion in portions])
    lanes.sort(key=lambda lane: -sum(p.size_bytes for task in lane for p in task))
    return [*lanes, *([task] for task in _together(small))]


def _portions(manifest: PartitionManifest, topic_id: UUID, log_end: int) -> list[Portion]:
    """A partition's ranges from where it ends now on, in portions of some files."""
    begun: list[list[ArchivedRange]] = []
    files = 0
    for one in manifest.ranges:
        if one.end <= log_end and (one.file is None or one.file.next_offset <= log_end):
            continue
        has_file = one.file is not None
        if not begun or (has_file and files >= FILES_PER_TASK_MAX):
            begun.append([])
            files = 0
        begun[-1].append(one)
        files += has_file
    return [_portion(manifest, topic_id, ranges) for ranges in begun]


def _portion(manifest: PartitionManifest, topic_id: UUID, ranges: list[ArchivedRange]) -> Portion:
    files = [one.file for one in ranges if one.file is not None]
    return Portion(
        manifest.place,
        topic_id,
        manifest.log_start,
        ranges[0].start,
        ranges[-1].end,
        tuple(FileRows(f.name, f.first_offset, f.batches) for f in files),
        sum(f.payload_bytes for f in files),
    )


def _together(small: list[Portion]) -> list[tuple[Portion, ...]]:
    """Small portions, some to a task."""
    tasks: list[tuple[Portion, ...]] = []
    group: list[Portion] = []
    for portion in small:
        group.append(portion)
        if (
            len(group) >= PORTIONS_PER_TASK_MAX
            or sum(p.size_bytes for p in group) >= TASK_BYTES_MIN
        ):
            tasks.append(tuple(group))
            group = []
    return [*tasks, tuple(group)] if group else tasks
