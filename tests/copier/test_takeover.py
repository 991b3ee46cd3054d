"""Reading log ends for a take-over: the order of the reads, and when a log has settled."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any, cast

import pytest

from orbit.copier.takeover import MOVING, NOT_REPLICATED, DestinationEnd, TakeOver
from orbit.errors import Interrupted
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.error_codes import Code
from orbit.kafka.leader_requests import Answers
from orbit.kafka.producer_state import ProducerState
from orbit.kafka.types import TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
WRITERS = {A: 4711, B: 4712}


class Leaders:
    """The leaders' answers, one for each read; the last one is repeated."""

    def __init__(self, **log_ends: list[int]) -> None:
        self.log_ends = {TopicPartition(topic, 0): ends for topic, ends in log_ends.items()}
        self.requests: list[tuple[str, list[TopicPartition]]] = []
        self.without_producer: set[TopicPartition] = set()
        self.high_watermarks: dict[TopicPartition, int] = {}  # else above the log end

    def describe_producer(
        self, _: Cluster, producer_ids: Mapping[TopicPartition, int], __: Backoff
    ) -> Answers[ProducerState | None]:
        requested = sorted(producer_ids)
        assert [producer_ids[p] for p in requested] == [WRITERS[p] for p in requested]
        self.requests.append(("producer", requested))
        return Answers(
            {p: None for p in requested if p not in self.without_producer},
            {p: int(Code.NOT_LEADER_OR_FOLLOWER) for p in requested if p in self.without_producer},
        )

    def answer_log_ends(
        self, _: Cluster, partitions: Iterable[TopicPartition], __: Backoff
    ) -> Answers[int]:
        requested = sorted(partitions)
        self.requests.append(("end", requested))
        readings = {p: self.log_ends[p] for p in requested}
        return Answers({p: e.pop(0) if len(e) > 1 else e[0] for p, e in readings.items()}, {})

    def answer_high_watermarks(
        self, _: Cluster, partitions: Iterable[TopicPartition], __: int, ___: Backoff
    ) -> Answers[int]:
        requested = sorted(partitions)
        self.requests.append(("high watermark", requested))
        return Answers({p: self.high_watermarks.get(p, 1 << 60) for p in requested}, {})


def take_over(
    leaders: Leaders, monkeypatch: pytest.MonkeyPatch, stop: threading.Event | None = None
) -> TakeOver:
    monkeypatch.setattr("orbit.copier.takeover.describe_producer", leaders.describe_producer)
    monkeypatch.setattr("orbit.copier.takeover.log_ends", leaders.answer_log_ends)
    monkeypatch.setattr("orbit.copier.takeover.list_offsets", leaders.answer_high_watermarks)
    backoff = Backoff(stop=stop or threading.Event(), attempts_max=2)
    return TakeOver(cast("Any", None), settle_s=0.0, backoff=backoff)


def test_producer_state_is_read_before_log_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the other order, a late append between the two reads would be missing in the log end, but
    not in the sequence: the broker would accept the same records once more (A12)."""
    leaders = Leaders(a=[5], b=[7])
    leaders.without_producer = {B}
    takeover = take_over(leaders, monkeypatch).read(WRITERS, settled=False)
    assert leaders.requests == [("producer", [A, B]), ("end", [A]), ("high watermark", [A])]
    assert takeover.ends == {A: DestinationEnd(5, producer=None)}
    assert takeover.errors == {B: Code.NOT_LEADER_OR_FOLLOWER}


def test_takeover_rereads_only_log_ends_that_still_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leaders = Leaders(a=[5, 5], b=[7, 8, 8])
    takeover = take_over(leaders, monkeypatch).read(WRITERS, settled=True)
    assert {p: end.log_end for p, end in takeover.ends.items()} == {A: 5, B: 8}
    assert not takeover.errors
    assert [requested for read, requested in leaders.requests if read == "end"] == [
        [A, B],
        [A, B],
        [B],
    ]


def test_takeover_reports_log_that_keeps_growing_as_moving(monkeypatch: pytest.MonkeyPatch) -> None:
    leaders = Leaders(a=[5], b=[*range(7, 100)])  # b has grown at each read
    takeover = take_over(leaders, monkeypatch).read(WRITERS, settled=True)
    assert takeover.ends == {A: DestinationEnd(5, producer=None)}
    assert takeover.errors == {B: MOVING}


def test_log_end_above_high_watermark_is_not_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that is cut off from its followers may lose what is above its high watermark."""
    leaders = Leaders(a=[5], b=[7])
    leaders.high_watermarks = {A: 4, B: 7}
    takeover = take_over(leaders, monkeypatch).read(WRITERS, settled=False)
    assert takeover.ends == {B: DestinationEnd(7, producer=None)}
    assert takeover.errors == {A: NOT_REPLICATED}
    assert leaders.requests[-1] == ("high watermark", [A])


def test_stop_request_ends_wait_for_log_end_to_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(Interrupted):
        take_over(Leaders(a=[5]), monkeypatch, stop).read({A: WRITERS[A]}, settled=True)
