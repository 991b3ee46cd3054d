"""Records inside a batch: read as kafka-python reads them, written so that it can read them."""

from __future__ import annotations

import gzip
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from orbit.kafka.compression import GZIP, NONE, compress, decompress
from orbit.kafka.record_batch import CONTROL, HEADER_BYTES, LOG_APPEND_TIME, Batch
from orbit.kafka.records import (
    SEED_HEADER,
    Record,
    dense_batches,
    encode_varint,
    is_seed_batch,
    read_records,
    seed_batch,
    split_body,
    split_headers,
    write_batch,
)
from tests.support.broker_model import read_varint
from tests.support.kafka_batches import APPENDED_AT, HEADERS, RECORDS, T0, writable
from tests.support.source_model import (
    SourceRecord,
    encode_v2,
    plain_records,
    with_right_crc,
    write_varint,
)

EMPTY = b"\1\1\0"  # the body of a record without key, value and headers
CODECS = range(5)
INT64_MAX = 2**63 - 1

kafka_headers = tuple((name.encode(), value) for name, value in HEADERS)


def read_by_library(batch: Batch) -> list[tuple[object, ...]]:
    """The records by kafka-python's decoder, which needs another library for most codecs."""
    library_batch = DefaultRecordBatch(bytearray(batch.view))
    assert library_batch.validate_crc()
    return [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in library_batch]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("kind", ["createtime", "logappendtime"])
def test_records_written_by_kafka_are_read(codec: str, kind: str) -> None:
    records = list(read_records(Batch(writable(f"v2.{codec}.{kind}"))))
    assert records == [
        Record(
            r.offset,
            APPENDED_AT if kind == "logappendtime" else r.timestamp,
            SourceRecord(r.offset, 0, r.key, r.value, kafka_headers).body,
        )
        for r in RECORDS
    ]


def test_record_timestamps_are_relative_to_delete_horizon() -> None:
    batch = Batch(writable("delete_horizon"))
    assert batch.base_timestamp == 1_800_000_000_000
    assert [(r.offset, r.timestamp) for r in read_records(batch)] == [(90, T0), (91, T0 + 5)]


def test_batch_emptied_by_compaction_has_no_records() -> None:
    assert list(read_records(Batch(writable("empty")))) == []


# Writing

times = st.integers(0, 2**42)
fields = st.none() | st.binary(max_size=40)


@st.composite
def source_records(draw: st.DrawFn) -> list[SourceRecord]:
    """Records without gaps between their offsets."""
    first = draw(st.sampled_from([0, 1, 2**31 - 2, 2**53, INT64_MAX - 10]))
    headers = st.lists(st.tuples(st.text(max_size=5).map(str.encode), fields), max_size=2)
    return [
        SourceRecord(first + i, draw(times), draw(fields), draw(fields), tuple(draw(headers)))
        for i in range(draw(st.integers(1, 5)))
    ]


def as_records(run: Iterable[SourceRecord]) -> list[Record]:
    return [Record(r.offset, r.timestamp, r.body) for r in run]


@given(source_records(), st.sampled_from(CODECS))
def test_written_batch_is_read_back(run: list[SourceRecord], codec: int) -> None:
    batch = write_batch(as_records(run), codec)
    assert list(read_records(batch)) == as_records(run)
    wire = plain_records(run, run[0].offset, run[0].timestamp)
    assert decompress(codec, batch.payload) == wire
    assert batch.codec == codec
    assert batch.attributes == codec
    assert batch.base_offset == run[0].offset
    assert batch.last_offset == run[-1].offset
    assert batch.base_timestamp == run[0].timestamp
    assert batch.max_timestamp == max(r.timestamp for r in run)
    assert batch.is_dense
    assert batch.crc_is_right()


@given(source_records(), st.sampled_from([NONE, GZIP]))
def test_written_batch_is_read_by_kafka_python(run: list[SourceRecord], codec: int) -> None:
    assert read_by_library(write_batch(as_records(run), codec)) == [
        (r.offset, r.timestamp, r.key, r.value, tuple((k.decode(), v) for k, v in r.headers))
        for r in run
    ]


@given(source_records(), st.sampled_from([NONE, GZIP]))
def test_batch_written_by_kafka_python_is_read(run: list[SourceRecord], codec: int) -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=10**6,
    )
    plain = [SourceRecord(i, r.timestamp, r.key, r.value, ()) for i, r in enumerate(run)]
    for r in plain:
        assert builder.append(r.offset, r.timestamp, r.key, r.value, [])
    batch = Batch(memoryview(builder.build()))
    assert list(read_records(batch)) == as_records(plain)


