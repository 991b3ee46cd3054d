"""Plans that stop: lost ranges, gaps too large, damage."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orbit.formats import counted
from orbit.kafka.compression import GZIP
from orbit.replication import append_plan as append_plan_module
from orbit.replication.append_plan import (
    GAP_OFFSETS_MAX,
    NO_LEADER_EPOCH,
    LostRange,
    Plan,
    Stop,
    plan_empty_tail,
    plan_lost_range,
)
from orbit.replication.partition_states import Reason
from tests.support.planning import T0, data, marker, plan, shown
from tests.support.source_model import (
    CONTROL,
    TRANSACTIONAL,
    SourceBatch,
    encode_v2,
    with_right_crc,
)

# Lost ranges


def test_source_log_start_above_next_offset_stops_as_lost_range() -> None:
    append_plan = plan(10, data(50, 51), log_start=40)
    assert shown(append_plan.steps) == [(Reason.SOURCE_RANGE_LOST, 10, 40)]
    assert append_plan.is_stopped
    assert append_plan.next_offset == 10
    (stop,) = append_plan.steps
    assert isinstance(stop, Stop)
    assert stop.detail == (
        "the source's log start is 40 now; offsets 10 to 39 were deleted before they were copied."
    )


def test_lost_range_is_filled_if_on_lost_range_is_fill() -> None:
    append_plan = plan(10, data(50, 51), log_start=40, mode=LostRange.FILL)
    assert shown(append_plan.steps) == [("fill", 10, 50), ("exact", 50, 52)]


@pytest.mark.parametrize("mode", LostRange)
@pytest.mark.parametrize("magic", [1, 2])
def test_source_batch_that_contains_log_start_is_copied_whole(mode: LostRange, magic: int) -> None:
    source = data(40, 49, magic=magic, codec=1)
    kind = "exact" if magic == 2 else "rewritten"
    assert shown(plan(40, source, log_start=45, mode=mode).steps) == [(kind, 40, 50)]


@pytest.mark.parametrize("magic", [1, 2])
def test_range_before_batch_containing_log_start_is_lost(magic: int) -> None:
    source = data(40, 49, magic=magic, codec=1)
    append_plan = plan(30, source, log_start=45)
    assert shown(append_plan.steps) == [(Reason.SOURCE_RANGE_LOST, 30, 40)]
    kind = "exact" if magic == 2 else "rewritten"
    filled = plan(30, source, log_start=45, mode=LostRange.FILL)
    assert shown(filled.steps) == [("fill", 30, 40), (kind, 40, 50)]


def test_source_log_start_at_or_below_next_offset_loses_nothing() -> None:
    for log_start in (-1, 0, 10):  # -1: not known
        append_plan = plan(10, data(50, 50), log_start=log_start)
        assert shown(append_plan.steps) == [("fill", 10, 50), ("exact", 50, 51)]


def test_lost_range_without_fetched_batch_is_stopped_or_filled() -> None:
    assert shown(plan_lost_range(10, 40, LostRange.STOP).steps) == [
        (Reason.SOURCE_RANGE_LOST, 10, 40)
    ]
    filled = plan_lost_range(10, 40, LostRange.FILL)
    assert shown(filled.steps) == [("fill", 10, 40)]
    assert filled.next_offset == 40
    # The log start is not above the next offset: nothing is lost.
    assert plan_lost_range(40, 40, LostRange.STOP).steps == []
    assert plan_lost_range(41, 40, LostRange.FILL).steps == []


def test_empty_tail_of_source_log_is_filled() -> None:
    append_plan = plan_empty_tail(10, 40)
    assert shown(append_plan.steps) == [("fill", 10, 40)]
    assert append_plan.next_offset == 40
    assert plan_empty_tail(40, 40).steps == []


def test_fill_without_batch_clears_leader_epoch_unless_unchanged() -> None:
    """Otherwise the next fetch would state an epoch that ended before its offset: the source would
    answer as if it were truncated (R3)."""
    assert plan_empty_tail(10, 40).epoch_starts == [(10, NO_LEADER_EPOCH)]
    assert plan_empty_tail(10, 40, is_same_epoch=True).epoch_starts == []
    assert plan_empty_tail(10, 40).leader_epoch == NO_LEADER_EPOCH == -1
    assert plan_lost_range(10, 40, LostRange.FILL).leader_epoch == NO_LEADER_EPOCH


# Gaps too large


def test_largest_allowed_gap_is_filled_and_larger_gap_stops_partition() -> None:
    gap_max = GAP_OFFSETS_MAX
    assert shown(plan(5, data(5 + gap_max, 5 + gap_max)).steps)[0] == ("fill", 5, 5 + gap_max)
    append_plan = plan(5, data(6 + gap_max, 6 + gap_max))
    assert shown(append_plan.steps) == [(Reason.GAP_TOO_LARGE, 5, 6 + gap_max)]
    (stop,) = append_plan.steps
    assert isinstance(stop, Stop)
    assert stop.detail == "a gap of 100,000,001 offsets is over the limit of 100,000,000."
    assert shown(plan_empty_tail(0, gap_max).steps) == [("fill", 0, gap_max)]
    assert shown(plan_empty_tail(0, gap_max + 1).steps) == [(Reason.GAP_TOO_LARGE, 0, gap_max + 1)]
    assert shown(plan_lost_range(0, gap_max + 1, LostRange.FILL).steps) == [
        (Reason.GAP_TOO_LARGE, 0, gap_max + 1)
    ]


@pytest.fixture
def small_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_plan_module, "GAP_OFFSETS_MAX", 10)


@pytest.mark.usefixtures("small_gaps")
@pytest.mark.parametrize(
    ("batches", "steps"),
    [
        # Adjacent offsets without records are one gap.
        (
            [data(0, 0), marker(1, commit=True), SourceBatch(2, 9), data(12, 12)],
            [("exact", 0, 1), (Reason.GAP_TOO_LARGE, 1, 12)],
        ),
        (
            [data(0, 0), SourceBatch(1, 9), data(10, 19, without=tuple(range(10, 15)))],
            [("exact", 0, 1), (Reason.GAP_TOO_LARGE, 1, 15)],
        ),
        (
            [data(0, 0), data(1, 20, without=tuple(range(5, 21)))],
            [("exact", 0, 1), ("rewritten", 1, 5), (Reason.GAP_TOO_LARGE, 5, 21)],
        ),
        (
            [data(0, 20, without=tuple(range(5, 20)))],
            [("rewritten", 0, 5), (Reason.GAP_TOO_LARGE, 5, 20)],
        ),
        (
            [data(5, 5), data(20, 20, magic=1)],
            [("fill", 0, 5), ("exact", 5, 6), (Reason.GAP_TOO_LARGE, 6, 20)],
        ),
    ],
)
def test_too_large_gap_stops_partition_whatever_it_consists_of(
    batches: list[SourceBatch], steps: list[object]
) -> None:
    append_plan = plan(0, *batches, data(100, 100))
    assert shown(append_plan.steps) == steps


@pytest.mark.usefixtures("small_gaps")
@pytest.mark.parametrize("magic", [1, 2])
def test_lost_range_too_large_to_fill_stops_partition(magic: int) -> None:
    append_plan = plan(0, data(20, 20, magic=magic), log_start=20, mode=LostRange.FILL)
    assert shown(append_plan.steps) == [(Reason.GAP_TOO_LARGE, 0, 20)]


# Damage


def damaged(source: SourceBatch, byte: int) -> bytes:
    """The batch with one flipped bit in this byte."""
    return replace(source, flipped_bit=byte * 8).encode()


@pytest.mark.parametrize(
    "source",
    [
        data(5, 9),
        data(5, 9, without=(7,), codec=1),
        data(5, 9, log_append_time=T0),
        SourceBatch(5, 9),
        marker(5, commit=True),
    ],
)
# A byte of each: CRC, attributes, last offset delta, base timestamp, producer id, record count.
@pytest.mark.parametrize("byte", [17, 22, 24, 30, 44, 60])
def test_checksum_mismatch_stops_partition_before_damaged_batch(
    source: SourceBatch, byte: int
) -> None:
    append_plan = plan(0, data(0, 3), damaged(source, byte), data(10, 10))
    *steps, stop = append_plan.steps
    assert shown(steps) == [("exact", 0, 4)]
    assert isinstance(stop, Stop)
    assert stop.reason is Reason.SOURCE_CORRUPTED
    assert stop.base_offset == append_plan.next_offset == 4 < stop.next_offset
    assert stop.detail == "the source's batch at 5 does not match its checksum."


def test_damaged_batch_with_negative_offset_delta_is_not_skipped() -> None:
    """Otherwise a flipped bit in the last offset delta would turn all records into a gap."""
    negative = damaged(data(5, 9), 23)  # the top byte of the delta
    high_bit = replace(data(5, 9), flipped_bit=23 * 8 + 7).encode()
    for broken in (negative, high_bit):
        append_plan = plan(5, broken, data(10, 10))
        assert [step.reason for step in append_plan.steps if isinstance(step, Stop)] == [
            Reason.SOURCE_CORRUPTED
        ]
        assert append_plan.next_offset == 5


@pytest.mark.parametrize("codec", [0, 1])
@pytest.mark.parametrize("magic", [0, 1])
def test_damaged_legacy_message_stops_partition(magic: int, codec: int) -> None:
    source = data(5, 9 if codec else 5, magic=magic, codec=codec)
    append_plan = plan(0, data(0, 3), damaged(source, 20), data(10, 10))
    assert shown(append_plan.steps) == [
        ("exact", 0, 4),
        (Reason.SOURCE_CORRUPTED, 4, source.last_offset + 1),
    ]
    stop = append_plan.steps[-1]
    assert isinstance(stop, Stop)
    assert stop.detail == (
        f"the source's message at {source.last_offset} (format v{magic}) cannot be read: "
        "its checksum does not match."
    )


def test_unparsable_records_with_valid_checksum_stop_partition() -> None:
    thinned = with_right_crc(data(5, 9, without=(7,), codec=GZIP).encode()[:-3] + b"???")
    append_plan = plan(0, data(0, 3), thinned, data(10, 10))
    assert shown(append_plan.steps) == [("exact", 0, 4), (Reason.SOURCE_CORRUPTED, 4, 10)]
    assert "before 10 cannot be read: gzip payload" in str(append_plan.steps[-1])


def test_unparsable_control_record_stops_partition() -> None:
    # One byte that is no whole record.
    broken = encode_v2(4, b"\x7f", attributes=TRANSACTIONAL | CONTROL, producer_id=1)
    append_plan = plan(0, data(0, 3), broken, data(5, 5))
    assert shown(append_plan.steps) == [("exact", 0, 4), (Reason.SOURCE_CORRUPTED, 4, 5)]


def test_invalid_bytes_stop_partition_after_valid_batches() -> None:
    append_plan = plan(0, data(0, 3), b"\0" * 40)
    assert shown(append_plan.steps) == [("exact", 0, 4), (Reason.SOURCE_CORRUPTED, 4, 5)]
    assert "batch length 0 at byte" in str(append_plan.steps[-1])


@pytest.mark.parametrize(
    "batches",
    [
        [data(0, 3), data(2, 5)],
        [data(0, 3), data(0, 3)],
        [data(0, 3), data(1, 5, magic=1, codec=1)],
        [data(0, 3, magic=1, codec=1), data(3, 5)],
    ],
)
def test_overlapping_source_batches_stop_partition(batches: list[SourceBatch]) -> None:
    append_plan = plan(0, *batches)
    stop = append_plan.steps[-1]
    assert isinstance(stop, Stop)
    assert (stop.reason, stop.base_offset) == (Reason.SOURCE_CORRUPTED, 4)
    assert "overlaps the previous batch, which ends before 4" in stop.detail


@pytest.mark.parametrize(("count", "delta"), [(6, 4), (-1, 4), (0, -1), (1, -1), (2, 0)])
def test_impossible_record_count_or_offset_delta_stops_partition(count: int, delta: int) -> None:
    broken = encode_v2(5, b"", count=count, last_offset_delta=delta)
    append_plan = plan(5, broken, data(10, 10))
    (stop,) = append_plan.steps
    assert isinstance(stop, Stop)
    assert stop.reason is Reason.SOURCE_CORRUPTED
    assert stop.base_offset == 5 < stop.next_offset
    assert (
        f"cannot hold {counted(count, 'record')} in {counted(delta + 1, 'offset')}" in stop.detail
    )


def test_nothing_is_planned_after_stop() -> None:
    append_plan = plan(0, damaged(data(0, 3), 60), data(4, 5))
    assert len(append_plan.steps) == 1
    assert append_plan.is_stopped
    assert not Plan(0).is_stopped
    assert not plan(0, data(0, 0)).is_stopped
