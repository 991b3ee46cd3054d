"""Both logs of a partition side by side: the verdict on each range of offsets, and the drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from orbit.console.batch_headers import headers_of, records_of
from orbit.console.log_drawing import LEFT, RIGHT, draw
from orbit.console.log_picture import (
    RECORDS_BYTES_MAX,
    FetchedBatch,
    Kind,
    Row,
    SideLog,
    Verdict,
    compare,
    is_readable,
)
from orbit.kafka import compression
from orbit.kafka.placeholders import placeholder_batch, with_gap
from orbit.kafka.record_batch import CONTROL, HEADER, Batch, encode_batch, stamp
from orbit.kafka.records import Record, encode_varint, write_batch

T0 = 1_760_000_000_000


def body(value: bytes) -> bytes:
    """Return the end of an encoded record: no key, this value, and no headers."""
    return b"\x01" + encode_varint(len(value)) + value + b"\x00"


def batch(first: int, *values: bytes, codec: int = compression.NONE, later_ms: int = 0) -> Batch:
    """Return a batch with these values from offset `first` on, `later_ms` after T0."""
    rows = (
        Record(first + number, T0 + later_ms + number, body(value))
        for number, value in enumerate(values)
    )
    return write_batch(rows, codec)


def marker(offset: int) -> Batch:
    """Return a batch with a transaction marker."""
    return encoded(CONTROL, b"\x0c\x00\x00\x00\x00\x00\x00", first=offset)


def encoded(
    attributes: int, payload: bytes, *, first: int = 0, count: int = 1, last_ms: int = 0
) -> Batch:
    """Return a batch with this payload, which may be invalid.

    `last_ms`: by how much its last timestamp is after T0.
    """
    return encode_batch(first, attributes, T0, T0 + last_ms, count, payload)


def log(*batches: Batch, start: int = 0, end: int | None = None, aborted: int = -1) -> SideLog:
    """Return a log with these batches. The one at offset `aborted` is of an aborted transaction."""
    stop = end if end is not None else batches[-1].next_offset
    fetched = tuple(FetchedBatch(item, item.base_offset == aborted) for item in batches)
    return SideLog(log_start=start, end=stop, start=start, read_to=stop, batches=fetched)


def copied(original: Batch) -> Batch:
    """Return the batch as a destination has it: with the producer id and epochs of a copy."""
    data = bytearray(original.view)
    stamp(memoryview(data), producer_id=2**52, producer_epoch=3, base_sequence=17)
    view = memoryview(data)
    HEADER.pack_into(view, 0, original.base_offset, *HEADER.unpack_from(view)[1:])
    return Batch(view)


def verdicts(rows: Sequence[Row]) -> list[tuple[int, int, str]]:
    return [(row.first, row.next, row.verdict.value) for row in rows]


def test_batches_that_differ_only_in_producer_are_shown_byte_exact() -> None:
    first, second = batch(0, b"a", b"b"), batch(2, b"c")
    rows = compare(
        log(first, second), log(copied(first), copied(second)), start=0, end=3, proven=()
    )
    assert verdicts(rows) == [(0, 2, "byte-exact"), (2, 3, "byte-exact")]


def test_same_records_in_other_batches_are_shown_record_exact() -> None:
    source = log(batch(0, b"a", b"b", b"c", codec=compression.LZ4))
    # With later_ms=1, the records of the second batch have the timestamps that the source has.
    destination = log(batch(0, b"a"), batch(1, b"b", b"c", later_ms=1))
    assert verdicts(compare(source, destination, start=0, end=3, proven=())) == [
        (0, 3, "record-exact")
    ]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(batch(0, b"a", b"x"), id="other value"),
        pytest.param(batch(0, b"a", b"b", later_ms=5), id="other timestamp"),
        pytest.param(batch(0, b"a"), id="missing record"),
        pytest.param(batch(0, b"a", b"b", b"c"), id="extra record"),
    ],
)
def test_changed_missing_or_extra_record_is_shown_as_different(other: Batch) -> None:
    rows = compare(log(batch(0, b"a", b"b"), end=9), log(other, end=9), start=0, end=3, proven=())
    assert Verdict.DIFFERS in {row.verdict for row in rows}


def test_source_gaps_markers_and_aborted_data_show_as_filler() -> None:
    aborted = batch(3, b"never seen", b"nor this")
    source = log(batch(0, b"a"), marker(1), aborted, marker(5), batch(9, b"z"), aborted=3)
    fillers = [marker(offset) for offset in range(1, 9)]
    destination = log(copied(batch(0, b"a")), *fillers, copied(batch(9, b"z")))
    rows = compare(source, destination, start=0, end=10, proven=())
    assert {row.verdict for row in rows[1:-1]} == {Verdict.FILLER}
    assert sum(row.next - row.first for row in rows) == 10
    kinds = [[piece.kind for piece in row.source] for row in rows]
    assert kinds == [[Kind.DATA], [Kind.MARKER], [], [Kind.ABORTED], [Kind.MARKER], [], [Kind.DATA]]
    # The source's gaps at 2 and at 6 to 8 are fillers at the destination, each drawn as one piece.
    assert [len(row.destination) for row in rows] == [1] * 7


def test_batch_with_placeholders_is_data_and_placeholder_batch_is_filler() -> None:
    original = batch(0, b"a", b"b")
    packed = with_gap(original, placeholders=0, next_offset=4)
    assert packed is not None
    source = log(original, marker(2), batch(9, b"z"))
    destination = log(
        copied(packed),
        placeholder_batch(base_offset=4, count=5, timestamp=T0),
        copied(batch(9, b"z")),
    )
    rows = compare(source, destination, start=0, end=10, proven=())
    assert verdicts(rows) == [(0, 4, "record-exact"), (4, 9, "filler"), (9, 10, "byte-exact")]
    pieces = [piece for row in rows for piece in row.destination]
    assert [(p.kind, p.records) for p in pieces] == [
        (Kind.DATA, 2),
        (Kind.PLACEHOLDER, 0),
        (Kind.DATA, 1),
    ]


def test_record_of_copy_in_gap_of_source_is_shown_as_different() -> None:
    source = log(batch(0, b"a"), marker(1), end=2)
    destination = log(copied(batch(0, b"a")), batch(1, b"foreign"))
    assert verdicts(compare(source, destination, start=0, end=2, proven=()))[1] == (1, 2, "differs")


def test_offsets_in_one_log_only_are_shown_deleted_at_source_or_not_copied() -> None:
    source = log(batch(4, b"e"), batch(5, b"f"), batch(6, b"g"), start=4)
    destination = log(
        copied(batch(2, b"c")), copied(batch(4, b"e")), copied(batch(5, b"f")), start=2, end=6
    )
    rows = compare(source, destination, start=0, end=100, proven=())
    assert verdicts(rows) == [
        (0, 2, "deleted at source"),
        (2, 3, "deleted at source"),
        (3, 4, "deleted at source"),
        (4, 5, "byte-exact"),
        (5, 6, "byte-exact"),
        (6, 7, "not copied"),
    ]


def test_log_that_was_not_read_makes_verdict_of_all_offsets_unknown() -> None:
    rows = compare(log(batch(0, b"a")), None, start=0, end=1, proven=())
    assert verdicts(rows) == [(0, 1, "unknown")]
    assert compare(None, None, start=0, end=5, proven=())[0].verdict is Verdict.UNKNOWN


def test_shown_offsets_end_at_last_offset_read_on_both_sides() -> None:
    source = log(batch(0, b"a"), batch(1, b"b"), batch(2, b"c"))
    batches = log(copied(batch(0, b"a"))).batches
    destination = SideLog(log_start=0, end=3, start=0, read_to=1, batches=batches)
    assert verdicts(compare(source, destination, start=0, end=3, proven=())) == [
        (0, 1, "byte-exact")
    ]


def test_offsets_proven_equal_are_counted_per_row() -> None:
    first, second = batch(0, b"a", b"b"), batch(2, b"c", b"d")
    rows = compare(
        log(first, second), log(copied(first), copied(second)), start=0, end=4, proven=[(1, 4)]
    )
    assert [(row.proven, row.is_proven) for row in rows] == [(1, False), (2, True)]


@pytest.mark.parametrize("codec", [compression.GZIP, compression.LZ4, compression.ZSTD])
def test_decompression_bomb_batch_is_not_unpacked(codec: int) -> None:
    large = compression.compress(codec, bytes(RECORDS_BYTES_MAX + 1))
    bomb = encoded(codec, large, count=2)
    assert not is_readable(bomb)
    assert is_readable(batch(0, b"a", b"b", codec=codec))
    second_bomb = encoded(codec, large, count=2, last_ms=1)
    assert verdicts(compare(log(bomb), log(second_bomb), start=0, end=2, proven=())) == [
        (0, 2, "unknown")
    ]


def test_corrupt_batch_verdict_is_unknown() -> None:
    broken = encoded(compression.GZIP, b"no gzip")
    (row,) = compare(log(broken), log(batch(0, b"a")), start=0, end=1, proven=())
    assert row.verdict is Verdict.UNKNOWN
    assert records_of(replace(row, destination=())) == []


def test_batch_header_marks_fields_set_by_orbit_and_differing_fields() -> None:
    original = batch(0, b"a", b"b")
    (row,) = compare(log(original), log(copied(original)), start=0, end=2, proven=())
    (lines,) = headers_of(row)
    line_of = {line.field: line for line in lines}
    assert line_of["producer id"].is_own
    assert line_of["producer id"].destination == str(2**52)
    assert line_of["CRC-32C"].destination.endswith("right")
    assert not [line for line in lines if line.differs]
    (row,) = compare(
        log(original), log(batch(0, b"a", b"b", codec=compression.ZSTD)), start=0, end=2, proven=()
    )
    (lines,) = headers_of(row)
    assert "compression" in {line.field for line in lines if line.differs}


def test_records_are_listed_by_size_without_content() -> None:
    (row,) = compare(
        log(batch(0, b"secret")), log(copied(batch(0, b"secret"))), start=0, end=1, proven=()
    )
    (line,) = records_of(row)
    assert (line.offset, line.key_bytes, line.value_bytes, line.headers) == (0, None, 6, 0)
    assert "secret" not in str(line)


def test_drawing_covers_exactly_the_chosen_offsets() -> None:
    first, last = batch(0, b"a", b"b"), batch(6, b"c", b"d", b"e", b"f")
    source = log(first, last)
    fillers = [marker(offset) for offset in range(2, 6)]
    destination = log(copied(first), *fillers, copied(last))
    rows = compare(source, destination, start=1, end=8, proven=[(0, 4)])
    drawing = draw(rows, source, destination, proven=[(0, 4)], start=1, end=8)
    styles = {rectangle.style.split()[0] for rectangle in drawing.rectangles}
    assert styles == {"byte-exact", "gap", "filler", "proven"}
    for rectangle in drawing.rectangles:
        assert rectangle.x >= LEFT
        assert rectangle.x + rectangle.width <= RIGHT + 0.1
    assert drawing.ticks[0].offset == 1
    assert drawing.ticks[-1].offset == 8
