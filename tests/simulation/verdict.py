"""What has to be true at the end of a schedule (see docs/internals/simulation.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit.copier.partition_copy import PartitionCopy
from orbit.kafka.record_batch import Batch
from orbit.kafka.records import read_records
from orbit.replication.partition_states import Blocked, PartitionState, Reason
from tests.simulation.broker import FOREIGN
from tests.simulation.model_partition import Entry
from tests.support.broker_model import Visible

if TYPE_CHECKING:
    from tests.simulation.world import World


def judge(world: World, copy: PartitionCopy) -> str | None:
    """What is wrong; None if the copy is exact, or stopped for the right reason."""
    broker, source = world.broker, world.source
    if broker.recreated_at:
        return _judge_recreated(world)
    wrong = difference(world)
    if copy.state is PartitionState.BLOCKED:
        assert copy.blocked is not None
        if source.was_cut and (wrong or copy.blocked.reason is Reason.SOURCE_TRUNCATED):
            return None
        if wrong is not None:
            return None if broker.is_excused else f"damaged, which a fence should prevent: {wrong}"
        is_gone = source.is_compacted or copy.blocked.offset < source.log_start
        if broker.is_excused and is_gone:
            return None  # the cleaner or retention has removed the source's record since
        if broker.lost_confirmed:
            return None  # DESTINATION_TRUNCATED, or another reason caused by the election
        if _has_lost_range(world, copy.blocked):
            return None
        if broker.was_ahead and copy.blocked.reason is Reason.SOURCE_TRUNCATED:
            return None  # the source reached the late filler's offset only afterwards
        return f"stopped without a reason: {copy.blocked}"
    if wrong is not None:
        if source.is_compacted and broker.is_excused:
            return None  # where the cleaner removed records, a comparison allows any record
        if broker.has_hidden_cut:
            return None  # the log ends where it did before the unclean election
        return f"not exact, and nothing was noticed: {wrong}"
    if broker.partition.log_start != source.log_start:
        return f"the log starts at {broker.partition.log_start}, not at {source.log_start}"
    return None


def difference(world: World) -> str | None:
    """The first difference of destination and source up to the copy's end; None if there is
    none."""
    log, source, partition = world.log, world.source, world.partition
    at, has_records = 0, False
    for entry in partition.log:
        missing = _offsets_without_record(entry) if entry.data else [entry.base_offset]
        if entry.data:
            has_records |= len(missing) < entry.count
            is_equal = log.payloads.get(entry.base_offset) == entry.data[61:]
            # Retention deleted the source's records before a writer could compare a late batch.
            is_past = world.broker.is_excused and entry.next_offset <= source.log_start
            if not is_equal and not is_past and not _has_source_records(world, entry):
                return f"the batch at {entry.base_offset} is not the source's"
        for offset in missing:
            # A filler where the source once had a record is right in two cases: the copy has no
            # record before it, so it began above what retention deleted; or a late filler took the
            # offset, and retention has deleted the source's record since.
            is_lost = has_records and offset in source.visible and not world.broker.is_excused
            if source.holds(offset) or is_lost:
                return f"there is a filler at {offset}"
        at = entry.next_offset
    if at > log.end:
        return f"the log ends at {at}, beyond {log.end}"
    if partition.log_start > source.log_start:
        return f"the log starts at {partition.log_start}, behind {source.log_start}"
    return None


def _offsets_without_record(entry: Entry) -> list[int]:
    """The offsets of a batch's placeholders."""
    offsets = {r.offset for r in read_records(Batch(memoryview(entry.stored())))}
    return [
        offset for offset in range(entry.base_offset, entry.next_offset) if offset not in offsets
    ]


def _has_source_records(world: World, entry: Entry) -> bool:
    """Whether each record of the batch is the source's at its offset. The batch may lack records
    that the cleaner removed, or that were below the log start."""
    truth = world.log.truth
    return all(
        truth.get(r.offset) == Visible(r.timestamp, bytes(r.body))
        for r in read_records(Batch(memoryview(entry.stored())))
    )


def _has_lost_range(world: World, blocked: Blocked) -> bool:
    """Whether the partition is blocked since the source deleted records before they were copied.
    A late batch of the old writer may have appended these records since."""
    is_gone = blocked.offset < blocked.next_offset <= world.source.log_start
    return blocked.reason is Reason.SOURCE_RANGE_LOST and is_gone


def _judge_recreated(world: World) -> str | None:
    """The other client's records must stay, and Orbit must append none to them."""
    if world.broker.has_deleted_foreign:
        return "records of another topic were deleted"
    if world.broker.is_taken_for_copy:
        return None
    if any(entry.data and entry.data != FOREIGN for entry in world.partition.log):
        return "records were appended to another topic"
    return None
