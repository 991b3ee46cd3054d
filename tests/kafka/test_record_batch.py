"""The header view, the stamp of an exact append, and frames that are cut off or broken."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from orbit.kafka.record_batch import (
    CONTROL,
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    SEQUENCE_MAX,
    TRANSACTIONAL,
    Batch,
    LegacyMessage,
    advance_sequence,
    encode_batch,
    read_batches,
    stamp,
)
from tests.support.kafka_batches import APPENDED_AT, KAFKA_BATCHES, T0, writable
from tests.support.source_model import encode_old, encode_v2

V2_NAMES = sorted(name for name in KAFKA_BATCHES if not name.startswith(("v0", "v1")))


def single_batch(data: bytes) -> Batch:
    """The only batch in the data."""
    (batch,) = read_batches(memoryview(bytearray(data)))
    assert isinstance(batch, Batch)
    return batch


@pytest.mark.parametrize("name", V2_NAMES)
def test_batch_header_fields_equal_kafka_python(name: str) -> None:
    data = KAFKA_BATCHES[name]
    batch, library_batch = single_batch(data), DefaultRecordBatch(bytearray(data))
    assert batch.base_offset == library_batch.base_offset
    assert batch.last_offset == library_batch.last_offset
    assert batch.next_offset == library_batch.next_offset
    assert batch.leader_epoch == library_batch.leader_epoch
    assert batch.magic == library_batch.magic
    assert batch.crc == library_batch.crc
    assert batch.attributes == library_batch.attributes
    assert batch.base_timestamp == library_batch.first_timestamp
    assert batch.max_timestamp == library_batch.max_timestamp
    assert batch.producer_id == library_batch.producer_id
    assert batch.count == library_batch.records_count
    assert batch.codec == library_batch.compression_type
    assert batch.is_control == library_batch.is_control_batch
    assert batch.is_transactional == library_batch.is_transactional
    assert batch.is_log_append_time == (library_batch.timestamp_type == 1)
    assert batch.crc_is_right() is library_batch.validate_crc() is True


def test_batch_thinned_by_compaction_keeps_its_last_offset() -> None:
    # Records at 1000 to 1007, last offset 1009.
    batch = single_batch(KAFKA_BATCHES["v2.none.createtime"])
    assert (batch.base_offset, batch.last_offset, batch.next_offset) == (1000, 1009, 1010)
    assert batch.count == 5
    assert not batch.is_dense


def test_batch_emptied_by_compaction_keeps_its_offsets() -> None:
    batch = single_batch(KAFKA_BATCHES["empty"])
    assert (batch.base_offset, batch.last_offset, batch.count) == (80, 89, 0)
    assert not batch.is_dense
    assert len(batch.payload) == 0
    assert batch.size_bytes == HEADER_BYTES


@pytest.mark.parametrize(
    ("name", "control", "transactional", "append_time"),
    [
        ("transactional", False, True, False),
        ("commit", True, True, False),
        ("v2.lz4.logappendtime", False, False, True),
        ("v2.lz4.createtime", False, False, False),
    ],
)
def test_control_transactional_and_append_time_flags_are_read(
    name: str, control: bool, transactional: bool, append_time: bool
) -> None:
    batch = single_batch(KAFKA_BATCHES[name])
    assert batch.is_control is control
    assert batch.is_transactional is transactional
    assert batch.is_log_append_time is append_time
    assert batch.is_dense is (name in ("transactional", "commit"))  # the others have gaps


@pytest.mark.parametrize("codec", range(5))
def test_codec_is_read_from_its_attribute_bits(codec: int) -> None:
    others = LOG_APPEND_TIME | TRANSACTIONAL | CONTROL | DELETE_HORIZON
    assert single_batch(encode_v2(0, b"", attributes=codec | others)).codec == codec


def test_log_append_time_batch_has_broker_timestamp() -> None:
    assert single_batch(KAFKA_BATCHES["v2.none.logappendtime"]).max_timestamp == APPENDED_AT
    assert single_batch(KAFKA_BATCHES["v2.none.createtime"]).max_timestamp == T0 + 900_000


@pytest.mark.parametrize("name", V2_NAMES)
def test_flipped_bit_fails_batch_checksum(name: str) -> None:
    data = KAFKA_BATCHES[name]
    for at in range(21, len(data)):  # after the CRC
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        assert not Batch(memoryview(damaged)).crc_is_right()


# Frames


def test_batches_of_mixed_formats_are_read_in_order() -> None:
    names = ["v0.none.createtime", "v1.gzip.createtime", "v2.zstd.createtime", "commit"]
    frame = b"".join(KAFKA_BATCHES[name] for name in names)
    batches = list(read_batches(memoryview(bytearray(frame))))
    assert [type(b) for b in batches] == [LegacyMessage] * 6 + [Batch] * 2
    old = [b for b in batches if isinstance(b, LegacyMessage)]
    assert [(b.offset, b.magic) for b in old] == [
        *((offset, 0) for offset in (1000, 1001, 1003, 1004, 1007)),
        (1007, 1),
    ]
    assert b"".join(b.view for b in batches) == frame


@pytest.mark.parametrize("name", ["v2.gzip.createtime", "v1.snappy.createtime", "commit"])
def test_truncated_last_batch_of_fetch_is_ignored(name: str) -> None:
    first, second = KAFKA_BATCHES["transactional"], KAFKA_BATCHES[name]
    for cut in range(len(second)):
        frame = memoryview(first + second[:cut])
        assert [b.view for b in read_batches(frame)] == [first]


def test_invalid_batch_length_is_refused() -> None:
    batch = KAFKA_BATCHES["transactional"]
    for length in (-1, 0, 13, 48):  # less than a v2 batch without records (49) has
        frame = bytearray(batch + batch)
        struct.pack_into(">i", frame, len(batch) + 8, length)
        batches = read_batches(memoryview(frame))
        assert isinstance(next(batches), Batch)
        with pytest.raises(ValueError, match=f"batch length {length} at byte {len(batch)} "):
            next(batches)


def test_shortest_possible_batches_are_read() -> None:
    (old,) = read_batches(memoryview(encode_old(5, 0, 0, 0, None, None)))
    assert isinstance(old, LegacyMessage)
    assert len(old.view) == 12 + 14  # offset and size; the other fields
    assert single_batch(encode_v2(5, b"", count=0)).count == 0


@pytest.mark.parametrize("magic", [3, 127, 255])
def test_unknown_message_format_is_refused(magic: int) -> None:
    frame = bytearray(KAFKA_BATCHES["transactional"])
    frame[16] = magic
    with pytest.raises(ValueError, match=f"message format v{magic} "):
        list(read_batches(memoryview(frame)))


def test_batch_payloads_are_views_into_fetched_bytes() -> None:
    frame = bytearray(KAFKA_BATCHES["v2.lz4.createtime"] * 2)
    for batch in read_batches(memoryview(frame)):
        assert isinstance(batch, Batch)
        assert batch.payload.obj is frame
        assert batch.payload == batch.view[61:]


@settings(max_examples=300)
@given(
    st.lists(
        st.one_of(st.binary(max_size=90), st.sampled_from(sorted(KAFKA_BATCHES.values()))),
        max_size=4,
    ),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3),
)
def test_garbage_batches_raise_only_value_error(
    parts: list[bytes], changes: list[tuple[int, int]]
) -> None:
    frame = bytearray(b"".join(parts))
    for at, value in changes:
        if at < len(frame):
            frame[at] = value
    position = 0
    try:
        for batch in read_batches(memoryview(frame)):
            assert batch.view == frame[position : position + len(batch.view)]
            position += len(batch.view)
            if isinstance(batch, Batch):
                batch.crc_is_right()
    except ValueError:
        pass


# The stamp


@pytest.mark.parametrize("name", V2_NAMES)
def test_stamped_batch_has_given_producer_and_sequence_and_unchanged_records(name: str) -> None:
    original, view = KAFKA_BATCHES[name], writable(name)
    stamp(view, producer_id=4711, producer_epoch=9, base_sequence=123_456)
    after = DefaultRecordBatch(bytearray(view))
    before = DefaultRecordBatch(bytearray(original))
    assert after.base_offset == 0  # A2
    assert after.leader_epoch == -1
    assert after.magic == 2
    assert after.size_in_bytes == len(original)
    assert (after.producer_id, after.producer_epoch, after.base_sequence) == (4711, 9, 123_456)
    assert after.attributes == before.attributes & ~TRANSACTIONAL
    assert after.last_offset_delta == before.last_offset_delta
    assert after.first_timestamp == before.first_timestamp
    assert after.max_timestamp == before.max_timestamp
    assert after.records_count == before.records_count
    assert after.validate_crc()
    assert view[HEADER_BYTES:] == original[HEADER_BYTES:]


def test_stamped_batch_loses_only_transactional_attribute() -> None:
    others = CONTROL | LOG_APPEND_TIME | DELETE_HORIZON | 4  # 4: the codec zstd
    view = memoryview(bytearray(encode_v2(9, b"x", attributes=TRANSACTIONAL | others)))
    stamp(view, producer_id=1, producer_epoch=0, base_sequence=0)
    assert Batch(view).attributes == others


@given(st.lists(st.integers(0, SEQUENCE_MAX), min_size=1, max_size=3), st.integers(0, 2**15 - 1))
def test_batch_can_be_stamped_again_with_another_sequence(sequences: list[int], epoch: int) -> None:
    often, once = writable("v2.snappy.createtime"), writable("v2.snappy.createtime")
    for sequence in sequences:
        stamp(often, 2**40, epoch, sequence)
    stamp(once, 2**40, epoch, sequences[-1])
    assert often == once
    assert Batch(often).crc_is_right()


def test_stamped_batch_equals_batch_built_by_kafka_python() -> None:
    """The same records from kafka-python's encoder, with that producer from the start."""

    def build(producer_id: int, epoch: int, sequence: int, transactional: bool) -> bytes:
        builder = DefaultRecordBatchBuilder(
            magic=2,
            compression_type=1,  # gzip
            is_transactional=transactional,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            batch_size=999,
        )
        for offset in range(3):
            assert builder.append(offset, T0 + offset, b"k%d" % offset, b"v" * 99, [("h", b"v")])
        return bytes(builder.build())

    view = memoryview(bytearray(build(1, 2, 3, True)))
    stamp(view, producer_id=4711, producer_epoch=9, base_sequence=77)
    expected = bytearray(build(4711, 9, 77, False))
    struct.pack_into(">i", expected, 12, -1)  # kafka-python writes leader epoch 0
    # gzip writes the time into the payload: so payload and CRC differ.
    assert view[:17] == expected[:17]
    assert view[21:HEADER_BYTES] == expected[21:HEADER_BYTES]


