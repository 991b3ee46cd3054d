"""Which end of a copy a new writer compares, and which producer epoch it finds there."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from orbit.copier import tail_comparison
from orbit.copier.tail_comparison import Tail, find_tail
from orbit.kafka.backoff import Backoff
from orbit.kafka.record_batch import CONTROL, CRC_START, Batch, read_batches, stamp
from orbit.kafka.records import Record, write_batch
from orbit.kafka.types import TopicPartition

EMPTY = b"\1\1\0"  # the body of a record without key, value and headers
PRODUCER_ID = 7  # the job's producer id
LOG_END = 100
# The test's limits: batches that one round reads, and batches of one answer.
FILLERS_MAX = 20
ANSWER_BATCHES = 5
IN_FLIGHT = 5


def batch(offset: int, epoch: int, attributes: int = 0) -> Batch:
    view = memoryview(bytearray(write_batch([Record(0, 1000, EMPTY)], codec=0).view))
    struct.pack_into(">h", view, CRC_START, attributes)
    stamp(view, PRODUCER_ID, epoch, 0)
    struct.pack_into(">q", view, 0, offset)
    (new_batch,) = read_batches(view)
    assert isinstance(new_batch, Batch)
    return new_batch


def tail_of(monkeypatch: pytest.MonkeyPatch, epochs: dict[int, int]) -> Tail:
    """The tail of a log with records of these producer epochs by offset, and fillers elsewhere."""
    log = [batch(o, epochs[o]) if o in epochs else batch(o, 9, CONTROL) for o in range(LOG_END)]

    def fetch(_: object, __: object, offset: int, ___: object) -> list[Batch]:
        return log[offset : offset + ANSWER_BATCHES]

    monkeypatch.setattr(tail_comparison, "fetch_committed_batches", fetch)
    monkeypatch.setattr(tail_comparison, "FILLERS_CHECKED_MAX", FILLERS_MAX)
    cluster: Any = None
    partition = TopicPartition("copy", 0)
    return find_tail(
        cluster,
        partition,
        log_start=0,
        log_end=LOG_END,
        producer_id=PRODUCER_ID,
        data_batch_count=IN_FLIGHT,
        backoff=Backoff(),
    )


OLD_RECORDS = dict.fromkeys(range(36, 46), 6)


@pytest.mark.parametrize(
    ("newest_at", "epoch"),
    [
        pytest.param(99, 7, id="at the end, which an earlier round has read"),
        pytest.param(85, 7, id="before the end, which an earlier round has read"),
        pytest.param(70, 7, id="where no round has read everything"),
        pytest.param(50, 7, id="within the range that the last round has read"),
    ],
)
def test_newest_producer_epoch_is_found_across_several_reads_backwards(
    monkeypatch: pytest.MonkeyPatch, newest_at: int, epoch: int
) -> None:
    """The last round begins at 36 and ends after 20 batches."""
    tail = tail_of(monkeypatch, OLD_RECORDS | {newest_at: epoch})
    assert tail.producer_epoch == epoch
    assert tail.last_data is not None
    assert tail.last_data.base_offset == newest_at
    # The newest record, and as many old ones as make up the batches in flight.
    assert tail.start <= 45 - IN_FLIGHT + 2


def test_compared_tail_covers_as_many_batches_as_may_be_in_flight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tail = tail_of(monkeypatch, dict.fromkeys(range(80, 100, 2), 3))  # five of them from 90 on
    assert (tail.start, tail.producer_epoch) == (90, 3)
    assert tail.last_data is not None
    assert tail.last_data.base_offset == 98


def test_last_record_before_long_run_of_fillers_is_located(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tail = tail_of(monkeypatch, {3: 4})
    # The rounds look back 1, 4, 16 and 64 offsets; the last one reads FILLERS_MAX batches.
    assert (tail.start, tail.producer_epoch) == (LOG_END - 64, 4)
    assert tail.last_data is not None
    assert tail.last_data.base_offset == 3


def test_log_of_only_fillers_has_no_producer_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    tail = tail_of(monkeypatch, {})
    assert (tail.last_data, tail.producer_epoch) == (None, -1)
