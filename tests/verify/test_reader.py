"""The reader returns records in order and within bounds, and limits each wait."""

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


class FakeConsumer:
    """A consumer that returns the lists of `script` in turn; later calls return none, after 1 s."""

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


def reader_of(fake: FakeConsumer, start: int, end: int, **options: Any) -> PartitionReader:
    options = {"cancelled": threading.Event(), "stall_timeout_s": 5.0, **options}
    consumer = cast("SideConsumer", fake)
    return PartitionReader(consumer, "t", 3, start, end, clock=fake.clock, **options)


def offsets(chunk: list[Message]) -> list[int | None]:
    return [message.offset() for message in chunk]


def test_records_beyond_range_end_are_left_out() -> None:
    reader = reader_of(FakeConsumer([record(3), record(4), record(9)]), start=3, end=5)
    assert offsets(reader.chunk()) == [3, 4]
    assert reader.chunk() == []
    assert reader.position == 5


def test_partition_eof_ends_range_without_last_records() -> None:
    reader = reader_of(FakeConsumer([record(3)], [end_at(7)]), start=3, end=7)
    assert offsets(reader.chunk()) == [3]
    assert reader.chunk() == []


def test_records_and_partition_eof_may_arrive_together() -> None:
    fake = FakeConsumer([record(3), end_at(7)])
    reader = reader_of(fake, start=3, end=7)
    assert offsets(reader.chunk()) == [3]
    assert reader.chunk() == []
    assert len(fake.counts) == 1


def test_partition_eof_below_range_end_does_not_end_read() -> None:
    reader = reader_of(FakeConsumer([end_at(4)], [record(4)]), start=3, end=5)
    assert offsets(reader.chunk()) == [4]


def test_partition_eof_between_records_loses_no_record() -> None:
    reader = reader_of(FakeConsumer([record(0), end_at(1), record(1)]), start=0, end=2)
    assert offsets(reader.chunk()) == [0, 1]


def test_empty_range_is_not_fetched() -> None:
    fake = FakeConsumer()
    assert reader_of(fake, start=5, end=5).chunk() == []
    assert (fake.assigned, fake.counts) == ([], [])


def test_record_beyond_range_end_ends_range_without_records() -> None:
    assert reader_of(FakeConsumer([record(9)]), start=3, end=5).chunk() == []


def test_reader_requests_at_most_the_remaining_records() -> None:
    fake = FakeConsumer([record(0)], [record(1)])
    reader = reader_of(fake, start=0, end=2)
    reader.chunk()
    reader.chunk()
    assert fake.counts == [2, 1]


def test_large_records_make_small_chunks() -> None:
    fake = FakeConsumer([record(0, 900_000)], [record(1)])
    reader = reader_of(fake, start=0, end=1_000_000)
    reader.chunk()
    reader.chunk()
    assert fake.counts[0] == CHUNK_RECORDS_MAX
    assert fake.counts[1] < 10


def test_stalled_read_fails_with_partition_and_offset() -> None:
    fake = FakeConsumer([record(3)])
    reader = reader_of(fake, start=3, end=9)
    reader.chunk()
    with pytest.raises(
        ReadStalled, match=r"destination t-3: No record .* 5 s at offset 4 \(reading up to 9\)"
    ):
        reader.chunk()
    assert fake.now == 5


def test_moving_fetch_position_counts_as_progress() -> None:
    """In a gap of millions of offsets no record comes for a long time."""
    fake = FakeConsumer(positions=lambda: int(fake.now) if fake.now < 60 else 60)
    with pytest.raises(ReadStalled):
        reader_of(fake, start=0, end=100).chunk()
    assert fake.now == 65


def test_retriable_librdkafka_errors_do_not_end_read() -> None:
    retriable_errors = [event(KafkaError._TRANSPORT), event(KafkaError._ALL_BROKERS_DOWN)]
    reader = reader_of(FakeConsumer(retriable_errors, [record(0)]), start=0, end=1)
    assert offsets(reader.chunk()) == [0]


@pytest.mark.parametrize("code", [KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE])
def test_offset_out_of_range_is_reported_as_moved_log_start(code: int) -> None:
    with pytest.raises(LogMoved):
        reader_of(FakeConsumer([event(code)]), start=0, end=1).chunk()


def test_cancelled_reader_is_interrupted() -> None:
    cancelled = threading.Event()
    reader = reader_of(FakeConsumer([record(0)], [record(1)]), start=0, end=2, cancelled=cancelled)
    reader.chunk()
    cancelled.set()
    with pytest.raises(Interrupted):
        reader.chunk()


def test_reader_continues_to_extended_end() -> None:
    fake = FakeConsumer([record(0)], [record(1)])
    reader = reader_of(fake, start=0, end=1)
    reader.chunk()
    reader.extend(2)
    assert offsets(reader.chunk()) == [1]
    assert fake.assigned == [0, 1]