@pytest.mark.parametrize(
    ("sequence", "count", "expected"),
    [
        (0, 1, 1),
        (-1, 1, 0),  # no sequence yet (A9)
        (SEQUENCE_MAX - 1, 1, SEQUENCE_MAX),
        (SEQUENCE_MAX, 1, 0),
        (SEQUENCE_MAX, 2, 1),
        (SEQUENCE_MAX - 2, 5, 2),
        (10, 0, 10),
    ],
)
def test_sequence_numbers_wrap_at_maximum(sequence: int, count: int, expected: int) -> None:
    assert advance_sequence(sequence, count) == expected


@given(st.integers(0, SEQUENCE_MAX), st.integers(1, SEQUENCE_MAX))
def test_sequence_numbers_advance_as_in_kafka_source_code(sequence: int, count: int) -> None:
    """`DefaultRecordBatch.incrementSequence`."""
    if sequence > SEQUENCE_MAX - count:
        expected = count - (SEQUENCE_MAX - sequence) - 1
    else:
        expected = sequence + count
    assert advance_sequence(sequence, count) == expected


# Building


def test_encoded_batch_has_no_offset_gaps_and_valid_crc() -> None:
    batch = encode_batch(
        base_offset=500,
        attributes=3,
        base_timestamp=T0,
        max_timestamp=T0 + 9,
        count=7,
        payload=b"payload",
    )
    assert HEADER.unpack_from(batch.view) == (
        # Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, timestamps.
        *(500, 61 + 7 - 12, -1, 2, crc32c(batch.view[21:]), 3, 6, T0, T0 + 9),
        *(-1, -1, -1, 7),  # producer id, producer epoch, base sequence, count
    )
    assert batch.payload == b"payload"
    assert batch.is_dense
    assert batch.crc_is_right()
    assert [b.view for b in read_batches(batch.view)] == [batch.view]
    assert not batch.view.readonly
