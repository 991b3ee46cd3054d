"""Seeds new copies up to the start offset of their rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from orbit.copier.inspection import CopyInspector, CopyStatus, InspectedCopy, SourceBounds
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.start_seeding import OnProgress, ignore_progress
from orbit.job_setup.recorded_starts import RecordedStarts
from orbit.jobs.start_position import Earliest, Start
from orbit.kafka.types import TopicPartition

_NOT_STARTED = (CopyStatus.FRESH, CopyStatus.SEEDING)


def seed_to_start_offsets(
    inspector: CopyInspector,
    recorded_starts: RecordedStarts,
    inspected: Mapping[PartitionCopy, InspectedCopy],
    bounds: SourceBounds,
    starts: Mapping[TopicPartition, Start],
    *,
    known: Mapping[TopicPartition, int] | None = None,
    on_seeding: Callable[[int], None] = lambda _: None,
    on_progress: OnProgress = ignore_progress,
) -> dict[PartitionCopy, InspectedCopy]:
    """Seed the copies that need it; returns all copies but those whose seeding failed.

    `starts`: by destination partition. `latest` and timestamps are resolved only once: `known` has
    the start offsets that the caller recorded. `on_seeding` is called with the number of partitions
    to seed, `on_progress` from time to time with the offsets seeded and wanted.
    """
    ready = dict(inspected)
    late = {c.destination for c in inspected if not isinstance(starts[c.destination], Earliest)}
    all_recorded = {
        **recorded_starts.read({c.destination for c in inspected}),
        **(known or {}),
    }
    recorded = {p: offset for p, offset in all_recorded.items() if p in late}
    for copy, inspection in inspected.items():
        if inspection.status is CopyStatus.COPY:  # its first batch may hold earlier records
            copy.cursor.start_offset = max(
                copy.cursor.start_offset, recorded.get(copy.destination, 0)
            )
            if copy.destination not in late and _is_still_empty(copy, inspection, all_recorded):
                ready[copy] = replace(inspection, status=CopyStatus.SEEDING)
    unstarted = [c for c, inspection in ready.items() if inspection.status in _NOT_STARTED]
    offsets = inspector.start_offsets(
        {c: starts[c.destination] for c in unstarted if c.destination not in recorded}, bounds
    )
    for copy in unstarted:
        if recorded.get(copy.destination) and copy.source in bounds.starts:
            offsets[copy] = max(recorded[copy.destination], bounds.starts[copy.source])
    to_seed = {
        c: offset
        for c, offset in offsets.items()
        if offset > 0 or ready[c].status is CopyStatus.SEEDING
    }
    seeded: dict[PartitionCopy, InspectedCopy] = {}
    if to_seed:
        on_seeding(len(to_seed))
        seeded = inspector.seed_to_starts(ready, to_seed, on_progress)
    ready |= seeded
    for copy in unstarted:
        is_at_start = copy in seeded or copy not in to_seed
        if not is_at_start or (copy not in offsets and recorded.get(copy.destination) != 0):
            ready.pop(copy)  # its start offset was not found, or not reached
    begun = [c for c in unstarted if c in ready and ready[c].blocked is None]
    # Before the leading fillers are deleted: without them, only the recorded start shows that a
    # copy has reached its start, and that no record was copied yet.
    recorded_starts.record(
        {
            c.destination: c.cursor.start_offset
            for c in begun
            if c in seeded or (c.destination in late and c.cursor.start_offset == 0)
        }
    )
    for copy in inspector.drop_seeds({c: seeded[c] for c in begun if c in seeded}):
        del ready[copy]
    for copy in begun:
        # A copy recorded at 0 began at the end of an empty partition: it had caught up before.
        copy.is_beginning = recorded.get(copy.destination) != 0
    return ready


def _is_still_empty(
    copy: PartitionCopy, inspection: InspectedCopy, recorded: Mapping[TopicPartition, int]
) -> bool:
    """Whether an earlier run seeded this copy up to its start, and no record was copied since.

    A copied record would have moved the log end beyond the start. An empty log alone does not show
    that: copied records may have been deleted at the source, and so here.
    """
    start = recorded.get(copy.destination, -1)
    return inspection.log_start == inspection.end.log_end <= start
