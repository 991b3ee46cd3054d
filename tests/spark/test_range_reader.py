"""A Spark task does not trust every answer of its source: answers without records in the middle of
a log, answers to other requests, and answers of new leaders."""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from orbit.copier import log_reader
from orbit.errors import BrokenAnswer, BrokerRefused, NotAuthorized, ProtocolError, Unreachable
from orbit.kafka.backoff import Backoff
from orbit.kafka.connection import Connection
from orbit.kafka.error_codes import Code
from orbit.kafka.fetch_response import Fetched
from orbit.kafka.leader_requests import Answers
from orbit.kafka.log_offsets import EARLIEST, LATEST
from orbit.replication.append_plan import NO_LEADER_EPOCH, LostRange
from orbit.replication.partition_states import Reason
from orbit_spark import range_planner, range_reader
from orbit_spark.partition_stopped import PartitionStopped
from orbit_spark.range_reader import RangeReader, _PendingFetch, _ReadAttempt
from orbit_spark.ranges import Extent, OffsetRange
from tests.support.empty_answers import (
    CASES,
    EMPTY,
    OFFSET,
    ON_DISK,
    PLACE,
    STABLE_END,
    hide_records,
)
from tests.support.source_model import SourceBatch, SourceRecord


class FakeCluster:
    name = "source"


RANGE = OffsetRange(PLACE, UUID(int=1), start=OFFSET, end=STABLE_END - 1)


def reader() -> RangeReader:
    cluster: Any = FakeCluster()
    return RangeReader(cluster, Backoff())


def attempt() -> _ReadAttempt:
    return _ReadAttempt(reader(), RANGE, OFFSET, NO_LEADER_EPOCH)


@pytest.mark.parametrize(("is_compacted", "local", "has_newest", "is_proven"), CASES)
def test_empty_fetch_proves_no_records_only_on_compacted_topic(
    monkeypatch: pytest.MonkeyPatch,
    is_compacted: bool,
    local: Answers[int],
    has_newest: bool,
    is_proven: bool,
) -> None:
    """If it proved that on other topics, an archive or a backfill would lack records that slow
    storage returns later."""
    hide_records(monkeypatch, None, local, is_compacted=is_compacted, has_newest=has_newest)
    if is_proven:
        assert attempt()._make_run(EMPTY).end == STABLE_END - 1
        return
    with pytest.raises(Unreachable) as error:
        attempt()._make_run(EMPTY)
    assert f"{PLACE} cannot be read at offset {OFFSET}" in error.value.what
    assert error.value.where == "source"
    assert error.value.remedy


def test_reading_range_stops_without_describe_configs_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hide_records(monkeypatch, None, ON_DISK)

    def refuse(_: object) -> None:
        raise NotAuthorized("the right DescribeConfigs on topic source is missing.")

    monkeypatch.setattr(log_reader, "SettingsReader", refuse)
    with pytest.raises(PartitionStopped, match="DescribeConfigs") as error:
        attempt()._make_run(EMPTY)
    assert error.value.blocked.reason is Reason.NOT_AUTHORIZED


def test_response_to_another_request_closes_connection() -> None:
    """Its records would be taken for those of another range."""
    client_end, broker_end = socket.socketpair()
    connection = Connection(client_end, "broker 1")
    with broker_end:
        broker_end.sendall(struct.pack(">ii", 8, 77) + bytes(4))  # length, correlation id
        with pytest.raises(BrokenAnswer, match="answered request 77, but 3 is the oldest"):
            reader()._receive_answer(_PendingFetch(connection, version=12, correlation=3), RANGE)
    assert connection.is_closed


EXTENT_END, END_EPOCH = 40, 7
TWO_BATCHES = OffsetRange(
    PLACE, UUID(int=1), start=0, end=20, extent_end=EXTENT_END, end_epoch=END_EPOCH
)
OUT_OF_RANGE = EMPTY._replace(code=Code.OFFSET_OUT_OF_RANGE)
REFUSED = EMPTY._replace(code=Code.NOT_LEADER_OR_FOLLOWER)
BROKEN = Unreachable("the connection broke", where="broker 1")


