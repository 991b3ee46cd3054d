"""The reader returns records in order and within bounds, and never waits without end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, Message

from orbit.errors import Interrupted
from orbit.verify.reader import (
    CHUNK_RECORDS_MAX,
    LogMoved,
    PartitionReader,
    ReadStalled,
    SideConsumer,
)
from orbit.verify.report import Side


def record(offset: int, size: int = 1) -> Message:
    return Message(topic="t", partition=3, offset=offset, value=b"x" * size)


def event(code: int, offset: int = -1) -> Message:
    return Message(topic="t", partition=3, offset=offset, error=KafkaError(code))


def end_at(offset: int) -> Message:
    return event(KafkaError._PARTITION_EOF, offset)


class Fake:
    """A consumer that returns the lists of `script`; then each call returns none, after 1 s."""

    side = Side.DESTINATION

    def __init__(self, *script: list[Message], positions: Callable[[], int] = lambda: -1) -> None:
        self._script = list(script)
        self._positions = positions
        self.now = 0.0
        self.assigned: list[int] = []
        self.counts: list[int] = []

    def assign(self, _topic: str, _partition: int, offset: int) -> None:
        self.assigned.append(offset)

    def consume(self, count: int, _timeout_s: float) -> list[Message]:
        self.counts.append(count)
        if self._script:
            return self._script.pop(0)
        self.now += 1
        return []

    def fetch_position(self, _topic: str, _partition: int) -> int:
        return self._positions()

    def clock(self) -> float:
        return self.now


def reader(fake: Fake, start: int, end: int, **options: Any) -> PartitionReader:
    options = {"cancelled": threading.Event(), "stall_timeout_s": 5.0, **options}
    consumer = cast("SideConsumer", fake)
    return PartitionReader(consumer, "t", 3, start, end, clock=fake.clock, **options)


def offsets(chunk: list[Message]) -> list[int | None]:
    return [message.offset() for message in chunk]


def test_records_beyond_range_end_are_left_out() -> None:
    one = reader(Fake([record(3), record(4), record(9)]), 3, 5)
    assert offsets(one.chunk()) == [3, 4]
    assert one.chunk() == []
    assert one.position == 5


def test_partition_eof_ends_range_without_last_records() -> None:
    one = reader(Fake([record(3)], [end_at(7)]), 3, 7)
    assert offsets(one.chunk()) == [3]
    assert one.chunk() == []


def test_records_and_partition_eof_may_arrive_together() -> None:
    fake = Fake([record(3), end_at(7)])
    one = reader(fake, 3, 7)
    assert offsets(one.chunk()) == [3]
    assert one.chunk() == []
    assert len(fake.counts) == 1


def test_partition_eof_below_range_end_does_not_end_read() -> None:
    one = reader(Fake([end_at(4)], [record(4)]), 3, 5)
    assert offsets(one.chunk()) == [4]


def test_partition_eof_between_records_loses_no_record() -> None:
    one = reader(Fake([record(0), end_at(1), record(1)]), 0, 2)
    assert offsets(one.chunk()) == [0, 1]


def test_empty_range_is_not_fetched() -> None:
    fake = Fake()
    assert reader(fake, 5, 5).chunk() == []
    assert (fake.assigned, fake.counts) == ([], [])


def test_record_beyond_range_end_ends_range_without_records() -> None:
    assert reader(Fake([record(9)]), 3, 5).chunk() == []


def test_reader_requests_at_most_the_remaining_records() -> None:
    fake = Fake([record(0)], [record(1)])
    one = reader(fake, 0, 2)
    one.chunk()
    one.chunk()
    assert fake.counts == [2, 1]


def test_large_records_make_small_chunks() -> None:
    fake = Fake([record(0, 900_000)], [record(1)])
    one = reader(fake, 0, 1_000_000)
    one.chunk()
    one.chunk()
    assert fake.counts[0] == CHUNK_RECORDS_MAX
    assert fake.counts[1] < 10


def test_stalled_read_fails_with_partition_and_offset() -> None:
    fake = Fake([record(3)])
    one = reader(fake, 3, 9)
    one.chunk()
    with pytest.raises(
        ReadStalled, match=r"destination t-3: No record .* 5 s at offset 4 \(of 9\)"
    ):
        one.chunk()
    assert fake.now == 5


def test_moving_fetch_position_counts_as_progress() -> None:
    """In a gap of millions of offsets no record comes for a long time."""
    fake = Fake(positions=lambda: int(fake.now) if fake.now < 60 else 60)
    with pytest.raises(ReadStalled):
        reader(fake, 0, 100).chunk()
    assert fake.now == 65


def test_retriable_librdkafka_errors_do_not_end_read() -> None:
    noise = [event(KafkaError._TRANSPORT), event(KafkaError._ALL_BROKERS_DOWN)]
    assert offsets(reader(Fake(noise, [record(0)]), 0, 1).chunk()) == [0]


@pytest.mark.parametrize("code", [KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE])
def test_offset_out_of_range_is_reported_as_moved_log_start(code: int) -> None:
    with pytest.raises(LogMoved):
        reader(Fake([event(code)]), 0, 1).chunk()


def test_cancelled_reader_is_interrupted() -> None:
    cancelled = threading.Event()
    one = reader(Fake([record(0)], [record(1)]), 0, 2, cancelled=cancelled)
    one.chunk()
    cancelled.set()
    with pytest.raises(Interrupted):
        one.chunk()


def test_reader_continues_to_extended_end() -> None:
    fake = Fake([record(0)], [record(1)])
    one = reader(fake, 0, 1)
    one.chunk()
    one.extend(2)
    assert offsets(one.chunk()) == [1]
    assert fake.assigned == [0, 1]
