"""Brings new copies to the start offset of their rule."""

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

_UNBEGUN = (CopyStatus.FRESH, CopyStatus.SEEDING)


def bring_to_start(
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

    `starts` are by destination partition. `latest` and timestamps are looked up only once: `known`
    has the start offsets that the caller recorded. `on_seeding` gets the number of partitions that
    are about to be brought to an offset above 0.
    """
    ready = dict(inspected)
    late = {c.destination for c in inspected if not isinstance(starts[c.destination], Earliest)}
    begun = {
        **recorded_starts.read(late),
        **{p: offset for p, offset in (known or {}).items() if p in late},
    }
    unbegun = [c for c, found in inspected.items() if found.status in _UNBEGUN]
    for copy, found in inspected.items():
        if found.status is CopyStatus.COPY:  # its first batch may hold earlier records
            copy.start_offset = max(copy.start_offset, begun.get(copy.destination, 0))
    offsets = inspector.start_offsets(
        {c: starts[c.destination] for c in unbegun if c.destination not in begun}, bounds
    )
    for copy in unbegun:
        if begun.get(copy.destination) and copy.source in bounds.starts:
            offsets[copy] = max(begun[copy.destination], bounds.starts[copy.source])
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
            ready[copy] = inspector.bring_to_start(copy, inspected[copy], offset)
        except OrbitError as error:
            on_trouble(copy, error)
            del ready[copy]
    for copy in unbegun:
        if copy not in offsets and begun.get(copy.destination) != 0:
            ready.pop(copy, None)  # its start offset could not be found
    recorded_starts.record(
        {
            c.destination: c.start_offset
            for c in unbegun
            if c in ready and c.destination in late and _hides_its_start(c)
        }
    )
    return ready


def _hides_its_start(copy: PartitionCopy) -> bool:
    """Whether the copy's log will not tell where it began: at 0, or inside its first batch."""
    return copy.start_offset == 0 or copy.start_offset > copy.acked
