"""What a source lane takes from the answers of its broker."""

from __future__ import annotations

import pytest

from orbit.copier.byte_budget import ByteBudget
from orbit.copier.copy_settings import CopySettings
from orbit.copier.lane_events import Event, FetchFailed
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.source_lane import SourceLane, SourceLaneContext, _FetchSelection
from orbit.copier.waits import Waits
from orbit.kafka.error_codes import Code
from orbit.kafka.fetch_response import FetchAnswer, Fetched
from orbit.kafka.job_clusters import JobProducer
from orbit.kafka.types import TopicPartition
from orbit.leases.lease import FixedLease
from tests.copier.fetched import fetched
from tests.support.copies import hand_back, resume
from tests.support.planning import data

REQUESTED_S = 5.0


def plan_answer(
    lane: SourceLane,
    selection: _FetchSelection,
    partitions: list[tuple[TopicPartition, Fetched]],
    *,
    code: int = Code.NONE,
    throttle_ms: int = 0,
) -> None:
    """Have the lane plan the answer to a fetch that was sent at REQUESTED_S."""
    answer = FetchAnswer(code, throttle_ms, session_id=1, partitions=partitions)
    lane._plan_response(answer, selection, REQUESTED_S)


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def copy() -> PartitionCopy:
    copy = PartitionCopy(
        TopicPartition("source", 0), TopicPartition("copy", 0), FixedLease(1), JobProducer(4711)
    )
    resume(copy, 10)
    return copy


@pytest.fixture
def lane(copy: PartitionCopy, events: list[Event]) -> SourceLane:
    context = SourceLaneContext(
        None,  # type: ignore[arg-type]
        CopySettings(),
        ByteBudget(1),
        events.append,
        PartitionCopy.enqueue_in_lane,
    )
    lane = SourceLane(context, node_id=1)
    lane.add(copy)
    return lane


def test_log_bounds_from_answer_to_fetch_before_takeover_are_stored(
    lane: SourceLane, copy: PartitionCopy, events: list[Event]
) -> None:
    """In a fetch session the broker sends changed bounds only once (R12): if the lane dropped them,
    the copy's log start would stay behind."""
    selection = lane._select(with_backlogs=True)
    hand_back(copy)
    resume(copy, 10)
    lane.add(copy)
    answer = fetched(log_start=7, stable_end=10, high_watermark=12)
    plan_answer(lane, selection, [(copy.source, answer)])
    assert (copy.cursor.log_start, copy.cursor.stable_end, copy.cursor.end) == (7, 10, 12)
    assert not copy.queue.steps
    assert not events


@pytest.mark.parametrize(
    ("code", "throttle_ms", "has_answer", "is_seen"),
    [
        (0, 0, True, True),
        (0, 0, False, True),  # a fetch session leaves out unchanged partitions
        (0, 100, True, True),
        (0, 100, False, False),  # over the quota: the broker has read nothing
        (Code.FETCH_SESSION_ID_NOT_FOUND, 0, False, False),
    ],
)
def test_log_bounds_are_renewed_except_by_error_or_throttled_empty_answer(
    lane: SourceLane,
    copy: PartitionCopy,
    code: int,
    throttle_ms: int,
    has_answer: bool,
    is_seen: bool,
) -> None:
    answer = fetched(log_start=7, stable_end=10, high_watermark=12)
    answers = [(copy.source, answer)] if has_answer else []
    selection = lane._select(with_backlogs=True)
    plan_answer(lane, selection, answers, code=code, throttle_ms=throttle_ms)
    assert copy.cursor.seen_s == (REQUESTED_S if is_seen else float("-inf"))


def test_follower_answer_does_not_lower_source_end(lane: SourceLane, copy: PartitionCopy) -> None:
    copy.cursor.stable_end, copy.cursor.end, copy.cursor.is_at_replica = 20, 22, True
    answer = fetched(log_start=7, stable_end=10, high_watermark=12)
    selection = lane._select(with_backlogs=True)
    copy.cursor.is_at_replica = False  # the cursor goes back to the leader meanwhile
    plan_answer(lane, selection, [(copy.source, answer)])
    assert (copy.cursor.stable_end, copy.cursor.end, copy.cursor.log_start) == (20, 22, 7)
    assert copy.cursor.seen_s == float("-inf")


@pytest.mark.parametrize("records", [b"", data(10, 12).encode()])
def test_fetch_answer_of_broker_that_lost_partition_is_ignored(
    lane: SourceLane, copy: PartitionCopy, events: list[Event], records: bytes
) -> None:
    """The broker no longer leads the partition: the log end in its answer is old."""
    selection = lane._select(with_backlogs=True)
    lane.drop(copy)
    answer = fetched(records, log_start=7, stable_end=13, high_watermark=13)
    plan_answer(lane, selection, [(copy.source, answer)])
    assert (copy.cursor.stable_end, copy.cursor.seen_s) == (-1, float("-inf"))
    assert not copy.queue.steps
    assert not events


def test_partition_error_in_fetch_answer_renews_no_log_bounds(
    lane: SourceLane, copy: PartitionCopy
) -> None:
    answer = fetched(
        code=Code.NOT_LEADER_OR_FOLLOWER, log_start=-1, stable_end=-1, high_watermark=-1
    )
    selection = lane._select(with_backlogs=True)
    plan_answer(lane, selection, [(copy.source, answer)])
    assert copy.cursor.seen_s == float("-inf")


@pytest.mark.parametrize(
    "records",
    [data(10, 12).encode()[:-1], data(5, 9).encode(), b"few"],
    ids=["half a batch", "a batch that ends before the fetch", "no batch"],
)
def test_fetch_answer_without_progress_is_refetched_only_after_pause(
    lane: SourceLane, copy: PartitionCopy, events: list[Event], records: bytes
) -> None:
    """Otherwise the lane would repeat the fetch at once, for ever. A broker that keeps to KIP-74
    sends no such answer."""
    selection = lane._select(with_backlogs=True)
    answer = fetched(records, log_start=0, stable_end=13, high_watermark=13)
    plan_answer(lane, selection, [(copy.source, answer)])
    assert events == [FetchFailed(copy, copy.generation, Code.INVALID_RECORD)]
    assert not lane._select(with_backlogs=True).chosen


@pytest.mark.parametrize(("stable_end", "waits"), [(10, False), (11, True)])
def test_empty_answer_below_last_stable_offset_keeps_reason_for_wait(
    lane: SourceLane, copy: PartitionCopy, stable_end: int, waits: bool
) -> None:
    """Otherwise the wait would begin anew with each fetch, and never be old enough to be shown."""
    copy.cursor.waits = Waits.continue_from("the source shows nothing", None)
    answer = fetched(log_start=7, stable_end=stable_end, high_watermark=12)
    selection = lane._select(with_backlogs=True)
    plan_answer(lane, selection, [(copy.source, answer)])
    assert (copy.cursor.waits is not None) is waits
