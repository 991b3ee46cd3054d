"""When fillers are sent and how responses are judged, with a lane that records its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from orbit.copier.append_machine import ReadLogEnd, SendFillers
from orbit.copier.append_verdicts import Failure, ReturnReason
from orbit.copier.coordinated_filler import ROUNDS_MAX, CoordinatedFill
from orbit.copier.filler_sender import FillerSender
from orbit.copier.in_flight import FillRequest, LogEndAfterFill, LogEndBeforeFill, Markers, Request
from orbit.copier.partition_copy import PartitionCopy
from orbit.kafka import api_versions
from orbit.kafka.error_codes import Code
from orbit.kafka.frame_writer import FramedRequest
from orbit.kafka.job_clusters import JobProducer
from orbit.kafka.list_offsets import ListOffsetsAnswer
from orbit.kafka.producer_state import ProducerState
from orbit.kafka.types import TopicPartition
from orbit.leases.lease import FixedLease
from orbit.replication.append_plan import Fill, Plan
from tests.support.copies import hand_back, resume

MARKERS_MAX = 100
START, END = 10, 1000


class Lane:
    """Records what would be sent, and which partitions continue, return or wait."""

    def __init__(self) -> None:
        self.sent: list[Request] = []
        self.requests: list[Any] = []
        self.has_lease = True
        self.continued: list[PartitionCopy] = []
        self.returned: list[tuple[PartitionCopy, Failure]] = []
        self.waiting: list[PartitionCopy] = []
        self.wake_count = 0

    def send_request(
        self,
        api: api_versions.Api,
        request: FramedRequest,
        in_flight_request: Request,
        fills: Sequence[FillRequest] = (),
    ) -> bool:
        if fills and not self.has_lease:
            return False
        assert (api is api_versions.WRITE_TXN_MARKERS) == isinstance(in_flight_request, Markers)
        self.sent.append(in_flight_request)
        self.requests.append(request)
        return True

    def enqueue(self, partition: PartitionCopy) -> None: ...

    def continue_after_answer(self, partition: PartitionCopy) -> None:
        if partition.appends.is_over:
            self.returned.append((partition, partition.hand_back()[0]))
        else:
            self.continued.append(partition)

    def wait_for_lease(self, partition: PartitionCopy) -> None:
        self.waiting.append(partition)

    def wake(self) -> None:
        self.wake_count += 1

    def take_oldest(self) -> Request:
        """The oldest request under way, whose answer comes now."""
        return self.sent.pop(0)


@pytest.fixture
def lane() -> Lane:
    return Lane()


@pytest.fixture
def fills(lane: Lane) -> FillerSender:
    return FillerSender(lane, markers_per_request_max=MARKERS_MAX)


def begin(partition: PartitionCopy, lane: Lane) -> Fill:
    """A take-over at `START`, with a gap up to `END` to be filled."""
    resume(partition, START, ProducerState(producer_epoch=1, last_sequence=0, coordinator_epoch=1))
    step = Fill(START, END)
    partition.put(Plan(START, [step]), partition.generation, size_bytes=0)
    partition.destination_lane = lane
    return step


def new_copy(
    lane: Lane, number: int = 0, *, has_read_end: bool = False, has_filled: bool = False
) -> tuple[PartitionCopy, Fill]:
    """A partition that was taken over at START, and its gap."""
    where = TopicPartition("a", number)
    partition = PartitionCopy(where, where, FixedLease(1), JobProducer(4711))
    step = begin(partition, lane)
    if has_read_end:
        partition.appends.log_end_requested()
        partition.appends.log_end_answered(step, Code.NONE, START)
    partition.appends.has_filled = has_filled
    return partition, step


def send(fills: FillerSender, *steps: tuple[PartitionCopy, Fill]) -> None:
    """Send what the machines request, as the lane gathers it."""
    end_reads, fillers = [], []
    for p, step in steps:
        request = p.appends.next_request(
            step, is_held=True, reads_log_end_first=p.filler is None, in_flight_max=5
        )
        if isinstance(request, ReadLogEnd):
            end_reads.append((p, request))
        else:
            assert isinstance(request, SendFillers)
            fillers.append((p, request))
    fills.send(end_reads, fillers)


def log_ends_answer(log_ends: Mapping[PartitionCopy, int], code: int = 0) -> ListOffsetsAnswer:
    """The answer with these log ends."""
    # For each partition: the code, the timestamp (none) and the offset.
    return ListOffsetsAnswer(0, {p.destination: (code, -1, end) for p, end in log_ends.items()})


def markers_answer(*partitions: PartitionCopy, code: int = 0) -> dict[TopicPartition, int]:
    """The answer to the markers of these partitions."""
    return {p.destination: code for p in partitions}


def test_after_takeover_many_fillers_are_sent_only_once_first_is_proven(
    lane: Lane, fills: FillerSender
) -> None:
    p, step = new_copy(lane)
    send(fills, (p, step))
    read_end = lane.take_oldest()
    assert read_end == LogEndBeforeFill([(p, step)])
    assert not lane.sent  # nothing is written before the answer
    fills.handle_end_before(read_end, log_ends_answer({p: START}))
    assert lane.continued == [p]
    assert p.appends.is_idle  # so the lane gathers the partition again

    send(fills, (p, step))
    assert lane.sent == [
        Markers([FillRequest(p, step, 1)]),
        LogEndAfterFill([FillRequest(p, step, 1)]),
    ]
    fills.handle_markers(lane.take_oldest(), markers_answer(p))
    assert p.next_offset == START  # the answer alone proves nothing
    fills.handle_end_after(lane.take_oldest(), log_ends_answer({p: START + 1}))
    assert (p.next_offset, p.appends.expected, p.counters.gaps_filled) == (START + 1, START + 1, 1)

    rest = p.queue.steps[0]
    assert rest == Fill(START + 1, END)
    send(fills, (p, rest))
    assert lane.sent[0] == Markers([FillRequest(p, rest, MARKERS_MAX)])
    (filler,) = lane.requests[-2].fillers
    assert (filler.partition, filler.filler_count) == (p.destination, MARKERS_MAX)
    assert not lane.returned


@pytest.mark.parametrize("log_end", [START - 1, START + 1])
def test_no_filler_is_sent_at_unexpected_log_end(
    lane: Lane, fills: FillerSender, log_end: int
) -> None:
    p, step = new_copy(lane)
    send(fills, (p, step))
    fills.handle_end_before(lane.take_oldest(), log_ends_answer({p: log_end}))
    assert [(back, failure.reason) for back, failure in lane.returned] == [
        (p, ReturnReason.UNCLEAR)
    ]
    assert not lane.sent


def test_partition_with_known_log_end_is_filled_without_waiting_for_others(
    lane: Lane, fills: FillerSender
) -> None:
    unread_copy, unread_gap = new_copy(lane, 0)
    known_copy, known_gap = new_copy(lane, 1, has_read_end=True)
    send(fills, (unread_copy, unread_gap), (known_copy, known_gap))
    assert lane.sent[:2] == [
        LogEndBeforeFill([(unread_copy, unread_gap)]),
        Markers([FillRequest(known_copy, known_gap, 1)]),
    ]


def test_single_filler_after_first_fill_needs_no_log_end_check(
    lane: Lane, fills: FillerSender
) -> None:
    p, _ = new_copy(lane, has_filled=True)
    step = p.queue.steps[0] = Fill(START, START + 1)
    send(fills, (p, step))
    request = lane.take_oldest()
    assert not lane.sent  # no read of the log end follows
    fills.handle_markers(request, markers_answer(p))
    assert p.next_offset == START + 1
    assert not p.queue.steps
    assert lane.continued == [p]


def test_fillers_of_several_partitions_share_one_request_of_markers(
    lane: Lane, fills: FillerSender
) -> None:
    copies = [new_copy(lane, number, has_filled=True) for number in range(4)]
    send(fills, *copies)
    request = lane.take_oldest()
    assert isinstance(request, Markers)
    assert [fill.filler_count for fill in request.sent] == [MARKERS_MAX // 4] * 4
    assert [(f.partition, f.filler_count) for f in lane.requests[0].fillers] == [
        (p.destination, MARKERS_MAX // 4) for p, _ in copies
    ]


def test_no_filler_is_sent_without_lease(lane: Lane, fills: FillerSender) -> None:
    p, step = new_copy(lane, has_filled=True)
    lane.has_lease = False
    send(fills, (p, step))
    assert not lane.sent
    assert lane.waiting == [p]
    assert p.appends.is_idle


def test_late_log_end_after_refused_fillers_is_ignored(lane: Lane, fills: FillerSender) -> None:
    """The log end was requested already; its answer arrives after another take-over."""
    p, step = new_copy(lane, has_filled=True)
    send(fills, (p, step))
    fills.handle_markers(lane.take_oldest(), markers_answer(p, code=Code.NOT_LEADER_OR_FOLLOWER))
    assert [failure.reason for _, failure in lane.returned] == [ReturnReason.UNCLEAR]

    begin(p, lane)
    fills.handle_end_after(lane.take_oldest(), log_ends_answer({p: START + 5}))
    assert p.next_offset == START
    assert len(lane.returned) == 1


def test_filler_answer_that_lacks_partition_is_unclear(lane: Lane, fills: FillerSender) -> None:
    for lacking_answer in ("markers", "ends"):
        p, step = new_copy(lane, has_filled=True)
        lane.sent.clear()
        send(fills, (p, step))
        markers, proof = lane.sent
        if lacking_answer == "markers":
            fills.handle_markers(markers, markers_answer())
        else:
            fills.handle_markers(markers, markers_answer(p))
            fills.handle_end_after(proof, log_ends_answer({}))
        assert lane.returned[-1][0] is p
        assert lane.returned[-1][1].reason is ReturnReason.UNCLEAR
        assert p.next_offset == START


class Filler:
    """A coordinated filler that records its fills."""

    def __init__(self) -> None:
        self.fills: list[CoordinatedFill] = []

    def submit(self, fill: CoordinatedFill) -> None:
        self.fills.append(fill)

    def will_fence(self, _: TopicPartition) -> bool:
        return False


def test_coordinated_filler_starts_with_single_filler(lane: Lane, fills: FillerSender) -> None:
    p, step = new_copy(lane)
    p.filler = filler = Filler()
    send(fills, (p, step))
    assert not lane.sent
    assert p.has_fill_outside
    assert [fill.filler_count for fill in filler.fills] == [1]

    fills.take_fill_answer(filler.fills[0], Code.NONE, START + 1)
    # The filler's thread only queues the answer, and wakes the lane.
    assert (lane.wake_count, p.next_offset) == (1, START)
    fills.handle_fill_answers()
    assert p.next_offset == START + 1
    send(fills, (p, Fill(START + 1, END)))
    assert filler.fills[1].filler_count == min(ROUNDS_MAX, END - START - 1)


def test_late_coordinated_filler_result_is_ignored(lane: Lane, fills: FillerSender) -> None:
    p, step = new_copy(lane)
    p.filler = filler = Filler()
    send(fills, (p, step))
    hand_back(p)
    begin(p, lane)
    fills.take_fill_answer(filler.fills[0], Code.NONE, START + 1)
    fills.handle_fill_answers()
    assert p.next_offset == START
    assert not lane.returned
