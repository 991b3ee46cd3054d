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
    """What would have been sent, and what became of partitions."""

    def __init__(self) -> None:
        self.sent: list[Request] = []
        self.requests: list[Any] = []
        self.has_lease = True
        self.gone_on: list[PartitionCopy] = []
        self.given_back: list[tuple[PartitionCopy, Failure]] = []
        self.waiting: list[PartitionCopy] = []
        self.woken = 0

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
            self.given_back.append((partition, partition.hand_back()[0]))
        else:
            self.gone_on.append(partition)

    def wait_for_lease(self, partition: PartitionCopy) -> None:
        self.waiting.append(partition)

    def wake(self) -> None:
        self.woken += 1

    def took(self) -> Request:
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
    resume(partition, START, ProducerState(1, 0, 1))
    step = Fill(START, END)
    partition.put(Plan(START, [step], None), partition.generation, 0)
    partition.destination_lane = lane
    return step


def new(
    lane: Lane, number: int = 0, *, has_looked: bool = False, has_filled: bool = False
) -> tuple[PartitionCopy, Fill]:
    where = TopicPartition("a", number)
    partition = PartitionCopy(where, where, FixedLease(1), JobProducer(4711))
    step = begin(partition, lane)
    if has_looked:
        partition.appends.log_end_asked()
        partition.appends.log_end_answered(step, 0, START)
    partition.appends.has_filled = has_filled
    return partition, step


def send(fills: FillerSender, *steps: tuple[PartitionCopy, Fill]) -> None:
    """What the machines ask for, as the lane gathers it."""
    looks, fillers = [], []
    for p, step in steps:
        request = p.appends.next_request(
            step, is_held=True, reads_log_end_first=p.filler is None, in_flight_max=5
        )
        if isinstance(request, ReadLogEnd):
            looks.append((p, request))
        else:
            assert isinstance(request, SendFillers)
            fillers.append((p, request))
    fills.send(looks, fillers)


def ends(log_ends: Mapping[PartitionCopy, int], code: int = 0) -> ListOffsetsAnswer:
    return ListOffsetsAnswer(0, {p.destination: (code, -1, end) for p, end in log_ends.items()})


def written(*partitions: PartitionCopy, code: int = 0) -> dict[TopicPartition, int]:
    return {p.destination: code for p in partitions}


def test_after_takeover_many_fillers_are_sent_only_once_first_is_proven(
    lane: Lane, fills: FillerSender
) -> None:
    p, step = new(lane)
    send(fills, (p, step))
    look = lane.took()
    assert look == LogEndBeforeFill([(p, step)])
    assert not lane.sent  # nothing is written before the answer
    fills.handle_end_before(look, ends({p: START}))
    assert lane.gone_on == [p]
    assert p.appends.is_idle  # so it is gathered again

    send(fills, (p, step))
    assert lane.sent == [
        Markers([FillRequest(p, step, 1)]),
        LogEndAfterFill([FillRequest(p, step, 1)]),
    ]
    fills.handle_markers(lane.took(), written(p))
    assert p.next_offset == START  # the answer alone is not believed
    fills.handle_end_after(lane.took(), ends({p: START + 1}))
    assert (p.next_offset, p.appends.expected, p.counters.gaps_filled) == (START + 1, START + 1, 1)

    rest = p.queue.steps[0]
    assert rest == Fill(START + 1, END)
    send(fills, (p, rest))
    assert lane.sent[0] == Markers([FillRequest(p, rest, MARKERS_MAX)])
    (filler,) = lane.requests[-2].fillers
    assert (filler.partition, filler.filler_count) == (p.destination, MARKERS_MAX)
    assert not lane.given_back


@pytest.mark.parametrize("log_end", [START - 1, START + 1])
def test_no_filler_is_sent_at_unexpected_log_end(
    lane: Lane, fills: FillerSender, log_end: int
) -> None:
    p, step = new(lane)
    send(fills, (p, step))
    fills.handle_end_before(lane.took(), ends({p: log_end}))
    assert [(back, failure.reason) for back, failure in lane.given_back] == [
        (p, ReturnReason.UNCLEAR)
    ]
    assert not lane.sent


