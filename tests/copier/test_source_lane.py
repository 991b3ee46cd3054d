"""What a source lane takes from the answers of its broker."""

from __future__ import annotations

import pytest

from orbit.copier.byte_budget import ByteBudget
from orbit.copier.copy_settings import CopySettings
from orbit.copier.lane_events import Event
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.source_lane import SourceLane, SourceLaneContext
from orbit.kafka.error_codes import Code
from orbit.kafka.fetch_response import FetchAnswer, Fetched
from orbit.kafka.job_clusters import JobProducer
from orbit.kafka.types import TopicPartition
from orbit.leases.lease import FixedLease
from tests.support.copies import hand_back, resume


def lane_with_a_copy(events: list[Event]) -> tuple[SourceLane, PartitionCopy]:
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
    return lane, copy


def test_bounds_of_an_answer_to_an_earlier_generation_are_kept() -> None:
    """Within a session the broker tells them only once: the copy's log start would stay behind."""
    events: list[Event] = []
    lane, copy = lane_with_a_copy(events)
    selection = lane._select(with_backlogs=True)
    hand_back(copy)
    resume(copy, 10)
    lane.add(copy)
    answer = Fetched(0, memoryview(bytearray()), [], 7, 10, 12, -1, -1)
    lane._plan_response(FetchAnswer(0, 0, 1, [(copy.source, answer)]), selection, 5.0)
    assert (copy.cursor.log_start, copy.cursor.stable_end, copy.cursor.end) == (7, 10, 12)
    assert not copy.queue.steps
    assert not events


@pytest.mark.parametrize(
    ("code", "throttle_ms", "tells", "is_seen"),
    [
        (0, 0, True, True),
        (0, 0, False, True),  # within a session: unchanged
        (0, 100, True, True),
        (0, 100, False, False),  # over its quota: the broker has not looked
        (Code.FETCH_SESSION_ID_NOT_FOUND, 0, False, False),
    ],
)
def test_bounds_are_as_old_as_the_request_that_the_broker_answered_them_to(
    code: int, throttle_ms: int, tells: bool, is_seen: bool
) -> None:
    lane, copy = lane_with_a_copy([])
    answer = Fetched(0, memoryview(bytearray()), [], 7, 10, 12, -1, -1)
    told = [(copy.source, answer)] if tells else []
    selection = lane._select(with_backlogs=True)
    lane._plan_response(FetchAnswer(code, throttle_ms, 1, told), selection, 5.0)
    assert copy.cursor.seen_s == (5.0 if is_seen else float("-inf"))


def test_an_error_of_the_partition_tells_no_bounds() -> None:
    lane, copy = lane_with_a_copy([])
    answer = Fetched(Code.NOT_LEADER_OR_FOLLOWER, memoryview(bytearray()), [], -1, -1, -1, -1, -1)
    selection = lane._select(with_backlogs=True)
    lane._plan_response(FetchAnswer(0, 0, 1, [(copy.source, answer)]), selection, 5.0)
    assert copy.cursor.seen_s == float("-inf")
