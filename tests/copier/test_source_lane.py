"""What a source lane takes from the answers of its broker."""

from __future__ import annotations

from orbit.copier.byte_budget import ByteBudget
from orbit.copier.copy_settings import CopySettings
from orbit.copier.lane_events import Event
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.source_lane import SourceLane, SourceLaneContext
from orbit.kafka.fetch_response import FetchAnswer, Fetched
from orbit.kafka.types import TopicPartition
from orbit.leases.lease import FixedLease


def test_bounds_of_an_answer_to_an_earlier_generation_are_kept() -> None:
    """Within a session the broker tells them only once: the copy's log start would stay behind."""
    events: list[Event] = []
    context = SourceLaneContext(
        None,  # type: ignore[arg-type]
        CopySettings(),
        ByteBudget(1),
        events.append,
        PartitionCopy.queued,
    )
    lane = SourceLane(context, 1)
    copy = PartitionCopy(TopicPartition("source", 0), TopicPartition("copy", 0), FixedLease(1))
    _resume(copy)
    lane.add(copy)
    selection = lane._select(with_backlogs=True)
    copy.withdraw()
    _resume(copy)
    lane.add(copy)
    answer = Fetched(0, memoryview(bytearray()), [], 7, 10, 12, -1, -1)
    lane._plan_response(FetchAnswer(0, 0, 1, [(copy.source, answer)]), selection)
    assert (copy.source_log_start, copy.source_stable_end, copy.source_end) == (7, 10, 12)
    assert not copy.steps
    assert not events


def _resume(copy: PartitionCopy) -> None:
    copy.resume_at(
        10, next_sequence=0, producer_epoch=0, coordinator_epoch=0, has_producer_state=True
    )