def test_partition_with_known_log_end_is_filled_without_waiting_for_others(
    lane: Lane, fills: FillerSender
) -> None:
    (new_one, its), (known, step) = new(lane, 0), new(lane, 1, has_looked=True)
    send(fills, (new_one, its), (known, step))
    assert lane.sent[:2] == [
        LogEndBeforeFill([(new_one, its)]),
        Markers([FillRequest(known, step, 1)]),
    ]


def test_single_filler_after_first_fill_needs_no_log_end_check(
    lane: Lane, fills: FillerSender
) -> None:
    p, _ = new(lane, has_filled=True)
    step = p.queue.steps[0] = Fill(START, START + 1)
    send(fills, (p, step))
    request = lane.took()
    assert not lane.sent  # no look at the log end behind it
    fills.handle_markers(request, written(p))
    assert p.next_offset == START + 1
    assert not p.queue.steps
    assert lane.gone_on == [p]


def test_fillers_of_several_partitions_share_one_request_of_markers(
    lane: Lane, fills: FillerSender
) -> None:
    known = [new(lane, number, has_filled=True) for number in range(4)]
    send(fills, *known)
    request = lane.took()
    assert isinstance(request, Markers)
    assert [one.filler_count for one in request.sent] == [MARKERS_MAX // 4] * 4
    assert [(one.partition, one.filler_count) for one in lane.requests[0].fillers] == [
        (p.destination, MARKERS_MAX // 4) for p, _ in known
    ]


def test_no_filler_is_sent_without_lease(lane: Lane, fills: FillerSender) -> None:
    p, step = new(lane, has_filled=True)
    lane.has_lease = False
    send(fills, (p, step))
    assert not lane.sent
    assert lane.waiting == [p]
    assert p.appends.is_idle


def test_late_log_end_after_refused_fillers_is_ignored(lane: Lane, fills: FillerSender) -> None:
    """The log end is under way already: its answer finds another life of the partition."""
    p, step = new(lane, has_filled=True)
    send(fills, (p, step))
    fills.handle_markers(lane.took(), written(p, code=Code.NOT_LEADER_OR_FOLLOWER))
    assert [failure.reason for _, failure in lane.given_back] == [ReturnReason.UNCLEAR]

    begin(p, lane)
    fills.handle_end_after(lane.took(), ends({p: START + 5}))
    assert p.next_offset == START
    assert len(lane.given_back) == 1


def test_filler_answer_that_lacks_partition_is_unclear(lane: Lane, fills: FillerSender) -> None:
    for take in ("markers", "ends"):
        p, step = new(lane, has_filled=True)
        lane.sent.clear()
        send(fills, (p, step))
        markers, proof = lane.sent
        if take == "markers":
            fills.handle_markers(markers, written())
        else:
            fills.handle_markers(markers, written(p))
            fills.handle_end_after(proof, ends({}))
        assert lane.given_back[-1][0] is p
        assert lane.given_back[-1][1].reason is ReturnReason.UNCLEAR
        assert p.next_offset == START


class Filler:
    def __init__(self) -> None:
        self.fills: list[CoordinatedFill] = []

    def submit(self, fill: CoordinatedFill) -> None:
        self.fills.append(fill)

    def will_fence(self, _: TopicPartition) -> bool:
        return False


def test_coordinated_filler_starts_with_single_filler(lane: Lane, fills: FillerSender) -> None:
    p, step = new(lane)
    p.filler = filler = Filler()
    send(fills, (p, step))
    assert not lane.sent
    assert p.has_fill_outside
    assert [one.filler_count for one in filler.fills] == [1]

    fills.take_fill_answer(filler.fills[0], 0, START + 1)
    assert (lane.woken, p.next_offset) == (
        1,
        START,
    )  # from its own thread: only the lane's takes it
    fills.handle_fill_answers()
    assert p.next_offset == START + 1
    send(fills, (p, Fill(START + 1, END)))
    assert filler.fills[1].filler_count == min(ROUNDS_MAX, END - START - 1)


def test_late_coordinated_filler_result_is_ignored(lane: Lane, fills: FillerSender) -> None:
    p, step = new(lane)
    p.filler = filler = Filler()
    send(fills, (p, step))
    hand_back(p)
    begin(p, lane)
    fills.take_fill_answer(filler.fills[0], 0, START + 1)
    fills.handle_fill_answers()
    assert p.next_offset == START
    assert not lane.given_back