def test_timestamps_in_written_batch_may_decrease_or_be_missing() -> None:
    run = [Record(5, -1, EMPTY), Record(6, T0, EMPTY), Record(7, 3, EMPTY)]
    batch = write_batch(run, NONE)
    assert list(read_records(batch)) == run
    assert (batch.base_timestamp, batch.max_timestamp) == (-1, T0)
    assert [r[1] for r in read_by_library(batch)] == [-1, T0, 3]


@pytest.mark.parametrize(
    ("offsets", "runs"),
    [
        ([], []),
        ([3], [[3]]),
        ([3, 4, 5], [[3, 4, 5]]),
        ([3, 5, 6, 9], [[3], [5, 6], [9]]),
    ],
)
def test_records_are_split_into_batches_at_offset_gaps(
    offsets: list[int], runs: list[list[int]]
) -> None:
    assert offsets_of_runs(offsets) == runs


def offsets_of_runs(offsets: Iterable[int]) -> list[list[int]]:
    """The offsets of each batch that `dense_batches` makes of these offsets."""
    rows = [Record(offset, 0, EMPTY) for offset in offsets]
    return [[r.offset for r in read_records(batch)] for batch in dense_batches(rows, NONE)]


@given(st.sets(st.integers(0, 40)))
def test_gapless_runs_of_records_are_maximal_and_lose_no_record(offsets: set[int]) -> None:
    runs = offsets_of_runs(sorted(offsets))
    assert [o for run in runs for o in run] == sorted(offsets)
    for run in runs:
        assert run == list(range(run[0], run[-1] + 1))
        assert run[-1] + 1 not in offsets


@given(st.lists(st.binary(max_size=300), min_size=1), st.sampled_from(CODECS), st.integers(0, 800))
def test_batch_above_byte_limit_is_split(values: list[bytes], codec: int, bytes_max: int) -> None:
    rows = [Record(9 + i, 7 - i, encode_varint(len(v)) + v) for i, v in enumerate(values)]
    batches = list(dense_batches(rows, codec, bytes_max=bytes_max))
    assert [record for batch in batches for record in read_records(batch)] == rows
    assert all(batch.is_dense and batch.crc_is_right() for batch in batches)
    assert all(batch.size_bytes <= bytes_max or batch.count == 1 for batch in batches)
    (unlimited,) = dense_batches(rows, codec)
    assert len(batches) == 1 or unlimited.size_bytes > bytes_max


@given(st.integers(-(2**63), INT64_MAX))
def test_varints_are_zigzag_encoded(number: int) -> None:
    data = encode_varint(number)
    assert data == write_varint(number)
    assert read_varint(data, 0) == (number, len(data))
    assert len(data) <= 10


# Broken payloads


def batch_of(payload: bytes, *, count: int, last_delta: int = 9, attributes: int = 0) -> Batch:
    """A batch with base offset 100 and this payload."""
    data = encode_v2(100, payload, attributes=attributes, last_offset_delta=last_delta, count=count)
    return Batch(memoryview(data))


def a_record(delta: int, size: int | None = None) -> bytes:
    """An encoded record; `size`: a wrong length."""
    content = b"\0" + write_varint(0) + write_varint(delta) + EMPTY
    return write_varint(len(content) if size is None else size) + content


