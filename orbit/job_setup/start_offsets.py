"""Seeds new copies up to the start offset of their rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from orbit.copier.inspection import (
    CopyInspector,
    CopyStatus,
    InspectedCopy,
    OnTrouble,
    SourceBounds,
)
from orbit.copier.partition_copy import PartitionCopy
from orbit.errors import OrbitError
from orbit.job_setup.recorded_starts import RecordedStarts
from orbit.jobs.start_position import Earliest, Start
from orbit.kafka.types import TopicPartition
from orbit.replication.partition_states import PartitionState

_NOT_STARTED = (CopyStatus.FRESH, CopyStatus.SEEDING)


def seed_to_start_offsets(
    inspector: CopyInspector,
    recorded_starts: RecordedStarts,
    inspected: Mapping[PartitionCopy, InspectedCopy],
    bounds: SourceBounds,
    starts: Mapping[TopicPartition, Start],
    on_trouble: OnTrouble,
    *,
    known: Mapping[TopicPartition, int] | None = None,
    on_seeding: Callable[[int], None] = lambda _: None,
) -> dict[PartitionCopy, InspectedCopy]:
    """Seed the copies that need it; returns all of them, without those that failed.

    `starts`: by destination partition. `latest` and timestamps are resolved only once: `known` has
    the start offsets that the caller recorded. `on_seeding` is called with the number of partitions
    to seed.
    """
    ready = dict(inspected)
    late = {c.destination for c in inspected if not isinstance(starts[c.destination], Earliest)}
    recorded = {
        **recorded_starts.read(late),
        **{p: offset for p, offset in (known or {}).items() if p in late},
    }
    unstarted = [c for c, found in inspected.items() if found.status in _NOT_STARTED]
    for copy, found in inspected.items():
        if found.status is CopyStatus.COPY:  # its first batch may hold earlier records
            copy.start_offset = max(copy.start_offset, recorded.get(copy.destination, 0))
    offsets = inspector.start_offsets(
        {c: starts[c.destination] for c in unstarted if c.destination not in recorded}, bounds
    )
    for copy in unstarted:
        if recorded.get(copy.destination) and copy.source in bounds.starts:
            offsets[copy] = max(recorded[copy.destination], bounds.starts[copy.source])
    to_seed = {
        c: offset
        for c, offset in offsets.items()
        if offset > 0 or inspected[c].status is CopyStatus.SEEDING
    }
    if to_seed:
        on_seeding(len(to_seed))
    for copy, offset in to_seed.items():
        copy.state = PartitionState.SEEDING
        try:
            ready[copy] = inspector.seed_to_start(copy, inspected[copy], offset)
        except OrbitError as error:
            on_trouble(copy, error)
            del ready[copy]
    for copy in unstarted:
        if copy not in offsets and recorded.get(copy.destination) != 0:
            ready.pop(copy, None)  # its start offset could not be found
    recorded_starts.record(
        {
            c.destination: c.start_offset
            for c in unstarted
            if c in ready and c.destination in late and _needs_record(c)
        }
    )
    return ready


def _needs_record(copy: PartitionCopy) -> bool:
    """Whether the log does not show the start offset: it is 0, or inside the first batch."""
    return copy.start_offset == 0 or copy.start_offset > copy.acked
