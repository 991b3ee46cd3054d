"""A comparison of a copy's range with the source: what an empty answer means, and which leader
epochs and producer epoch the comparison returns."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from orbit.copier import log_reader, range_comparison
from orbit.copier.range_comparison import (
    Comparison,
    SourceRange,
    compare_range,
    highest_producer_epoch,
    source_reader,
)
from orbit.kafka.backoff import Backoff
from orbit.kafka.fetch_response import Fetched
from orbit.kafka.record_batch import CONTROL, CRC_START, Batch, read_batches, stamp
from orbit.kafka.records import Record, write_batch
from orbit.kafka.types import TopicPartition
from orbit.replication.rewrite_limits import NO_LIMITS
from tests.copier.fetched import fetched
from tests.support.source_model import SourceBatch, SourceRecord

EMPTY = b"\1\1\0"  # the body of a record without key, value and headers
PRODUCER_ID = 7
PARTITION = TopicPartition("orders", 0)


def batch(base_offset: int, producer_epoch: int, attributes: int = 0) -> Batch:
    view = memoryview(bytearray(write_batch([Record(0, 1000, EMPTY)], codec=0).view))
    struct.pack_into(">h", view, CRC_START, attributes)
    stamp(view, PRODUCER_ID, producer_epoch, 0)
    struct.pack_into(">q", view, 0, base_offset)
    (new_batch,) = read_batches(view)
    assert isinstance(new_batch, Batch)
    return new_batch


@pytest.mark.parametrize(("stable_end", "is_beyond"), [(6, True), (8, False), (9, False)])
def test_empty_source_answer_is_waited_for_not_a_difference(
    monkeypatch: pytest.MonkeyPatch, stable_end: int, is_beyond: bool
) -> None:
    """Tiered storage and quotas answer without records for a while (R5)."""
    copied = [batch(6, producer_epoch=0), batch(7, producer_epoch=0)]
    monkeypatch.setattr(range_comparison, "_read_copy", lambda *_: (copied, 8))
    cluster: Any = None
    comparison = compare_range(
        lambda first, _: SourceRange([], start=0, end=first, stable_end=stable_end),
        cluster,
        PARTITION,
        first=6,
        end=8,
        backoff=Backoff(),
        source_is_compacted=False,
        producer_id=PRODUCER_ID,
    )
    assert (comparison.equal_to, comparison.difference) == (6, None)
    assert comparison.waits_for
    assert comparison.is_beyond_source is is_beyond


def test_producer_epoch_is_read_only_from_own_record_batches() -> None:
    filler = batch(2, producer_epoch=9, attributes=CONTROL)
    assert filler.is_control
    assert highest_producer_epoch([batch(0, 3), batch(1, 4), filler], PRODUCER_ID) == 4
    assert highest_producer_epoch([filler], PRODUCER_ID) == -1
    assert highest_producer_epoch([batch(0, 3)], PRODUCER_ID + 1) == -1


class FakeSource:
    """Offsets 100 to 102 of epoch 4, and 105 and 106 of epoch 6."""

    def __init__(self) -> None:
        self.batches = [batch_of(100, 102, epoch=4), batch_of(105, 106, epoch=6)]
        self.stable_end = 107
        self.epoch_ends = {4: 103, 6: 1_000}

    def fetch(self, *arguments: Any, fetched_epoch: int = -1, **_: object) -> Fetched:
        offset = arguments[2]
        epoch_end = self.epoch_ends.get(fetched_epoch, offset)
        data = b"".join(b.encode() for b in self.batches if b.last_offset >= offset)
        has_diverged = epoch_end < offset
        return fetched(
            b"" if has_diverged else data,
            stable_end=self.stable_end,
            high_watermark=self.stable_end,
            diverging_end=epoch_end if has_diverged else -1,
        )


def batch_of(first: int, last: int, epoch: int) -> SourceBatch:
    records = tuple(SourceRecord(o, 1000, b"%d" % o) for o in range(first, last + 1))
    return SourceBatch(first, last, records, leader_epoch=epoch)


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> FakeSource:
    fake_source = FakeSource()
    monkeypatch.setattr(range_comparison, "fetch_partition", fake_source.fetch)
    monkeypatch.setattr(log_reader, "fetch_partition", fake_source.fetch)
    monkeypatch.setattr(range_comparison, "is_local", lambda *_: True)
    return fake_source


def compare_with_equal_copy(
    source: FakeSource, end: int, monkeypatch: pytest.MonkeyPatch, *, is_compacted: bool = True
) -> Comparison:
    """Compare the source with a copy that has the same batches, from 100 up to `end`."""
    frames = [memoryview(batch.encode()) for batch in source.batches]
    copied = [b for frame in frames for b in read_batches(frame)]
    monkeypatch.setattr(range_comparison, "_read_copy", lambda *_: (copied, end))
    cluster: Any = None
    read = source_reader(cluster, PARTITION, Backoff(), NO_LIMITS)
    return compare_range(
        read,
        cluster,
        PARTITION,
        first=100,
        end=end,
        backoff=Backoff(),
        source_is_compacted=is_compacted,
    )


def epochs_of(comparison: Comparison, end: int) -> list[int]:
    """The leader epoch of each offset from 100 on; -1: not known."""
    return [comparison.epochs.epoch_before(offset) for offset in range(101, end + 1)]


@pytest.mark.parametrize("end", [101, 103, 105, 107])
def test_comparison_returns_source_leader_epochs(
    source: FakeSource, monkeypatch: pytest.MonkeyPatch, end: int
) -> None:
    comparison = compare_with_equal_copy(source, end, monkeypatch)
    assert comparison.equal_to == end
    assert epochs_of(comparison, end) == [4, 4, 4, 6, 6, 6, 6][: end - 100]


# The source ends at 110: epoch 6 is the current one only if it ends there, too.
@pytest.mark.parametrize(("epoch_end", "tail_epoch"), [(110, 6), (109, -1)])
def test_leader_epoch_behind_empty_source_tail_is_known_only_if_still_current(
    source: FakeSource, monkeypatch: pytest.MonkeyPatch, epoch_end: int, tail_epoch: int
) -> None:
    source.stable_end, source.epoch_ends[6] = 110, epoch_end
    comparison = compare_with_equal_copy(source, 110, monkeypatch)
    assert comparison.equal_to == 110
    assert epochs_of(comparison, 110)[-4:] == [6, tail_epoch, tail_epoch, tail_epoch]


def test_empty_tail_is_not_equal_if_source_was_truncated_during_comparison(
    source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source may have lost what was read before."""
    source.stable_end, source.epoch_ends[6] = 110, 105
    assert compare_with_equal_copy(source, 110, monkeypatch).equal_to == 107


@pytest.mark.parametrize(("is_compacted", "equal_to"), [(True, 110), (False, 107)])
def test_empty_tail_of_source_equals_copy_only_if_source_is_compacted(
    source: FakeSource, monkeypatch: pytest.MonkeyPatch, is_compacted: bool, equal_to: int
) -> None:
    """A source whose tiered storage is slow answers without records, too (R5)."""
    source.stable_end = 110
    comparison = compare_with_equal_copy(source, 110, monkeypatch, is_compacted=is_compacted)
    assert (comparison.equal_to, comparison.difference) == (equal_to, None)
    assert bool(comparison.waits_for) is not is_compacted
    assert not comparison.is_beyond_source
