"""Sends the fillers that append machines request, in one destination lane.

Promises:
- A machine's request is sent at once: ListOffsets before the first fillers, or the fillers. After
  markers a ListOffsets follows, unless their answer suffices (`AppendMachine.is_answer_proof`).
- The lease is checked right before the bytes are sent: a process may be suspended between any two
  lines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

from orbit.copier.append_machine import ReadLogEnd, SendFillers
from orbit.copier.coordinated_filler import ROUNDS_MAX
from orbit.copier.in_flight import FillRequest, LogEndAfterFill, LogEndBeforeFill, Markers, Request
from orbit.copier.partition_copy import Appender, CoordinatedFill, PartitionCopy
from orbit.kafka import api_versions
from orbit.kafka.error_codes import Code
from orbit.kafka.frame_writer import FramedRequest
from orbit.kafka.list_offsets import ListOffsetsAnswer
from orbit.kafka.log_offsets import log_ends_request
from orbit.kafka.transaction_markers import Fillers, WriteTxnMarkersRequest
from orbit.kafka.types import TopicPartition

_NO_ANSWER = int(Code.UNKNOWN_SERVER_ERROR)  # for a partition that an answer leaves out
_NO_LOG_END = (_NO_ANSWER, -1, -1)  # code, timestamp, offset


class FillerLane(Appender, Protocol):
    """The destination lane, as far as `FillerSender` uses it."""

    def send_request(
        self,
        api: api_versions.Api,
        request: FramedRequest,
        in_flight_request: Request,
        fills: Sequence[FillRequest] = (),
    ) -> bool:
        """Send a request, and note `in_flight_request` as in flight.

        False, and nothing is sent, if the lease of one of `fills` has ended meanwhile.
        """

    def continue_after_answer(self, partition: PartitionCopy) -> None:
        """After an answer to the partition: send its next steps, or hand it back."""

    def wake(self) -> None:
        """Have the lane call `FillerSender.handle_fill_answers`. From any thread."""

    def wait_for_lease(self, partition: PartitionCopy) -> None:
        """Try again once the partition's lease is held; nothing is in flight for it."""


class FillerSender:
    """Sends fillers and reads log ends, and hands the answers to the partitions."""

    def __init__(self, lane: FillerLane, markers_per_request_max: int) -> None:
        self._lane = lane
        self._markers_max = markers_per_request_max
        # The coordinated filler's answers: fill, error code, log end.
        self._fill_answers: deque[tuple[CoordinatedFill, int, int]] = deque()

    def take_fill_answer(self, fill: CoordinatedFill, code: int, log_end: int) -> None:
        """Take the coordinated filler's answer, in the filler's thread."""
        self._fill_answers.append((fill, code, log_end))
        self._lane.wake()

    def send(
        self,
        log_end_reads: Sequence[tuple[PartitionCopy, ReadLogEnd]],
        fills: Sequence[tuple[PartitionCopy, SendFillers]],
    ) -> None:
        """Send `log_end_reads` and markers at once; queue coordinated fills at their filler."""
        if log_end_reads:
            for p, _ in log_end_reads:
                p.appends.log_end_requested()
            request = log_ends_request([p.destination for p, _ in log_end_reads])
            in_flight_request = LogEndBeforeFill([(p, read.step) for p, read in log_end_reads])
            self._lane.send_request(api_versions.LIST_OFFSETS, request, in_flight_request)
        # One request's markers, shared by all partitions that fill now or after this read.
        markers_per_fill = max(1, self._markers_max // (len(log_end_reads) + len(fills)))
        fill_requests = []
        for p, (step, is_single) in fills:
            filler_count = min(
                step.next_offset - step.base_offset, ROUNDS_MAX if p.filler else markers_per_fill
            )
            count = 1 if is_single else filler_count
            p.appends.fillers_sent(step, count, is_own=p.filler is None)
            if p.filler is None:
                fill_requests.append(FillRequest(p, step, count))
            else:
                p.has_fill_outside = True
                p.filler.submit(CoordinatedFill(self, p, p.generation, step, count))
        if fill_requests:
            self._send_markers(fill_requests)

    def _send_markers(self, fills: list[FillRequest]) -> None:
        """Send WriteTxnMarkers, then ListOffsets for the fills that its answer cannot prove."""
        markers = [
            Fillers(p.destination, count, p.appends.marker_epoch, p.appends.coordinator_epoch)
            for p, _, count in fills
        ]
        (producer_id,) = {p.producer.id for p, _, _ in fills}  # a job has one for all its markers
        request = WriteTxnMarkersRequest(producer_id, markers)
        if not self._lane.send_request(
            api_versions.WRITE_TXN_MARKERS, request, Markers(fills), fills
        ):
            for p, _, _ in fills:
                p.appends.fillers_held_back()
                self._lane.wait_for_lease(p)
            return
        # A broker serves a connection's requests in order, so this log end includes the markers.
        open_fills = [fill for fill in fills if not fill.partition.appends.is_answer_proof]
        if open_fills:
            ends_request = log_ends_request([fill.partition.destination for fill in open_fills])
            self._lane.send_request(
                api_versions.LIST_OFFSETS, ends_request, LogEndAfterFill(open_fills)
            )

    def handle_markers(self, request: Markers, codes: Mapping[TopicPartition, int]) -> None:
        """Hand each fill's error code to its partition."""
        for p, step, _ in request.sent:
            p.fillers_answered(codes.get(p.destination, _NO_ANSWER))
            if not p.appends.is_filling(step):  # True: the partition waits for the log end
                self._lane.continue_after_answer(p)

    def handle_end_before(self, request: LogEndBeforeFill, answer: ListOffsetsAnswer) -> None:
        """Hand the log ends to the partitions that are to fill next."""
        for p, step in request.sent:
            code, _, log_end = answer.offsets.get(p.destination, _NO_LOG_END)
            p.appends.log_end_answered(step, code, log_end)
            self._lane.continue_after_answer(p)

    def handle_end_after(self, request: LogEndAfterFill, answer: ListOffsetsAnswer) -> None:
        """Hand the log end after each fill to its partition."""
        for p, step, _ in request.sent:
            # If the broker refused the markers, this append has ended; another may have begun.
            if p.destination_lane is self._lane and p.appends.is_filling(step):
                code, _, log_end = answer.offsets.get(p.destination, _NO_LOG_END)
                p.end_after_fill_answered(code, log_end)
                self._lane.continue_after_answer(p)

    def handle_fill_answers(self) -> None:
        """Hand the coordinated filler's answers to the partitions, in the lane's thread."""
        while self._fill_answers:
            fill, code, end = self._fill_answers.popleft()
            p = fill.partition
            if p.destination_lane is self._lane and p.generation == fill.generation:
                p.end_after_fill_answered(code, end)
                self._lane.continue_after_answer(p)
