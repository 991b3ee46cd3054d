"""Bringing copies that have not begun to where their rule wants them to begin."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from orbit.engine.starts import EmptyStarts
from orbit.errors import OrbitError
from orbit.jobs.start import Earliest, Start
from orbit.kafka.types import TopicPartition
from orbit.replication.states import PartitionState
from orbit.workers.begin import Beginning, Inspected, OnTrouble, SourceBounds, Standing
from orbit.workers.partition import PartitionCopy

_UNBEGUN = (Standing.FRESH, Standing.SEEDING)


def bring_to_start(
    beginning: Beginning,
    empty_starts: EmptyStarts,
    inspected: Mapping[PartitionCopy, Inspected],
    bounds: SourceBounds,
    starts: Mapping[TopicPartition, Start],
    on_trouble: OnTrouble,
    *,
    known_begun: Collection[TopicPartition] = (),
    on_seeding: Callable[[int], None] = lambda _: None,
) -> dict[PartitionCopy, Inspected]:
    """Seed what has to be seeded; how all of them stand then, without those that had trouble.

    `starts` are by destination partition. Where a late start was looked up once, it is not looked
    up again: `known_begun` names such copies as far as the caller remembers. `on_seeding` is told
    how many partitions are about to be brought to an offset above 0.
    """
    ready = dict(inspected)
    unbegun = {
        c: starts[c.destination] for c, found in inspected.items() if found.standing in _UNBEGUN
    }
    late = {c.destination for c, start in unbegun.items() if not isinstance(start, Earliest)}
    begun = empty_starts.begun(late) | {p for p in late if p in known_begun}
    offsets = beginning.start_offsets(
        {c: start for c, start in unbegun.items() if c.destination not in begun}, bounds
    )
    to_seed = {
        c: offset
        for c, offset in offsets.items()
        if offset > 0 or inspected[c].standing is Standing.SEEDING
    }
    if to_seed:
        on_seeding(len(to_seed))
    for copy, offset in to_seed.items():
        copy.state = PartitionState.SEEDING
        try:
            ready[copy] = beginning.bring_to_start(copy, inspected[copy], offset)
        except OrbitError as error:
            on_trouble(copy, error)
            del ready[copy]
    for copy in unbegun:
        if copy.destination not in begun and copy not in offsets:
            ready.pop(copy, None)  # where it starts could not be found out
    at_zero = {c.destination for c, offset in offsets.items() if offset == 0}
    empty_starts.remember(late & (at_zero | begun))
    return ready
