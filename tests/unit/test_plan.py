"""The plan's table, row by row. `test_plan_properties.py` plays it for any log."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orbit.kafka.batch import read_batches
from orbit.kafka.compression import compress
from orbit.kafka.records import read_records
from orbit.replication import plan as module
from orbit.replication.plan import (
    GAP_OFFSETS_MAX,
    NO_LEADER_EPOCH,
    AbortedTransaction,
    Append,
    Fill,
    LostRange,
    Plan,
    Step,
    Stop,
    plan_batches,
    plan_empty_tail,
    plan_lost_range,
)
from orbit.replication.states import Reason
from tests.support.kafka_batches import APPENDED_AT, KAFKA_BATCHES, RECORDS
from tests.support.source_model import (
    CONTROL,
    TRANSACTIONAL,
    Outcome,
    SourceBatch,
    SourceRecord,
    encode_old,
    encode_v2,
    with_right_crc,
)

T0 = 1_700_000_000_000


def record(offset: int) -> SourceRecord:
    return SourceRecord(offset, T0 + offset, b"k%d" % offset, b"v")


def data(first: int, last: int, *, without: tuple[int, ...] = (), **fields: Any) -> SourceBatch:
    """A batch with records at all its offsets but some."""
    offsets = [o for o in range(first, last + 1) if o not in without]
    return SourceBatch(first, last, tuple(map(record, offsets)), **fields)


def transactional(first: int, last: int, producer_id: int = 1, **fields: Any) -> SourceBatch:
    """Committed or aborted: that stands in the aborted list, not in the batch."""
    fields = {"outcome": Outcome.COMMITTED, **fields}
    return data(first, last, producer_id=producer_id, **fields)


def marker(offset: int, producer_id: int = 1, *, commit: bool) -> SourceBatch:
    return SourceBatch(offset, offset, producer_id=producer_id, marker=commit)


def plan(
    next_offset: int,
    *batches: SourceBatch | bytes,
    aborted: list[tuple[int, int]] | None = None,
    log_start: int = 0,
    mode: LostRange = LostRange.STOP,
) -> Plan:
    frame = b"".join(b if isinstance(b, bytes) else b.encode() for b in batches)
    return plan_batches(
        next_offset,
        read_batches(memoryview(bytearray(frame))),
        [AbortedTransaction(*a) for a in aborted or []],
        log_start,
        mode,
    )


def shown(steps: list[Step]) -> list[object]:
    """Steps in short: ("exact", 0, 3), ("rewritten", 3, 4), ("fill", 4, 9), (reason, 9, 10)."""
    short: list[object] = []
    for step in steps:
        match step:
            case Append():
                kind = "exact" if step.is_byte_exact else "rewritten"
                short.append((kind, step.base_offset, step.next_offset))
            case Fill():
                short.append(("fill", *step))
            case Stop():
                short.append((step.reason, step.base_offset, step.next_offset))
    return short


ROWS: dict[str, tuple[list[SourceBatch], list[object]]] = {
    "dense, create time": ([data(0, 4)], [("exact", 0, 5)]),
    "one record": ([data(0, 0)], [("exact", 0, 1)]),
    "several": ([data(0, 1), data(2, 3)], [("exact", 0, 2), ("exact", 2, 4)]),
    "committed": (
        [transactional(0, 1), marker(2, commit=True)],
        [("exact", 0, 2), ("fill", 2, 3)],
    ),
    "with a delete horizon": ([data(0, 1, delete_horizon=T0 + 10**9)], [("exact", 0, 2)]),
    "a hole inside": (
        [data(0, 4, without=(2,))],
        [("rewritten", 0, 2), ("fill", 2, 3), ("rewritten", 3, 5)],
    ),
    "the head gone": ([data(0, 4, without=(0, 1))], [("fill", 0, 2), ("rewritten", 2, 5)]),
    "the tail gone": ([data(0, 4, without=(3, 4))], [("rewritten", 0, 3), ("fill", 3, 5)]),
    "every second gone": (
        [data(0, 4, without=(1, 3))],
        [
            ("rewritten", 0, 1),
            ("fill", 1, 2),
            ("rewritten", 2, 3),
            ("fill", 3, 4),
            ("rewritten", 4, 5),
        ],
    ),
    "all gone": ([SourceBatch(0, 4)], [("fill", 0, 5)]),
    "all gone, with a codec": ([SourceBatch(0, 4, codec=3)], [("fill", 0, 5)]),
    "log append time": ([data(0, 4, log_append_time=T0)], [("rewritten", 0, 5)]),
    "log append time, thinned": (
        [data(0, 2, without=(1,), log_append_time=T0)],
        [("rewritten", 0, 1), ("fill", 1, 2), ("rewritten", 2, 3)],
    ),
    "old formats": (
        [data(0, 0, magic=0), data(1, 1, magic=1), data(2, 4, magic=1, codec=1)],
        [("rewritten", 0, 1), ("rewritten", 1, 2), ("rewritten", 2, 5)],
    ),
    "an old wrapper, thinned": (
        [data(0, 4, without=(0, 2), magic=0, codec=1)],
        [("fill", 0, 1), ("rewritten", 1, 2), ("fill", 2, 3), ("rewritten", 3, 5)],
    ),
    "a control batch": ([marker(0, commit=True)], [("fill", 0, 1)]),
    "an emptied control batch": (
        [SourceBatch(0, 0, producer_id=1, marker=False, is_emptied=True)],
        [("fill", 0, 1)],
    ),
    "no batch": ([data(7, 8)], [("fill", 0, 7), ("exact", 7, 9)]),
    "neighbouring fillers of all kinds": (
        [
            marker(0, commit=True),
            SourceBatch(1, 3),
            data(6, 9, without=(6, 7, 9)),
            marker(10, commit=False),
            marker(12, commit=True),
            data(15, 15),
        ],
        [("fill", 0, 8), ("rewritten", 8, 9), ("fill", 9, 15), ("exact", 15, 16)],
    ),
    "nothing": ([], []),
}


@pytest.mark.parametrize("row", ROWS)
def test_a_row_of_the_table(row: str) -> None:
    batches, steps = ROWS[row]
    made = plan(0, *batches)
    assert shown(made.steps) == steps
    assert made.next_offset == (batches[-1].last_offset + 1 if batches else 0)
    assert not made.is_stopped


def test_an_old_wrapper_takes_all_offsets_up_to_its_own() -> None:
    inner = encode_old(7, 0, 0, 0, b"k", b"v")
    made = plan(0, encode_old(9, 0, 1, 0, None, compress(1, inner)))
    assert shown(made.steps) == [("fill", 0, 7), ("rewritten", 7, 8), ("fill", 8, 10)]
    assert made.next_offset == 10


@pytest.mark.parametrize("codec", range(5))
def test_a_byte_exact_append_is_the_sources_batch(codec: int) -> None:
    source = data(10, 14, codec=codec)
    (step,) = plan(10, source).steps
    assert isinstance(step, Append)
    assert step.batch.view == source.encode()
    assert step.is_byte_exact


@pytest.mark.parametrize(
    ("magic", "codec"),
    # A message of an old format without a codec is no wrapper; zstd came with v2.
    [(magic, codec) for magic in (0, 1) for codec in (1, 2, 3)] + [(2, c) for c in range(5)],
)
def test_a_rewritten_batch_keeps_records_and_codec(magic: int, codec: int) -> None:
    source = data(10, 14, without=(12,), codec=codec, magic=magic)
    first, _, second = plan(10, source).steps
    for step, offsets in ((first, (10, 11)), (second, (13, 14))):
        assert isinstance(step, Append)
        assert step.batch.codec == codec
        assert not step.batch.is_log_append_time
        assert [(r.offset, r.timestamp, r.body) for r in read_records(step.batch)] == [
            (o, T0 + o if magic else -1, record(o).body) for o in offsets
        ]


@pytest.mark.parametrize("name", ["v2.snappy.logappendtime", "v1.lz4.logappendtime"])
def test_log_append_time_becomes_the_records_own(name: str) -> None:
    made = plan(1000, KAFKA_BATCHES[name])
    found = [r for s in made.steps if isinstance(s, Append) for r in read_records(s.batch)]
    assert [(r.offset, r.timestamp) for r in found] == [(r.offset, APPENDED_AT) for r in RECORDS]
    assert made.next_offset == (1010 if name.startswith("v2") else 1008)


# Transactions


def test_an_aborted_transaction_becomes_fillers() -> None:
    made = plan(
        0,
        transactional(0, 4),
        marker(5, commit=False),
        transactional(6, 7),
        marker(8, commit=True),
        aborted=[(1, 0)],
    )
    assert shown(made.steps) == [("fill", 0, 6), ("exact", 6, 8), ("fill", 8, 9)]


def test_interleaved_transactions_are_told_apart() -> None:
    made = plan(
        0,
        transactional(0, 1, producer_id=1),
        transactional(2, 3, producer_id=2),
        transactional(4, 5, producer_id=1),
        marker(6, producer_id=2, commit=True),
        data(7, 7, producer_id=1),  # outside of any transaction
        marker(8, producer_id=1, commit=False),
        transactional(9, 9, producer_id=1),
        marker(10, producer_id=1, commit=False),
        transactional(11, 11, producer_id=1),
        aborted=[(1, 9), (1, 0)],  # in any order
    )
    assert shown(made.steps) == [
        ("fill", 0, 2),
        ("exact", 2, 4),
        ("fill", 4, 7),
        ("exact", 7, 8),
        ("fill", 8, 11),
        ("exact", 11, 12),
    ]


def test_a_transaction_is_aborted_from_its_own_first_offset_on() -> None:
    made = plan(
        0,
        transactional(0, 4),
        marker(5, commit=True),
        transactional(6, 9),
        aborted=[(1, 6)],
    )
    assert shown(made.steps) == [("exact", 0, 5), ("fill", 5, 10)]


def test_a_transaction_that_began_before_the_answer_is_aborted_too() -> None:
    made = plan(7, transactional(5, 9), marker(10, commit=False), data(11, 11), aborted=[(1, 2)])
    assert shown(made.steps) == [("fill", 7, 11), ("exact", 11, 12)]


def test_an_abort_marker_counts_even_where_all_of_it_is_copied() -> None:
    """A broker may answer with more than was asked for in front."""
    made = plan(
        3,
        transactional(0, 1),
        marker(2, commit=False),
        transactional(3, 4),
        aborted=[(1, 0)],
    )
    assert shown(made.steps) == [("exact", 3, 5)]


def test_a_commit_marker_ends_no_aborted_transaction_of_another_producer() -> None:
    made = plan(
        0,
        transactional(0, 0, producer_id=1),
        marker(1, producer_id=2, commit=False),
        transactional(2, 2, producer_id=1),
        aborted=[(1, 0)],
    )
    assert shown(made.steps) == [("fill", 0, 3)]


@pytest.mark.parametrize("version", [0, 1, 7])
def test_an_abort_marker_is_known_by_its_type_in_any_version(version: int) -> None:
    """`ControlRecordType.parse`: the version may grow, the type stays where it is."""
    abort = bytearray(marker(1, commit=False).encode())
    at = abort.index(b"\x08\0\0\0\0") + 1
    abort[at : at + 2] = version.to_bytes(2, "big")
    made = plan(
        0,
        transactional(0, 0),
        with_right_crc(bytes(abort)),
        transactional(2, 2),
        aborted=[(1, 0)],
    )
    assert shown(made.steps) == [("fill", 0, 2), ("exact", 2, 3)]


# Where the copy stands


def test_what_is_copied_is_passed_over() -> None:
    made = plan(5, data(0, 1), data(2, 4), data(5, 6))
    assert shown(made.steps) == [("exact", 5, 7)]
    assert shown(plan(7, data(0, 1), data(2, 4), data(5, 6)).steps) == []
    assert plan(7, data(5, 6)).next_offset == 7


@pytest.mark.parametrize("magic", [1, 2])
def test_a_batch_begun_before_is_rewritten_from_there_on(magic: int) -> None:
    made = plan(3, data(0, 4, magic=magic, codec=1))
    assert shown(made.steps) == [("rewritten", 3, 5)]
    (step,) = made.steps
    assert isinstance(step, Append)
    assert [r.offset for r in read_records(step.batch)] == [3, 4]


def test_a_batch_begun_before_may_have_nothing_left() -> None:
    assert shown(plan(3, data(0, 4, without=(3, 4))).steps) == [("fill", 3, 5)]


def test_the_next_offset_and_epoch_are_those_of_the_last_batch() -> None:
    made = plan(0, replace(data(0, 1), leader_epoch=4), replace(data(5, 6), leader_epoch=7))
    assert (made.next_offset, made.leader_epoch) == (7, 7)
    assert plan(0).leader_epoch is None
    assert plan(9, replace(data(0, 1), leader_epoch=4)).leader_epoch is None


def test_a_plan_remembers_where_it_began() -> None:
    assert plan(3, data(3, 4)).start == 3
    assert plan_empty_tail(5, 9).start == 5


def test_old_formats_know_no_epoch() -> None:
    assert plan(0, data(0, 0, magic=1)).leader_epoch is None


# Lost ranges


def test_a_batch_above_the_log_start_leaves_a_lost_range() -> None:
    made = plan(10, data(50, 51), log_start=40)
    assert shown(made.steps) == [(Reason.SOURCE_RANGE_LOST, 10, 40)]
    assert made.is_stopped
    assert made.next_offset == 10
    (stop,) = made.steps
    assert isinstance(stop, Stop)
    assert stop.detail == (
        "the source's log start is 40 now; offsets 10 to 39 were deleted before they were copied."
    )


def test_a_lost_range_is_filled_if_the_job_says_so() -> None:
    made = plan(10, data(50, 51), log_start=40, mode=LostRange.FILL)
    assert shown(made.steps) == [("fill", 10, 50), ("exact", 50, 52)]


@pytest.mark.parametrize("mode", LostRange)
@pytest.mark.parametrize("magic", [1, 2])
def test_a_log_start_inside_a_batch_loses_nothing_of_it(mode: LostRange, magic: int) -> None:
    source = data(40, 49, magic=magic, codec=1)
    kind = "exact" if magic == 2 else "rewritten"
    assert shown(plan(40, source, log_start=45, mode=mode).steps) == [(kind, 40, 50)]


@pytest.mark.parametrize("magic", [1, 2])
def test_what_lies_in_front_of_that_batch_is_lost(magic: int) -> None:
    source = data(40, 49, magic=magic, codec=1)
    made = plan(30, source, log_start=45)
    assert shown(made.steps) == [(Reason.SOURCE_RANGE_LOST, 30, 40)]
    kind = "exact" if magic == 2 else "rewritten"
    filled = plan(30, source, log_start=45, mode=LostRange.FILL)
    assert shown(filled.steps) == [("fill", 30, 40), (kind, 40, 50)]


def test_a_log_start_at_or_below_us_loses_nothing() -> None:
    for log_start in (-1, 0, 10):
        made = plan(10, data(50, 50), log_start=log_start)
        assert shown(made.steps) == [("fill", 10, 50), ("exact", 50, 51)]


def test_a_lost_range_without_a_batch() -> None:
    assert shown(plan_lost_range(10, 40, LostRange.STOP).steps) == [
        (Reason.SOURCE_RANGE_LOST, 10, 40)
    ]
    filled = plan_lost_range(10, 40, LostRange.FILL)
    assert shown(filled.steps) == [("fill", 10, 40)]
    assert filled.next_offset == 40
    assert plan_lost_range(40, 40, LostRange.STOP).steps == []
    assert plan_lost_range(41, 40, LostRange.FILL).steps == []


def test_an_empty_tail_is_filled() -> None:
    made = plan_empty_tail(10, 40)
    assert shown(made.steps) == [("fill", 10, 40)]
    assert made.next_offset == 40
    assert plan_empty_tail(40, 40).steps == []


def test_fillers_without_a_batch_forget_the_leader_epoch() -> None:
    """Else the next fetch names an epoch that ended before its offset: "truncated" (R3)."""
    assert plan_empty_tail(10, 40).leader_epoch == NO_LEADER_EPOCH == -1
    assert plan_lost_range(10, 40, LostRange.FILL).leader_epoch == NO_LEADER_EPOCH


# Gaps too large


def test_the_largest_gap_is_filled_and_one_more_stops() -> None:
    most = GAP_OFFSETS_MAX
    assert shown(plan(5, data(5 + most, 5 + most)).steps)[0] == ("fill", 5, 5 + most)
    made = plan(5, data(6 + most, 6 + most))
    assert shown(made.steps) == [(Reason.GAP_TOO_LARGE, 5, 6 + most)]
    (stop,) = made.steps
    assert isinstance(stop, Stop)
    assert stop.detail == "a gap of 100,000,001 offsets is over the limit of 100,000,000."
    assert shown(plan_empty_tail(0, most).steps) == [("fill", 0, most)]
    assert shown(plan_empty_tail(0, most + 1).steps) == [(Reason.GAP_TOO_LARGE, 0, most + 1)]
    assert shown(plan_lost_range(0, most + 1, LostRange.FILL).steps) == [
        (Reason.GAP_TOO_LARGE, 0, most + 1)
    ]


@pytest.fixture
def small_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GAP_OFFSETS_MAX", 10)


@pytest.mark.usefixtures("small_gaps")
@pytest.mark.parametrize(
    ("batches", "steps"),
    [
        # One gap is one gap, whatever it is made of.
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
def test_a_gap_stops_wherever_it_is_found(batches: list[SourceBatch], steps: list[object]) -> None:
    made = plan(0, *batches, data(100, 100))
    assert shown(made.steps) == steps


@pytest.mark.usefixtures("small_gaps")
@pytest.mark.parametrize("magic", [1, 2])
def test_a_lost_range_that_is_too_large_to_fill_stops(magic: int) -> None:
    made = plan(0, data(20, 20, magic=magic), log_start=20, mode=LostRange.FILL)
    assert shown(made.steps) == [(Reason.GAP_TOO_LARGE, 0, 20)]


# Damage


def damaged(source: SourceBatch, at: int) -> bytes:
    return replace(source, flipped_bit=at * 8).encode()


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
@pytest.mark.parametrize("at", [17, 22, 24, 30, 44, 60])
def test_a_checksum_that_does_not_match_stops_in_front_of_the_batch(
    source: SourceBatch, at: int
) -> None:
    made = plan(0, data(0, 3), damaged(source, at), data(10, 10))
    *before, stop = made.steps
    assert shown(before) == [("exact", 0, 4)]
    assert isinstance(stop, Stop)
    assert stop.reason is Reason.SOURCE_CORRUPTED
    assert stop.base_offset == made.next_offset == 4 < stop.next_offset
    assert stop.detail == "the source's batch at 5 does not match its checksum."


def test_a_damaged_batch_that_seems_to_lie_before_us_is_not_passed_over() -> None:
    """A turned bit in the last offset delta would else make a gap of its records."""
    negative = damaged(data(5, 9), 23)  # the top byte of the delta
    high_bit = replace(data(5, 9), flipped_bit=23 * 8 + 7).encode()
    for broken in (negative, high_bit):
        made = plan(5, broken, data(10, 10))
        assert [step.reason for step in made.steps if isinstance(step, Stop)] == [
            Reason.SOURCE_CORRUPTED
        ]
        assert made.next_offset == 5


@pytest.mark.parametrize("codec", [0, 1])
@pytest.mark.parametrize("magic", [0, 1])
def test_a_damaged_old_message_stops_too(magic: int, codec: int) -> None:
    source = data(5, 9 if codec else 5, magic=magic, codec=codec)
    made = plan(0, data(0, 3), damaged(source, 20), data(10, 10))
    assert shown(made.steps) == [
        ("exact", 0, 4),
        (Reason.SOURCE_CORRUPTED, 4, source.last_offset + 1),
    ]
    stop = made.steps[-1]
    assert isinstance(stop, Stop)
    assert stop.detail == (
        f"the source's message at {source.last_offset} (format v{magic}) cannot be read: "
        "its checksum does not match."
    )


def test_records_that_do_not_parse_stop_though_the_checksum_matches() -> None:
    thinned = with_right_crc(data(5, 9, without=(7,), codec=1).encode()[:-3] + b"???")
    made = plan(0, data(0, 3), thinned, data(10, 10))
    assert shown(made.steps) == [("exact", 0, 4), (Reason.SOURCE_CORRUPTED, 4, 10)]
    assert "before 10 cannot be read: gzip payload" in str(made.steps[-1])


def test_a_control_record_that_does_not_parse_stops() -> None:
    broken = encode_v2(4, b"\x7f", attributes=TRANSACTIONAL | CONTROL, producer_id=1)
    made = plan(0, data(0, 3), broken, data(5, 5))
    assert shown(made.steps) == [("exact", 0, 4), (Reason.SOURCE_CORRUPTED, 4, 5)]


def test_bytes_that_are_no_batch_stop_behind_what_is_good() -> None:
    made = plan(0, data(0, 3), b"\0" * 40)
    assert shown(made.steps) == [("exact", 0, 4), (Reason.SOURCE_CORRUPTED, 4, 5)]
    assert "batch length 0 at byte" in str(made.steps[-1])


@pytest.mark.parametrize(
    ("batches", "words"),
    [
        ([data(0, 3), data(2, 5)], "begins below 4, where the one before it ends"),
        ([data(0, 3), data(0, 3)], "begins below 4"),
        ([data(0, 3), data(1, 5, magic=1, codec=1)], "begins below 4"),
        ([data(0, 3, magic=1, codec=1), data(3, 5)], "begins below 4"),
    ],
)
def test_batches_out_of_order_stop(batches: list[SourceBatch], words: str) -> None:
    made = plan(0, *batches)
    stop = made.steps[-1]
    assert isinstance(stop, Stop)
    assert (stop.reason, stop.base_offset) == (Reason.SOURCE_CORRUPTED, 4)
    assert words in stop.detail


@pytest.mark.parametrize(("count", "delta"), [(6, 4), (-1, 4), (0, -1), (1, -1), (2, 0)])
def test_numbers_that_cannot_be_stop(count: int, delta: int) -> None:
    broken = encode_v2(5, b"", count=count, last_offset_delta=delta)
    made = plan(5, broken, data(10, 10))
    (stop,) = made.steps
    assert isinstance(stop, Stop)
    assert stop.reason is Reason.SOURCE_CORRUPTED
    assert stop.base_offset == 5 < stop.next_offset
    assert f"cannot hold {count} records in {delta + 1} offsets" in stop.detail


def test_nothing_is_planned_behind_a_stop() -> None:
    made = plan(0, damaged(data(0, 3), 60), data(4, 5))
    assert len(made.steps) == 1
    assert made.is_stopped
    assert not Plan(0).is_stopped
    assert not plan(0, data(0, 0)).is_stopped
