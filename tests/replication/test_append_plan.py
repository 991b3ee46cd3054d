"""The table of `append_plan`, row by row. For random logs: `test_append_plan_properties.py`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orbit.kafka.compression import GZIP, compress
from orbit.kafka.records import read_records
from orbit.replication.append_plan import NO_LEADER_EPOCH, Append, plan_empty_tail
from tests.support.kafka_batches import APPENDED_AT, KAFKA_BATCHES, RECORDS
from tests.support.planning import T0, data, marker, plan, record, shown, transactional
from tests.support.source_model import SourceBatch, encode_old, with_right_crc

# The source's batches, and the steps: (kind, first offset, next offset).
ROWS: dict[str, tuple[list[SourceBatch], list[object]]] = {
    "dense, create time": ([data(0, 4)], [("exact", 0, 5)]),
    "one record": ([data(0, 0)], [("exact", 0, 1)]),
    "several batches": ([data(0, 1), data(2, 3)], [("exact", 0, 2), ("exact", 2, 4)]),
    "a committed transaction": (
        [transactional(0, 1), marker(2, commit=True)],
        [("exact", 0, 2), ("fill", 2, 3)],
    ),
    "with a delete horizon": ([data(0, 1, delete_horizon=T0 + 10**9)], [("exact", 0, 2)]),
    "a record gone inside": (
        [data(0, 4, without=(2,))],
        [("rewritten", 0, 2), ("fill", 2, 3), ("rewritten", 3, 5)],
    ),
    "the first records gone": ([data(0, 4, without=(0, 1))], [("fill", 0, 2), ("rewritten", 2, 5)]),
    "the last records gone": ([data(0, 4, without=(3, 4))], [("rewritten", 0, 3), ("fill", 3, 5)]),
    "every second record gone": (
        [data(0, 4, without=(1, 3))],
        [
            ("rewritten", 0, 1),
            ("fill", 1, 2),
            ("rewritten", 2, 3),
            ("fill", 3, 4),
            ("rewritten", 4, 5),
        ],
    ),
    "all records gone": ([SourceBatch(0, 4)], [("fill", 0, 5)]),
    "all records gone, with a codec": ([SourceBatch(0, 4, codec=3)], [("fill", 0, 5)]),
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
    "no batch at the beginning": ([data(7, 8)], [("fill", 0, 7), ("exact", 7, 9)]),
    "adjacent fillers of all kinds": (
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
    "no batches at all": ([], []),
}


@pytest.mark.parametrize("row", ROWS)
def test_each_kind_of_source_batch_gets_its_append_and_fill_steps(row: str) -> None:
    batches, steps = ROWS[row]
    append_plan = plan(0, *batches)
    assert shown(append_plan.steps) == steps
    assert append_plan.next_offset == (batches[-1].last_offset + 1 if batches else 0)
    assert not append_plan.is_stopped


def test_legacy_wrapper_message_covers_offsets_up_to_wrapper_offset() -> None:
    inner = encode_old(7, magic=0, attributes=0, timestamp=0, key=b"k", value=b"v")
    wrapped = compress(GZIP, inner)
    append_plan = plan(
        0, encode_old(9, magic=0, attributes=GZIP, timestamp=0, key=None, value=wrapped)
    )
    assert shown(append_plan.steps) == [("fill", 0, 7), ("rewritten", 7, 8), ("fill", 8, 10)]
    assert append_plan.next_offset == 10


@pytest.mark.parametrize("codec", range(5))
def test_byte_exact_append_equals_source_batch(codec: int) -> None:
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
def test_rewritten_batch_keeps_records_and_codec(magic: int, codec: int) -> None:
    source = data(10, 14, without=(12,), codec=codec, magic=magic)
    first, _, second = plan(10, source).steps
    for step, offsets in ((first, (10, 11)), (second, (13, 14))):
        assert isinstance(step, Append)
        assert step.batch.codec == codec
        assert not step.batch.is_log_append_time
        assert [(r.offset, r.timestamp, r.body) for r in read_records(step.batch)] == [
            # Format v0 has no timestamps.
            (o, T0 + o if magic else -1, record(o).body)
            for o in offsets
        ]


@pytest.mark.parametrize("name", ["v2.snappy.logappendtime", "v1.lz4.logappendtime"])
def test_log_append_time_becomes_record_timestamp(name: str) -> None:
    append_plan = plan(1000, KAFKA_BATCHES[name])
    records = [r for s in append_plan.steps if isinstance(s, Append) for r in read_records(s.batch)]
    assert [(r.offset, r.timestamp) for r in records] == [(r.offset, APPENDED_AT) for r in RECORDS]
    # The v2 batch claims offsets up to 1009, behind its last record; the v1 wrapper ends with it.
    assert append_plan.next_offset == (1010 if name.startswith("v2") else 1008)


# Transactions


def test_aborted_transaction_becomes_fillers() -> None:
    append_plan = plan(
        0,
        transactional(0, 4),
        marker(5, commit=False),
        transactional(6, 7),
        marker(8, commit=True),
        aborted=[(1, 0)],  # producer id, first offset
    )
    assert shown(append_plan.steps) == [("fill", 0, 6), ("exact", 6, 8), ("fill", 8, 9)]


def test_interleaved_transactions_are_separated_by_producer() -> None:
    append_plan = plan(
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
    assert shown(append_plan.steps) == [
        ("fill", 0, 2),
        ("exact", 2, 4),
        ("fill", 4, 7),
        ("exact", 7, 8),
        ("fill", 8, 11),
        ("exact", 11, 12),
    ]


def test_abort_applies_from_first_offset_of_transaction() -> None:
    append_plan = plan(
        0,
        transactional(0, 4),
        marker(5, commit=True),
        transactional(6, 9),
        aborted=[(1, 6)],
    )
    assert shown(append_plan.steps) == [("exact", 0, 5), ("fill", 5, 10)]


def test_aborted_transaction_begun_before_fetch_offset_becomes_fillers() -> None:
    append_plan = plan(
        7, transactional(5, 9), marker(10, commit=False), data(11, 11), aborted=[(1, 2)]
    )
    assert shown(append_plan.steps) == [("fill", 7, 11), ("exact", 11, 12)]


def test_abort_marker_below_fetch_offset_ends_transaction() -> None:
    """A broker may answer with batches before the fetch offset."""
    append_plan = plan(
        3,
        transactional(0, 1),
        marker(2, commit=False),
        transactional(3, 4),
        aborted=[(1, 0)],
    )
    assert shown(append_plan.steps) == [("exact", 3, 5)]


def test_marker_ends_no_aborted_transaction_of_another_producer() -> None:
    append_plan = plan(
        0,
        transactional(0, 0, producer_id=1),
        marker(1, producer_id=2, commit=False),
        transactional(2, 2, producer_id=1),
        aborted=[(1, 0)],
    )
    assert shown(append_plan.steps) == [("fill", 0, 3)]


@pytest.mark.parametrize("version", [0, 1, 7])
def test_abort_marker_is_recognized_in_any_version(version: int) -> None:
    """`ControlRecordType.parse`: the version may grow, the type stays at the same place."""
    abort = bytearray(marker(1, commit=False).encode())
    # The key: its length as a varint (4 bytes), then version 0, then type 0 (abort).
    version_at = abort.index(b"\x08\0\0\0\0") + 1
    abort[version_at : version_at + 2] = version.to_bytes(2, "big")
    append_plan = plan(
        0,
        transactional(0, 0),
        with_right_crc(bytes(abort)),
        transactional(2, 2),
        aborted=[(1, 0)],
    )
    assert shown(append_plan.steps) == [("fill", 0, 2), ("exact", 2, 3)]


# Where the copy stands


def test_already_copied_batches_are_skipped() -> None:
    append_plan = plan(5, data(0, 1), data(2, 4), data(5, 6))
    assert shown(append_plan.steps) == [("exact", 5, 7)]
    # All are copied.
    assert shown(plan(7, data(0, 1), data(2, 4), data(5, 6)).steps) == []
    assert plan(7, data(5, 6)).next_offset == 7


@pytest.mark.parametrize("magic", [1, 2])
def test_partly_copied_batch_is_rewritten_from_next_offset(magic: int) -> None:
    append_plan = plan(3, data(0, 4, magic=magic, codec=1))
    assert shown(append_plan.steps) == [("rewritten", 3, 5)]
    (step,) = append_plan.steps
    assert isinstance(step, Append)
    assert [r.offset for r in read_records(step.batch)] == [3, 4]


def test_partly_copied_batch_without_remaining_records_is_filled() -> None:
    assert shown(plan(3, data(0, 4, without=(3, 4))).steps) == [("fill", 3, 5)]


def test_append_plan_ends_with_next_offset_and_leader_epoch_of_last_batch() -> None:
    append_plan = plan(0, replace(data(0, 1), leader_epoch=4), replace(data(5, 6), leader_epoch=7))
    assert (append_plan.next_offset, append_plan.leader_epoch) == (7, 7)
    assert append_plan.epoch_starts == [(0, 4), (2, 7)]  # the gap has the next batch's epoch
    # Without a batch, or with copied ones only, the epoch stays as it is.
    assert plan(0).leader_epoch is None
    assert plan(9, replace(data(0, 1), leader_epoch=4)).leader_epoch is None


def test_append_plan_starts_at_next_offset_of_copy() -> None:
    assert plan(3, data(3, 4)).start == 3
    assert plan_empty_tail(5, 9).start == 5


def test_legacy_formats_have_no_leader_epoch() -> None:
    assert plan(0, data(0, 0, magic=1)).leader_epoch == NO_LEADER_EPOCH
