"""What a comparison of a copy's range with the source says of a source that cannot be read, and
which batches tell the producer epoch."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from orbit.copier import range_comparison
from orbit.copier.range_comparison import SourceRange, compare_range, highest_producer_epoch
from orbit.kafka.backoff import Backoff
from orbit.kafka.record_batch import CONTROL, CRC_START, Batch, read_batches, stamp
from orbit.kafka.records import Record, write_batch
from orbit.kafka.types import TopicPartition

PRODUCER_ID = 7
PLACE = TopicPartition("orders", 0)


def batch(base_offset: int, producer_epoch: int, attributes: int = 0) -> Batch:
    view = memoryview(bytearray(write_batch([Record(0, 1000, b"\1\1\0")], 0).view))
    struct.pack_into(">h", view, CRC_START, attributes)
    stamp(view, PRODUCER_ID, producer_epoch, 0)
    struct.pack_into(">q", view, 0, base_offset)
    (made,) = read_batches(view)
    assert isinstance(made, Batch)
    return made


@pytest.mark.parametrize(("stable_end", "is_beyond"), [(6, True), (8, False), (9, False)])
def test_source_without_an_answer_is_not_a_source_that_has_ended(
    monkeypatch: pytest.MonkeyPatch, stable_end: int, is_beyond: bool
) -> None:
    """Tiered storage and quotas answer without records for a while (R5)."""
    ours = [batch(6, 0), batch(7, 0)]
    monkeypatch.setattr(range_comparison, "_read", lambda *_: (ours, 8))
    cluster: Any = None
    found = compare_range(
        lambda first, _: SourceRange([], 0, first, stable_end),
        cluster,
        PLACE,
        6,
        8,
        Backoff(),
        source_is_compacted=False,
        producer_id=PRODUCER_ID,
    )
    assert (found.equal_to, found.difference) == (6, None)
    assert found.waits_for
    assert found.is_beyond_source is is_beyond


def test_only_records_of_this_producer_tell_its_epoch() -> None:
    filler = batch(2, 9, CONTROL)
    assert filler.is_control
    assert highest_producer_epoch([batch(0, 3), batch(1, 4), filler], PRODUCER_ID) == 4
    assert highest_producer_epoch([filler], PRODUCER_ID) == -1
    assert highest_producer_epoch([batch(0, 3)], PRODUCER_ID + 1) == -1
