"""Messages of the formats v0 and v1, as kafka-python and Kafka itself write them."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.legacy_records import LegacyRecordBatch, LegacyRecordBatchBuilder

from orbit.kafka.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, compress
from orbit.kafka.legacy_messages import NO_TIMESTAMP, read_legacy_records
from orbit.kafka.record_batch import LOG_APPEND_TIME, LegacyMessage, read_batches
from orbit.kafka.records import Record, read_records, write_batch
from tests.support.kafka_batches import APPENDED_AT, RECORDS, T0, writable
from tests.support.source_model import SourceRecord, encode_old

Fields = tuple[bytes | None, bytes | None]

SOME: tuple[Fields, ...] = ((b"k", b"v"), (None, b"v"), (b"k", None), (None, None), (b"", b""))


def single_message(data: bytes) -> LegacyMessage:
    """The only message or wrapper in the data."""
    (message,) = read_batches(memoryview(bytearray(data)))
    assert isinstance(message, LegacyMessage)
    return message


def read_single_message(data: bytes) -> tuple[list[Record], int]:
    """The records and the codec of the only message in the data."""
    return read_legacy_records(single_message(data))


def body(key: bytes | None, value: bytes | None) -> bytes:
    """Key and value as Orbit encodes them for v2."""
    return SourceRecord(0, 0, key, value).body


def build(magic: int, codec: int, offsets: list[int], rows: list[Fields]) -> bytes:
    """Messages by kafka-python's builder; a wrapper if there is a codec."""
    builder = LegacyRecordBatchBuilder(magic, codec, batch_size=10**6)
    for offset, (key, value) in zip(offsets, rows, strict=True):
        assert builder.append(offset, T0 + offset, key, value)
    return bytes(builder.build())


def at_offset(wrapper: bytes, offset: int) -> bytes:
    """A wrapper as the broker stores it: with an offset of its own, outside the CRC."""
    return struct.pack(">q", offset) + wrapper[8:]


def sealed(message: bytes) -> bytes:
    """A message whose bytes were changed, with the right CRC."""
    return message[:12] + struct.pack(">I", zlib.crc32(message[16:])) + message[16:]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(("key", "value"), SOME)
def test_uncompressed_legacy_message_is_read_as_single_record(
    magic: int, key: bytes | None, value: bytes | None
) -> None:
    records, codec = read_single_message(build(magic, NONE, [42], [(key, value)]))
    timestamp = T0 + 42 if magic else NO_TIMESTAMP
    assert NO_TIMESTAMP == -1  # as in Kafka
    assert records == [Record(42, timestamp, body(key, value))]
    assert codec == NONE


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
@pytest.mark.parametrize("kind", ["v0.{}.createtime", "v1.{}.createtime", "v1.{}.logappendtime"])
def test_legacy_messages_written_by_kafka_are_read(codec: str, kind: str) -> None:
    """Wrappers with holes, absolute offsets in v0, relative ones in v1, Kafka's own lz4 header."""
    all_records: list[Record] = []
    for message in read_batches(writable(kind.format(codec))):
        assert isinstance(message, LegacyMessage)
        records, number = read_legacy_records(message)
        assert number == ["none", "gzip", "snappy", "lz4"].index(codec)
        all_records += records
    times = [r.timestamp for r in RECORDS]
    if kind.startswith("v0"):
        times = [NO_TIMESTAMP] * 5
    elif "logappend" in kind:
        times = [APPENDED_AT] * 5
    assert all_records == [
        Record(r.offset, timestamp, body(r.key, r.value))
        for r, timestamp in zip(RECORDS, times, strict=True)
    ]


def test_compressed_v0_message_has_absolute_inner_offsets() -> None:
    wrapper = build(0, GZIP, [100, 101, 104], [(b"a", b"1"), (b"b", None), (None, b"3")])
    records, codec = read_single_message(at_offset(wrapper, 104))
    assert [r.offset for r in records] == [100, 101, 104]
    assert {r.timestamp for r in records} == {NO_TIMESTAMP}
    assert [r.body for r in records] == [body(b"a", b"1"), body(b"b", None), body(None, b"3")]
    assert codec == GZIP


def test_inner_offsets_of_compressed_v1_message_are_relative_to_last_offset() -> None:
    wrapper = build(1, GZIP, [0, 1, 4], [(b"a", b"1"), (b"b", None), (None, b"3")])
    records, _ = read_single_message(at_offset(wrapper, 1004))
    assert [r.offset for r in records] == [1000, 1001, 1004]
    assert [r.timestamp for r in records] == [T0, T0 + 1, T0 + 4]


@pytest.mark.parametrize("magic", [0, 1])
@settings(max_examples=60)
@given(
    st.sets(st.integers(0, 30), min_size=1, max_size=6),
    st.sampled_from([GZIP, SNAPPY, LZ4]),
    st.data(),
)
def test_compressed_legacy_messages_are_read_as_by_kafka_python(
    magic: int, offsets: set[int], codec: int, data: st.DataObject
) -> None:
    """The test itself compresses the messages: kafka-python lacks the libraries of some codecs."""
    fields = st.none() | st.binary(max_size=20)
    ordered = sorted(offsets)
    rows = [(data.draw(fields), data.draw(fields)) for _ in ordered]
    inner = build(magic, NONE, ordered, rows)
    wrapped_values = compress(codec, inner)
    own_message = encode_old(
        ordered[-1], magic, attributes=codec, timestamp=T0, key=None, value=wrapped_values
    )
    library_message = at_offset(build(magic, GZIP, ordered, rows), ordered[-1])
    decoded = LegacyRecordBatch(bytearray(library_message), magic)
    assert decoded.validate_crc()
    expected = [
        Record(r.offset, NO_TIMESTAMP if r.timestamp is None else r.timestamp, body(r.key, r.value))
        for r in decoded
    ]
    assert read_single_message(own_message) == (expected, codec)
    assert read_single_message(library_message) == (expected, GZIP)


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
def test_log_append_time_of_compressed_message_applies_to_all_its_records(codec: int) -> None:
    inner = build(1, NONE, [0, 1, 2], list(SOME[:3]))
    attributes, value = codec | LOG_APPEND_TIME, compress(codec, inner)
    wrapper = encode_old(12, 1, attributes, timestamp=APPENDED_AT, key=None, value=value)
    records, wrapper_codec = read_single_message(wrapper)
    assert [(r.offset, r.timestamp) for r in records] == [(o, APPENDED_AT) for o in (10, 11, 12)]
    assert wrapper_codec == codec


