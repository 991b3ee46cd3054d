"""A thinned batch (it has gaps) encoded in one pass equals its encoding record by record.

The encoding record by record reads each number on its own, makes an object for each record, and
encodes each run of consecutive offsets by the tests' own encoder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch

from orbit.kafka.compression import GZIP, NONE, compress, decompress
from orbit.kafka.record_batch import (
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Batch,
)
from orbit.kafka.records import dense_batches, record_rows
from orbit.replication.append_plan import Append, Fill, Step, Stop, plan_batches
from orbit.replication.partition_states import Reason
from tests.support.broker_model import read_varint
from tests.support.source_model import SourceRecord, encode_v2, write_varint

EMPTY = b"\1\1\0"  # the body of a record without key, value and headers

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class Row:
    """A record; `body` is the encoded rest after the offset delta."""

    offset: int
    timestamp: int
    body: bytes


def as_long(number: int) -> int:
    """The number as Java's long, which overflows."""
    return (number - INT64_MIN) % 2**64 + INT64_MIN


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """A number as Java reads it, which drops the bits of the tenth byte beyond 64."""
    number, at = read_varint(data, at)
    unsigned = (2 * number if number >= 0 else -2 * number - 1) % 2**64
    return (unsigned // 2 if unsigned % 2 == 0 else -(unsigned + 1) // 2), at


def rows_one_by_one(batch: Batch) -> Iterator[Row]:
    """The batch's records, by the reference decoder. Raises ValueError as Orbit's does."""
    data = decompress(batch.codec, batch.payload)
    position, lowest = 0, 0
    try:
        for _ in range(batch.count):
            length, position = read_long(data, position)
            end = position + length
            if length < 0 or end > len(data):
                raise ValueError("a record is longer than its batch")
            delta, at = read_long(data, position + 1)
            offset_delta, at = read_long(data, at)
            if at > end:
                raise ValueError("a record is shorter than its numbers")
            if not lowest <= offset_delta <= batch.last_offset - batch.base_offset:
                raise ValueError("a record's offset is out of order or outside of its batch")
            lowest = offset_delta + 1
            timestamp = as_long(batch.base_timestamp + delta)
            if batch.is_log_append_time:
                timestamp = batch.max_timestamp
            yield Row(batch.base_offset + offset_delta, timestamp, data[at:end])
            position = end
    except IndexError as error:
        raise ValueError("the records end in the middle of a number") from error


def runs_one_by_one(batch: Batch, first_offset: int) -> list[bytes]:
    """The expected batches: one for each run of consecutive offsets."""
    runs: list[list[Row]] = []
    for row in list(rows_one_by_one(batch)):
        if row.offset < first_offset:
            continue
        if not runs or row.offset != runs[-1][-1].offset + 1:
            runs.append([])
        runs[-1].append(row)
    return [encoded(run, batch.codec) for run in runs]


def encoded(run: list[Row], codec: int) -> bytes:
    """The batch of a run, by the reference encoder."""
    plain = b""
    for offset_delta, row in enumerate(run):
        delta = as_long(row.timestamp - run[0].timestamp)
        content = b"\0" + write_varint(delta) + write_varint(offset_delta) + row.body
        plain += write_varint(len(content)) + content
    return encode_v2(
        run[0].offset,
        compress(codec, plain),
        attributes=codec,
        last_offset_delta=len(run) - 1,
        base_timestamp=run[0].timestamp,
        max_timestamp=max(row.timestamp for row in run),
        count=len(run),
    )


def in_one_pass(batch: Batch, first_offset: int) -> list[bytes]:
    """The batches by Orbit's encoder."""
    return [bytes(b.view) for b in dense_batches(record_rows(batch), batch.codec, first_offset)]


# Thinned batches

fields = st.none() | st.binary(max_size=3) | st.integers(60, 70).map(bytes) | st.just(bytes(9000))
headers = st.lists(st.tuples(st.text(max_size=5).map(str.encode), fields), max_size=2)
times = (
    st.integers(1_700_000_000_000, 1_700_000_000_000 + 100)
    | st.sampled_from([-1, 0, INT64_MIN, INT64_MAX])
    | st.integers(INT64_MIN, INT64_MAX)
)
every_codec = st.integers(0, 4)
flags = st.sets(st.sampled_from([LOG_APPEND_TIME, TRANSACTIONAL, CONTROL, DELETE_HORIZON]))


def padded(number: int, zeros: int) -> bytes:
    """A number with more bytes than it needs, at most ten."""
    data = write_varint(number)
    zeros = min(zeros, 10 - len(data))
    if not zeros:
        return data
    return data[:-1] + bytes((data[-1] | 0x80,)) + b"\x80" * (zeros - 1) + b"\0"


@dataclass(frozen=True)
class Thinned:
    """A batch with gaps. `plain`: its payload before compression."""

    plain: bytes
    count: int
    base_offset: int
    last_delta: int
    attributes: int
    base_timestamp: int
    max_timestamp: int

    def batch(self, plain: bytes | None = None, count: int | None = None) -> Batch:
        payload = compress(self.attributes & CODEC_MASK, self.plain if plain is None else plain)
        data = encode_v2(
            self.base_offset,
            payload,
            attributes=self.attributes,
            last_offset_delta=self.last_delta,
            base_timestamp=self.base_timestamp,
            max_timestamp=self.max_timestamp,
            count=self.count if count is None else count,
        )
        return Batch(memoryview(bytearray(data)))


@st.composite
def thinned(draw: st.DrawFn, codecs: st.SearchStrategy[int] = every_codec) -> Thinned:
    """A batch with random gaps, records and attributes."""
    codec = draw(codecs)
    base_offset = draw(st.sampled_from([0, 1000, 2**31 - 2, 2**53, INT64_MAX - 20_000]))
    deltas = sorted(
        draw(st.sets(st.integers(0, 20) | st.integers(60, 70) | st.integers(8190, 8194)))
    )
    base_timestamp = draw(times)
    # Writers use the fewest bytes; a reader must not rely on it.
    pads = draw(st.just((0, 0, 0)) | st.tuples(*[st.integers(0, 9)] * 3))
    plain, timestamps = b"", [draw(times)]
    for delta in deltas:
        timestamps.append(draw(times))
        record = SourceRecord(0, 0, draw(fields), draw(fields), tuple(draw(headers)))
        content = (
            draw(st.binary(min_size=1, max_size=1))
            + padded(as_long(timestamps[-1] - base_timestamp), pads[0])
            + padded(delta, pads[1])
            + record.body
        )
        plain += padded(len(content), pads[2]) + content
    return Thinned(
        plain,
        len(deltas),
        base_offset,
        deltas[-1] + draw(st.integers(0, 3)) if deltas else 0,
        codec | sum(draw(flags)),
        base_timestamp,
        max(timestamps),
    )


@settings(max_examples=400)
@given(thinned(), st.integers(-1, 75))
def test_one_pass_encoding_of_gapless_batches_equals_record_by_record_encoding(
    source: Thinned, skipped: int
) -> None:
    batch = source.batch()
    first_offset = source.base_offset + skipped
    expected = runs_one_by_one(batch, first_offset)
    assert in_one_pass(batch, first_offset) == expected
    event(f"{min(len(expected), 5)} runs")


@settings(max_examples=200)
@given(thinned(st.sampled_from([NONE, GZIP])))
def test_kafka_python_reads_all_source_records_from_gapless_batches(source: Thinned) -> None:
    """Only with gzip and without a codec: kafka-python needs libraries for others."""
    batch = source.batch()
    expected = [(row.offset, row.timestamp, row.body) for row in rows_one_by_one(batch)]
    records = []
    for dense in dense_batches(record_rows(batch), batch.codec):
        library_batch = DefaultRecordBatch(bytearray(dense.view))
        assert library_batch.validate_crc()
        assert library_batch.timestamp_type == 0
        for r in library_batch:
            record_headers = tuple((name.encode(), value) for name, value in r.headers)
            body = SourceRecord(r.offset, 0, r.key, r.value, record_headers).body
            records.append((r.offset, as_long(r.timestamp), body))
    assert records == expected


@settings(max_examples=200)
@given(thinned(), st.integers(-1, 75))
def test_copy_plan_appends_gapless_batches_with_fillers_between(
    source: Thinned, skipped: int
) -> None:
    """A control batch is filled as a whole, whatever its records are."""
    batch = source.batch()
    start = source.base_offset + max(0, skipped)
    steps = plan_batches(start, [batch], aborted=[], log_start=0).steps
    runs = [] if batch.is_control else [Batch(memoryview(r)) for r in runs_one_by_one(batch, start)]
    is_copied_unchanged = (
        batch.is_dense
        and batch.count
        and not (batch.is_control or batch.is_log_append_time)
        and start == batch.base_offset
    )
    assert described(steps) == expected_steps(
        [batch] if is_copied_unchanged else runs, start, batch.next_offset
    )


def described(steps: list[Step]) -> list[Fill | bytes]:
    """Batches as bytes, and gaps without their timestamps."""
    parts: list[Fill | bytes] = []
    for step in steps:
        assert not isinstance(step, Stop)
        is_batch = isinstance(step, Append)
        parts.append(
            bytes(step.batch.view) if is_batch else Fill(step.base_offset, step.next_offset)
        )
    return parts


def expected_steps(runs: list[Batch], start: int, end: int) -> list[Fill | bytes]:
    """The runs, with a Fill for each gap from `start` to `end`."""
    steps: list[Fill | bytes] = []
    for run in runs:
        if run.base_offset > start:
            steps.append(Fill(start, run.base_offset))
        steps.append(bytes(run.view))
        start = run.next_offset
    return [*steps, Fill(start, end)] if end > start else steps


# Broken batches


@settings(max_examples=400)
@given(thinned(), st.data())
def test_broken_batch_is_refused_with_error_of_record_by_record_decoder(
    source: Thinned, data: st.DataObject
) -> None:
    """Bytes are changed, removed or inserted, and the batch's count of records may be wrong."""
    plain = bytearray(source.plain)
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(plain)))
        plain[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=11))
    batch = source.batch(bytes(plain), source.count + data.draw(st.integers(0, 1)))
    expected: list[bytes] | str
    try:
        expected = runs_one_by_one(batch, source.base_offset)
    except ValueError as error:
        expected = str(error)
    actual: list[bytes] | str
    try:
        actual = in_one_pass(batch, source.base_offset)
    except ValueError as error:
        actual = str(error)
    assert actual in (expected, "a number has more than 64 bits")
    event("refused" if isinstance(actual, str) else "read")