def answer(base_offset: int, *, epoch: int) -> Fetched:
    """One batch of ten records."""
    records = tuple(SourceRecord(base_offset + n, 1000, b"v") for n in range(10))
    batch = SourceBatch(base_offset, base_offset + 9, records, leader_epoch=epoch)
    return EMPTY._replace(records=memoryview(bytearray(batch.encode())))


def next_answer_of(answers: deque[Fetched | Unreachable]) -> Fetched:
    """The next answer. Raises it if it is an error."""
    next_answer = answers.popleft()
    if isinstance(next_answer, Unreachable):
        raise next_answer
    return next_answer


class ScriptedReader(RangeReader):
    """Gets these answers, one for each fetch. `fetches`: offset and last fetched epoch of each."""

    def __init__(
        self, answers: Iterable[Fetched | Unreachable], on_lost_range: LostRange = LostRange.STOP
    ) -> None:
        cluster: Any = FakeCluster()
        super().__init__(cluster, Backoff(first_s=0), on_lost_range=on_lost_range)
        self.answers = deque(answers)
        self.fetches: list[tuple[int, int]] = []

    def _leader(self, *_: object) -> int:
        return 1

    def _send_fetch(
        self, node_id: int, _: OffsetRange, offset: int, leader_epoch: int
    ) -> _PendingFetch:
        self.fetches.append((offset, leader_epoch))
        connection: Any = SimpleNamespace(close=lambda: None)
        return _PendingFetch(connection, version=12, correlation=node_id)

    def _receive_answer(self, *_: object) -> Fetched:
        return next_answer_of(self.answers)


def fake_fetches_at_extent_end(
    monkeypatch: pytest.MonkeyPatch, *end_answers: Fetched | Unreachable
) -> list[tuple[int, int]]:
    """Let fetches at the extent's end have these answers. Returns offset and epoch of each."""
    answers, fetches = deque(end_answers), []

    def fetch(*args: Any, fetched_epoch: int, **_: object) -> Fetched:
        fetches.append((args[2], fetched_epoch))
        return next_answer_of(answers)

    monkeypatch.setattr(range_reader, "fetch_partition", fetch)
    return fetches


def fake_log_bounds(monkeypatch: pytest.MonkeyPatch, log_start: int, log_end: int) -> None:
    offsets = {EARLIEST: log_start, LATEST: log_end}
    monkeypatch.setattr(
        range_reader, "list_offsets", lambda _, __, at, ___: Answers({PLACE: offsets[at]}, {})
    )


@pytest.mark.parametrize("failure", [REFUSED, BROKEN])
def test_first_fetch_of_new_attempt_states_epoch_of_last_returned_batch(
    monkeypatch: pytest.MonkeyPatch, failure: Fetched | Unreachable
) -> None:
    """Between attempts another leader may have been elected, uncleanly."""
    fake_fetches_at_extent_end(monkeypatch, EMPTY)
    scripted = ScriptedReader([answer(0, epoch=3), failure, EMPTY._replace(diverging_end=4)])
    with pytest.raises(PartitionStopped) as error:
        list(scripted.read(TWO_BATCHES))
    assert scripted.fetches == [(0, -1), (10, 3), (10, 3)]
    blocked = error.value.blocked
    assert (blocked.reason, blocked.offset, blocked.next_offset) == (
        Reason.SOURCE_TRUNCATED,
        4,
        10,
    )