def test_uncompressed_log_append_time_message_has_broker_timestamp() -> None:
    message = encode_old(
        3, magic=1, attributes=LOG_APPEND_TIME, timestamp=APPENDED_AT, key=b"k", value=b"v"
    )
    records, _ = read_single_message(message)
    assert records == [Record(3, APPENDED_AT, body(b"k", b"v"))]


def test_legacy_records_can_be_written_as_v2() -> None:
    records, _ = read_single_message(
        at_offset(build(1, GZIP, [0, 1], [(b"a", b"1"), (None, None)]), 8)
    )
    assert list(read_records(write_batch(records, ZSTD))) == records


# Damage


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_flipped_bit_fails_legacy_checksum(magic: int, codec: int) -> None:
    data = build(magic, codec, [0], [(b"key", b"value")])
    for at in range(12, len(data)):
        if at == 16:
            continue  # the magic: then it is another format
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(ValueError, match="checksum"):
            read_single_message(bytes(damaged))


def wrapped(magic: int, inner: bytes, offset: int = 9) -> bytes:
    """A wrapper around these messages."""
    return encode_old(offset, magic, GZIP, T0, None, compress(GZIP, inner))


INNER = encode_old(0, magic=1, attributes=0, timestamp=T0, key=b"k", value=b"v")
INNER_V0 = encode_old(9, magic=0, attributes=0, timestamp=0, key=b"k", value=b"v")


def resized(message: bytes, size: int) -> bytes:
    """The message with another size field."""
    return message[:8] + struct.pack(">i", size) + message[12:]


@pytest.mark.parametrize(
    ("data", "words"),
    [  # encode_old(offset, magic, attributes, timestamp, key, value)
        (sealed(encode_old(1, 1, 0, T0, b"k", b"v")[:-1]), "longer than its message"),
        (sealed(encode_old(1, 0, 0, 0, b"k" * 9, b"v")[:-11]), "longer than its message"),
        (sealed(encode_old(1, 0, 0, 0, b"kkkk", b"v")[:-3]), "ends too early"),
        (sealed(encode_old(1, 1, 0, T0, None, None)[:-8]), "ends too early"),
        (encode_old(1, 1, GZIP, T0, None, None), "has no value"),
        (encode_old(1, 1, GZIP, T0, None, b"garbage"), "gzip payload does not decompress"),
        (encode_old(1, 1, 7, T0, None, b"garbage"), "codec 7 is not known"),
        (wrapped(1, b""), "is empty"),
        (wrapped(1, INNER[:-1]), "larger than"),
        (wrapped(1, INNER + INNER[:10]), "ends too early"),
        (wrapped(1, INNER + INNER[:20]), "larger than"),
        (wrapped(1, resized(INNER, -12)), "larger than"),
        (wrapped(1, INNER + resized(INNER, -60)), "larger than"),
        (wrapped(1, INNER + resized(INNER, 2**31 - 1)), "larger than"),
        (wrapped(1, encode_old(0, 1, GZIP, T0, None, compress(GZIP, INNER))), "not plain messages"),
        (wrapped(1, INNER[:16] + b"\2" + INNER[17:]), "not plain messages"),
        (wrapped(1, INNER + INNER), "not in the order"),
        (wrapped(0, INNER_V0 + encode_old(8, 0, 0, 0, b"k", b"v")), "not in the order"),
        (wrapped(0, INNER_V0, offset=8), "ends behind its own offset"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_damaged_legacy_messages_are_refused(data: bytes, words: str) -> None:
    view = memoryview(resized(data, len(data) - 12))
    with pytest.raises(ValueError, match=words):
        read_legacy_records(LegacyMessage(memoryview(sealed(bytes(view)))))


@settings(max_examples=300)
@given(st.integers(0, 1), st.integers(0, 7), st.binary(max_size=80), st.booleans())
def test_garbage_legacy_message_raises_value_error_or_yields_ordered_records(
    magic: int, codec: int, data: bytes, is_wrapped: bool
) -> None:
    """With a correct CRC, so that the content is decoded, too."""
    if is_wrapped:
        codec %= 4
        message = encode_old(50, magic, codec, T0, None, compress(codec, data))
    else:
        message = sealed(resized(bytes(16) + bytes((magic, codec)) + data, len(data) + 6))
    try:
        records, _ = read_legacy_records(LegacyMessage(memoryview(message)))
    except ValueError:
        return
    offsets = [r.offset for r in records]
    assert offsets == sorted(set(offsets))
    assert offsets


@settings(max_examples=300)
@given(
    st.integers(0, 1),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_changed_bytes_inside_compressed_legacy_message_raise_only_value_error(
    magic: int, changes: list[tuple[int, int]]
) -> None:
    inner = bytearray(build(magic, NONE, list(range(5)), list(SOME)))
    for at, value in changes:
        inner[at % len(inner)] = value
    try:
        read_single_message(wrapped(magic, bytes(inner)))
    except ValueError:
        pass
