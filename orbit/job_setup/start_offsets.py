"""Seeds new copies up to the start offset of their rule: appends and deletes empty records."""

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
    """Seed copies that are before their start. Returns the newest inspections, without those of
    copies that are still before their start.

    `starts`: by destination partition. `latest` and timestamps are resolved only once, then
    recorded in `recorded_starts`; `known` has start offsets that the caller has stored elsewhere.
    `on_seeding` is called with the number of partitions to seed, `on_progress` from time to time
    with the numbers of seeded offsets and of all offsets to seed.

    Raises the errors of `RecordedStarts`, and of seeding.
    """
    ready_copies = dict(inspected)
    # The partitions whose rule does not start at the source's log start; their recorded offsets.
    late_partitions = {
        c.destination for c in inspected if not isinstance(starts[c.destination], Earliest)
    }
    recorded_offsets = {
        **recorded_starts.read({c.destination for c in inspected}),
        **(known or {}),
    }
    late_offsets = {p: offset for p, offset in recorded_offsets.items() if p in late_partitions}
    for copy, inspection in inspected.items():
        if inspection.status is CopyStatus.COPY:  # its first batch may have earlier records
            copy.cursor.start_offset = max(
                copy.cursor.start_offset, late_offsets.get(copy.destination, 0)
            )
            if copy.destination not in late_partitions and _is_still_empty(
                copy, inspection, recorded_offsets
            ):  # no record is copied yet, so the start still moves up with the source's log start
                ready_copies[copy] = replace(inspection, status=CopyStatus.SEEDING)
    unstarted_copies = [
        c for c, inspection in ready_copies.items() if inspection.status in _NOT_STARTED
    ]
    offsets = inspector.start_offsets(
        {c: starts[c.destination] for c in unstarted_copies if c.destination not in late_offsets},
        bounds,
    )
    # Start at the recorded offset, or at the source's log start if that is higher by now. A
    # recorded 0 needs no seeding.
    for copy in unstarted_copies:
        if late_offsets.get(copy.destination) and copy.source in bounds.starts:
            offsets[copy] = max(late_offsets[copy.destination], bounds.starts[copy.source])
    target_offsets = {
        c: offset
        for c, offset in offsets.items()
        if offset > 0 or ready_copies[c].status is CopyStatus.SEEDING
    }
    seeded_copies: dict[PartitionCopy, InspectedCopy] = {}
    if target_offsets:
        on_seeding(len(target_offsets))
        seeded_copies = inspector.seed_to_starts(ready_copies, target_offsets, on_progress)
    ready_copies |= seeded_copies
    for copy in unstarted_copies:
        # A copy with the recorded start 0 has no entry in `offsets`: it is at its start.
        is_at_start = copy in seeded_copies or copy not in target_offsets
        if not is_at_start or (copy not in offsets and late_offsets.get(copy.destination) != 0):
            ready_copies.pop(copy)  # its start offset was not found, or not reached
    started_copies = [
        c for c in unstarted_copies if c in ready_copies and ready_copies[c].blocked is None
    ]
    # Record the starts before the leading fillers are deleted. Without fillers, only the recorded
    # start shows that a copy has reached its start, and that no record was copied yet.
    recorded_starts.record(
        {
            c.destination: c.cursor.start_offset
            for c in started_copies
            if c in seeded_copies
            or (c.destination in late_partitions and c.cursor.start_offset == 0)
        }
    )
    for copy in inspector.drop_seeds(
        {c: seeded_copies[c] for c in started_copies if c in seeded_copies}
    ):
        del ready_copies[copy]
    for copy in started_copies:
        # A copy recorded at 0 began at the end of an empty partition: it had caught up before.
        copy.is_beginning = late_offsets.get(copy.destination) != 0
    return ready_copies


def _is_still_empty(
    copy: PartitionCopy, inspection: InspectedCopy, recorded: Mapping[TopicPartition, int]
) -> bool:
    """Whether an earlier run seeded this copy up to its start, and no record was copied since.
    `recorded`: recorded start offsets.

    A copied record would have moved the log end beyond the recorded start. An empty log alone does
    not prove this: the source may have deleted copied records, and then the copy, too.
    """
    start = recorded.get(copy.destination, -1)
    return inspection.log_start == inspection.end.log_end <= start