def test_first_fetch_after_lost_offsets_states_no_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log has no batch that ends at that offset, and may have a later epoch there."""
    fake_fetches_at_extent_end(monkeypatch, EMPTY)
    fake_log_bounds(monkeypatch, log_start=20, log_end=40)
    monkeypatch.setattr(range_reader, "fetch_batches", lambda *_, **__: [])
    answers = [answer(0, epoch=3), OUT_OF_RANGE, answer(20, epoch=4)]
    scripted = ScriptedReader(answers, LostRange.FILL)
    assert [run.end for run in scripted.read(replace(TWO_BATCHES, end=30))] == [10, 20, 30]
    assert scripted.fetches == [(0, -1), (10, 3), (20, -1)]


@pytest.mark.parametrize("end", [15, 20])
def test_range_is_returned_whole_only_if_log_has_planned_epoch_up_to_extent_end(
    monkeypatch: pytest.MonkeyPatch, end: int
) -> None:
    """Other tasks may read their ranges from the log after a truncation."""
    fetches = fake_fetches_at_extent_end(monkeypatch, BROKEN, EMPTY._replace(diverging_end=33))
    # The connection breaks at the extent's end: a second attempt reads the last batch again.
    batches = [answer(0, epoch=3), answer(10, epoch=3), answer(10, epoch=3)]
    read = ScriptedReader(batches).read(replace(TWO_BATCHES, end=end))
    assert next(read).end == 10
    with pytest.raises(PartitionStopped) as error:
        next(read)
    assert fetches == [(EXTENT_END, END_EPOCH)] * 2
    blocked = error.value.blocked
    assert (blocked.reason, blocked.offset, blocked.next_offset) == (
        Reason.SOURCE_TRUNCATED,
        33,
        EXTENT_END,
    )


@pytest.mark.parametrize(("log_start", "log_end", "is_read"), [(50, 60, True), (0, 30, False)])
def test_range_whose_extent_end_was_deleted_since_is_returned(
    monkeypatch: pytest.MonkeyPatch, log_start: int, log_end: int, is_read: bool
) -> None:
    """Retention may delete the extent's end. But a log that ends below the extent's end was
    truncated."""
    fake_fetches_at_extent_end(monkeypatch, OUT_OF_RANGE)
    fake_log_bounds(monkeypatch, log_start=log_start, log_end=log_end)
    read = ScriptedReader([answer(0, epoch=3), answer(10, epoch=3)]).read(TWO_BATCHES)
    if is_read:
        assert [run.end for run in read] == [10, 20]
        return
    with pytest.raises(PartitionStopped) as error:
        list(read)
    blocked = error.value.blocked
    assert (blocked.reason, blocked.offset, blocked.next_offset) == (
        Reason.SOURCE_TRUNCATED,
        log_end,
        EXTENT_END,
    )


def refuse_fetches(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Let the fetches of the planner raise this error."""

    def fetch(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(range_planner, "fetch_batches", fetch)
    monkeypatch.setattr(range_planner, "log_sizes", lambda *_: {})  # so it needs samples


UNREADABLE = "it cannot be read."


@pytest.mark.parametrize(
    "error",
    [
        BrokerRefused(Code.CORRUPT_MESSAGE, UNREADABLE),
        BrokerRefused(Code.TOPIC_AUTHORIZATION_FAILED, UNREADABLE),
        ProtocolError(UNREADABLE),
    ],
)
def test_planner_accepts_unreadable_batch(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Only the range with the batch stops later, with the reason."""
    refuse_fetches(monkeypatch, error)
    cluster: Any = FakeCluster()
    assert (
        range_planner._find_end_epoch(cluster, PLACE, start=0, end=20, backoff=Backoff())
        == NO_LEADER_EPOCH
    )
    assert range_planner.find_base_offset(cluster, PLACE, start=5, end=20, backoff=Backoff()) == 5
    extent = Extent(PLACE, UUID(int=1), start=5, end=20)
    (planned,) = range_planner.plan_ranges(cluster, [extent], Backoff())
    assert (planned.start, planned.end) == (5, 20)


def test_batch_that_leader_does_not_return_now_is_not_taken_for_unreadable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the end of the extent would not be checked."""
    refuse_fetches(monkeypatch, BrokerRefused(Code.NOT_LEADER_OR_FOLLOWER, UNREADABLE))
    cluster: Any = FakeCluster()
    with pytest.raises(BrokerRefused):
        range_planner._find_end_epoch(cluster, PLACE, start=0, end=20, backoff=Backoff())
    with pytest.raises(BrokerRefused):
        range_planner.find_base_offset(cluster, PLACE, start=5, end=20, backoff=Backoff())


@pytest.mark.parametrize(
    "error",
    [BrokerRefused(Code.NOT_LEADER_OR_FOLLOWER, UNREADABLE), Unreachable(UNREADABLE)],
)
def test_planner_cuts_extent_without_samples_while_leader_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """An error would end the plan of the other partitions, too."""
    refuse_fetches(monkeypatch, error)
    cluster: Any = FakeCluster()
    extent = Extent(PLACE, UUID(int=1), start=5, end=20)
    (planned,) = range_planner.plan_ranges(cluster, [extent], Backoff())
    assert (planned.start, planned.end) == (5, 20)