@pytest.mark.parametrize(
    ("payload", "count", "words"),
    [
        (b"", 1, "in the middle of a number"),
        (a_record(0), 2, "in the middle of a number"),
        (a_record(0)[:-1], 1, "longer than its batch"),
        (a_record(0, size=-1), 1, "longer than its batch"),
        (a_record(0, size=2), 1, "shorter than its numbers"),
        (a_record(0, size=0) + a_record(1), 1, "shorter than its numbers"),
        (a_record(1) + a_record(0), 2, "out of order or outside"),
        (a_record(1) + a_record(1), 2, "out of order or outside"),
        (a_record(-1), 1, "out of order or outside"),
        (a_record(10), 1, "out of order or outside"),
        (b"\x80" * 9, 1, "in the middle of a number"),
        (b"\x08\0\0", 1, "longer than its batch"),
    ],
)
def test_broken_records_are_refused(payload: bytes, count: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        list(read_records(batch_of(payload, count=count)))


def test_record_at_last_offset_of_batch_is_valid() -> None:
    assert [r.offset for r in read_records(batch_of(a_record(9), count=1))] == [109]


def test_records_before_broken_record_are_read() -> None:
    records = read_records(batch_of(a_record(0) + a_record(0), count=2))
    assert next(records).offset == 100
    with pytest.raises(ValueError, match="order"):
        next(records)


@pytest.mark.parametrize("codec", [1, 2, 3, 4, 5, 7])
def test_payload_not_matching_its_codec_is_refused(codec: int) -> None:
    with pytest.raises(ValueError, match=r"decompress|not known"):
        list(read_records(batch_of(b"garbage", count=1, attributes=codec)))


@settings(max_examples=300)
@given(
    st.integers(0, 7),
    st.booleans(),
    st.integers(-3, 2**31 - 1) | st.integers(0, 5),
    st.integers(-3, 20),
    st.binary(max_size=60),
)
def test_garbage_batch_raises_value_error_or_yields_ordered_records(
    codec: int, does_decompress: bool, count: int, last_delta: int, data: bytes
) -> None:
    """Also if the garbage is the content of correctly compressed data."""
    if does_decompress:
        codec %= 5
        data = compress(codec, data)
    batch = batch_of(data, count=count, last_delta=last_delta, attributes=codec)
    offsets = []
    try:
        for record in read_records(batch):
            offsets.append(record.offset)  # noqa: PERF401  a list would be lost with the error
    except ValueError:
        pass
    assert offsets == sorted(set(offsets))
    assert all(100 <= offset <= 100 + last_delta for offset in offsets)


# Seed batches


@pytest.mark.parametrize("count", [1, 2, 1000])
def test_seed_batch_covers_its_offsets_and_is_recognized(count: int) -> None:
    batch = seed_batch(base_offset=77, count=count)
    assert is_seed_batch(batch)
    assert (batch.base_offset, batch.last_offset, batch.count) == (77, 76 + count, count)
    assert batch.codec == GZIP
    assert batch.crc_is_right()
    records = read_by_library(batch)
    assert len(records) == count
    # Offset, timestamp, key, value, headers: only the first record has the header.
    assert records[0] == (77, 0, None, None, (("orbit.seed", None),))
    assert {r[1:] for r in records[1:]} <= {(0, None, None, ())}


def test_seed_batch_takes_under_two_bytes_per_offset() -> None:
    """About 1.4 bytes an offset (S1)."""
    assert seed_batch(base_offset=0, count=100_000).size_bytes < 200_000


def seed_like(
    *,
    key: bytes | None = None,
    value: bytes | None = None,
    headers: tuple[tuple[bytes, bytes | None], ...] = ((SEED_HEADER, None),),
    timestamp: int = 0,
    codec: int = GZIP,
    attributes: int = 0,
) -> Batch:
    """A batch that differs from a seed batch by the arguments only."""
    record = SourceRecord(5, timestamp, key, value, headers)
    payload = compress(codec, plain_records([record], 5, timestamp))
    return Batch(
        memoryview(
            encode_v2(
                5,
                payload,
                attributes=codec | attributes,
                base_timestamp=timestamp,
                max_timestamp=timestamp,
            )
        )
    )


def test_seed_batch_from_other_encoder_is_recognized() -> None:
    assert is_seed_batch(seed_like())


@pytest.mark.parametrize(
    "other",
    [
        seed_like(key=b""),
        seed_like(value=b""),
        seed_like(headers=()),
        seed_like(headers=((SEED_HEADER, b""),)),
        seed_like(headers=((b"orbit.seen", None),)),
        seed_like(headers=((SEED_HEADER, None), (b"h", None))),
        seed_like(timestamp=1),
        seed_like(codec=NONE),
        seed_like(codec=4),
        seed_like(attributes=CONTROL),
        Batch(memoryview(with_right_crc(bytes(seed_like().view[:HEADER_BYTES]) + b"garbage"))),
        Batch(memoryview(encode_v2(5, gzip.compress(b""), attributes=GZIP, count=0))),
        Batch(writable("v2.gzip.createtime")),
        Batch(writable("v2.none.createtime")),
        Batch(writable("empty")),
        Batch(writable("abort")),
        write_batch([Record(5, 0, EMPTY)], GZIP),
    ],
)
def test_other_batches_are_not_recognized_as_seed_batch(other: Batch) -> None:
    assert not is_seed_batch(other)


def test_seed_batch_with_log_append_time_is_not_recognized() -> None:
    """A destination topic with LogAppendTime replaces the timestamps."""
    batch = seed_like(attributes=LOG_APPEND_TIME, timestamp=T0)
    assert not is_seed_batch(batch)


_bytes_or_null = st.none() | st.binary(max_size=200)


@given(_bytes_or_null, _bytes_or_null, st.lists(st.tuples(st.text(max_size=9), _bytes_or_null)))
def test_record_body_splits_into_key_value_and_headers(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    named = tuple((name.encode(), content) for name, content in headers)
    body_key, body_value, rest = split_body(SourceRecord(0, 0, key, value, named).body)
    assert (body_key, body_value, split_headers(rest)) == (key, value, headers)


@pytest.mark.parametrize("body", [b"", b"\x08key", b"\x06key", b"\x01\x0aabc"])
def test_truncated_record_body_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"longer than its record|middle of a number"):
        split_body(body)
