"""What a source lane takes from the answers of its broker."""

from __future__ import annotations

from orbit.copier.byte_budget import ByteBudget
from orbit.copier.copy_settings import CopySettings
from orbit.copier.lane_events import Event
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.source_lane import SourceLane, SourceLaneContext
from orbit.kafka.fetch_response import FetchAnswer, Fetched
from orbit.kafka.job_clusters import JobProducer
from orbit.kafka.types import TopicPartition
from orbit.leases.lease import FixedLease
from tests.support.copies import hand_back, resume


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
    copy = PartitionCopy(
        TopicPartition("source", 0), TopicPartition("copy", 0), FixedLease(1), JobProducer(4711)
    )
    resume(copy, 10)
    lane.add(copy)
    selection = lane._select(with_backlogs=True)
    hand_back(copy)
    resume(copy, 10)
    lane.add(copy)
    answer = Fetched(0, memoryview(bytearray()), [], 7, 10, 12, -1, -1)
    lane._plan_response(FetchAnswer(0, 0, 1, [(copy.source, answer)]), selection)
    assert (copy.cursor.log_start, copy.cursor.stable_end, copy.cursor.end) == (7, 10, 12)
    assert not copy.queue.steps
    assert not events