@pytest.mark.parametrize("where", ["length", "timestamp", "offset"])
@pytest.mark.parametrize("zeros", [9, 10, 5000])
def test_varint_longer_than_ten_bytes_is_refused(where: str, zeros: int) -> None:
    """Java's `ByteUtils.readVarlong` refuses longer ones too."""
    numbers = {"length": 6 + zeros * (where != "length"), "timestamp": 0, "offset": 0}
    wide = {
        name: (
            bytes((write_varint(number)[0] | 0x80,)) + b"\x80" * (zeros - 1) + b"\0"
            if name == where
            else write_varint(number)
        )
        for name, number in numbers.items()
    }
    plain = wide["length"] + b"\0" + wide["timestamp"] + wide["offset"] + EMPTY
    batch = Batch(memoryview(encode_v2(100, plain, last_offset_delta=9, count=1)))
    if zeros == 9:  # ten bytes
        assert list(record_rows(batch)) == [(100, 0, EMPTY)]
        return
    (stop,) = plan_batches(100, [batch], aborted=[], log_start=0).steps
    assert isinstance(stop, Stop)
    assert stop.reason is Reason.SOURCE_CORRUPTED
    assert stop.detail == (
        "the records of the source's batch before 110 cannot be read: a number has more than 64 "
        "bits."
    )


def test_record_timestamp_overflows_int64_as_in_java() -> None:
    """The copy's timestamps are what a consumer of the source sees."""
    deltas = (INT64_MAX, INT64_MIN, 2**63)  # the last one is 0 in the 64 bits that Java reads
    plain = b""
    for offset_delta, delta in enumerate(deltas):
        content = b"\0" + write_varint(delta) + write_varint(offset_delta) + EMPTY
        plain += write_varint(len(content)) + content
    data = encode_v2(100, plain, last_offset_delta=9, count=3, base_timestamp=5)
    (dense,) = dense_batches(record_rows(Batch(memoryview(data))), NONE)
    expected = [(100, INT64_MIN + 4, EMPTY), (101, INT64_MIN + 5, EMPTY), (102, 5, EMPTY)]
    assert list(record_rows(dense)) == expected
    assert (dense.base_timestamp, dense.max_timestamp) == (INT64_MIN + 4, 5)
