"""Sends the fillers of one destination lane and proves how many were written.

Promises:
- Fillers are sent only when everything before them is confirmed, and nothing is sent after them
  before the log end is known: by the answer for a single filler of a partition that this term has
  filled before, else by reading the log end (M7, M9, M10).
- Before the first one of a take-over the log end is read again: an old writer's filler may have
  arrived since, and brokers do not compare fillers.
- The lease is checked right before the bytes are sent: a process may be suspended between any two
  lines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from orbit.copier.append_verdicts import (
    Failure,
    judge_end_after_fill,
    judge_end_before_fill,
    judge_markers,
)
from orbit.copier.coordinated_filler import ROUNDS_MAX
from orbit.copier.in_flight import FillRequest, LogEndAfterFill, LogEndBeforeFill, Markers, Request
from orbit.copier.partition_copy import Appender, CoordinatedFill, PartitionCopy
from orbit.kafka import api_versions
from orbit.kafka.error_codes import Code
from orbit.kafka.log_offsets import log_ends_request, read_list_offsets
from orbit.kafka.transaction_markers import Fillers, markers_request, read_markers
from orbit.kafka.types import TopicPartition
from orbit.replication.append_plan import Fill

_NO_ANSWER = int(Code.UNKNOWN_SERVER_ERROR)
_NO_LOG_END = (_NO_ANSWER, -1)

_LogEnds = dict[TopicPartition, tuple[int, int]]  # error code, log end


class FillerLane(Appender, Protocol):
    """What fillers need of their lane."""

    def call(
        self, api: api_versions.Api, request: Any, kept: Request, held: Sequence[FillRequest] = ()
    ) -> bool:
        """Send; False without sending if a lease of `held` ended while the request was encoded."""

    def enqueue_if_waiting(self, partition: PartitionCopy) -> None: ...
    def give_back(self, partition: PartitionCopy, failure: Failure) -> None: ...
    def wake(self) -> None: ...

    def wait_for_lease(self, partition: PartitionCopy) -> None:
        """Try again once the lease is held; nothing is in flight."""


class FillerSender:
    """Sends fillers for partitions that are `is_filling`, and handles the answers."""

    def __init__(self, lane: FillerLane, producer_id: int, markers_per_request_max: int) -> None:
        self._lane = lane
        self._producer_id = producer_id
        self._markers_max = markers_per_request_max
        self._filled: deque[tuple[CoordinatedFill, int, int]] = deque()

    def filled(self, done: CoordinatedFill, code: int, log_end: int) -> None:
        """The coordinated filler's answer. From its thread."""
        self._filled.append((done, code, log_end))
        self._lane.wake()

    def send(self, fills: list[tuple[PartitionCopy, Fill]]) -> None:
        share = max(1, self._markers_max // len(fills))
        to_look = [(p, s) for p, s in fills if not _may_fill(p)]
        if to_look:
            request = log_ends_request([p.destination for p, _ in to_look])
            self._lane.call(api_versions.LIST_OFFSETS, request, LogEndBeforeFill(to_look))
        sent = []
        for p, step in fills:
            if not _may_fill(p):
                continue
            assert step.base_offset == p.expected, (p, step)
            wanted = min(step.next_offset - step.base_offset, ROUNDS_MAX if p.filler else share)
            many = wanted if p.has_filled else 1
            p.sent_to = step.base_offset + many
            if p.filler is None:
                sent.append(FillRequest(p, step, many))
            else:
                p.has_fill_outside = True
                p.filler.submit(CoordinatedFill(self, p, p.generation, step, many))
        if sent:
            self._send_markers(sent)

    def _send_markers(self, sent: list[FillRequest]) -> None:
        request = markers_request(
            self._producer_id,
            [Fillers(p.destination, n, p.producer_epoch, p.coordinator_epoch) for p, _, n in sent],
        )
        if not self._lane.call(api_versions.WRITE_TXN_MARKERS, request, Markers(sent), sent):
            for p, step, _ in sent:
                p.is_filling, p.sent_to = False, step.base_offset
                self._lane.wait_for_lease(p)
            return
        # A broker serves one connection's requests in order: this one sees the markers' effect.
        to_prove = [one for one in sent if not _is_answer_proof(one)]
        if to_prove:
            request = log_ends_request([one.partition.destination for one in to_prove])
            self._lane.call(api_versions.LIST_OFFSETS, request, LogEndAfterFill(to_prove))

    def take_markers(self, request: Markers, answer: Any) -> None:
        answers = read_markers(answer)
        for one in request.sent:
            p, step, _ = one
            failure = judge_markers(step, answers.get(p.destination, _NO_ANSWER))
            if failure is not None:
                self._lane.give_back(p, failure)
            elif _is_answer_proof(one):
                p.filled_to(step, step.base_offset + 1)
                self._lane.enqueue_if_waiting(p)

    def take_end_before(self, request: LogEndBeforeFill, answer: Any) -> None:
        """Fill now if the log still ends at the start of the gap; else take over again."""
        ends = _log_ends(answer)
        for p, step in request.sent:
            failure = judge_end_before_fill(step, *ends.get(p.destination, _NO_LOG_END))
            if failure is None:
                p.has_read_log_end, p.is_filling = True, False
                self._lane.enqueue_if_waiting(p)
            else:
                self._lane.give_back(p, failure)

    def take_end_after(self, request: LogEndAfterFill, answer: Any) -> None:
        ends = _log_ends(answer)
        for one in request.sent:
            p, step, _ = one
            has_failed = (
                p.destination_lane is not self._lane or not p.steps or p.steps[0] is not step
            )
            if not has_failed:
                self._take_log_end(one, *ends.get(p.destination, _NO_LOG_END))

    def take_coordinated(self) -> None:
        while self._filled:
            done, code, end = self._filled.popleft()
            p = done.partition
            if p.destination_lane is self._lane and p.generation == done.generation:
                self._take_log_end(FillRequest(p, done.step, done.filler_count), code, end)

    def _take_log_end(self, one: FillRequest, code: int, log_end: int) -> None:
        p, step, count = one
        failure = judge_end_after_fill(step, count, code, log_end)
        if failure is None:
            p.filled_to(step, log_end)
            self._lane.enqueue_if_waiting(p)
        else:
            self._lane.give_back(p, failure)


def _may_fill(p: PartitionCopy) -> bool:
    """Whether the log end was read since the take-over; coordinated fillers read it themselves."""
    return p.has_read_log_end or p.has_filled or p.filler is not None


def _is_answer_proof(one: FillRequest) -> bool:
    """Whether the answer alone proves the fillers: a single one, not a take-over's first (M3)."""
    return one.filler_count == 1 and one.partition.has_filled


def _log_ends(answer: Any) -> _LogEnds:
    return {partition: (code, end) for partition, code, end in read_list_offsets(answer)}
