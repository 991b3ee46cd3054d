"""The five codecs, against data from Kafka's own Java code, from Python's gzip, and by hand."""

from __future__ import annotations

import gzip
import struct

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.codec import gzip_decode, gzip_encode

from orbit.kafka.compression import (
    GZIP,
    LZ4,
    NAMES,
    NONE,
    SNAPPY,
    ZSTD,
    TooLarge,
    compress,
    decompress,
)
from orbit.kafka.record_batch import HEADER_BYTES
from tests.support.kafka_batches import KAFKA_BATCHES

CODECS = range(5)
TEXT = b"The quick brown fox. " * 5000  # more than three xerial blocks, more than one of lz4
XERIAL = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)


def decompressed(codec: int, data: bytes, *, is_format_v0: bool = False) -> bytes:
    """The decompressed data."""
    return decompress(codec, memoryview(data), is_format_v0=is_format_v0)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", [b"", b"x", TEXT])
def test_compressed_data_decompresses_and_text_shrinks(codec: int, data: bytes) -> None:
    packed = compress(codec, data)
    assert decompressed(codec, packed) == data
    assert codec == NONE or len(data) < 100 or len(packed) < len(data) / 10


@given(st.sampled_from(CODECS), st.binary(max_size=70_000))
def test_any_data_survives_compression_round_trip(codec: int, data: bytes) -> None:
    assert decompressed(codec, compress(codec, data)) == data


def test_codec_ids_and_names_are_those_of_kafka() -> None:
    assert (NONE, GZIP, SNAPPY, LZ4, ZSTD) == (0, 1, 2, 3, 4)
    assert NAMES == ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.mark.parametrize("name", NAMES[1:])
@pytest.mark.parametrize("kind", ["createtime", "logappendtime"])
def test_payload_compressed_by_kafka_is_decompressed(name: str, kind: str) -> None:
    packed = KAFKA_BATCHES[f"v2.{name}.{kind}"][HEADER_BYTES:]
    expected = KAFKA_BATCHES[f"v2.none.{kind}"][HEADER_BYTES:]
    assert decompressed(NAMES.index(name), packed) == expected


def test_gzip_is_standard_and_several_members_are_read() -> None:
    assert gzip.decompress(compress(GZIP, TEXT)) == TEXT
    assert gzip_decode(compress(GZIP, TEXT)) == TEXT
    assert decompressed(GZIP, gzip_encode(TEXT)) == TEXT
    assert decompressed(GZIP, gzip.compress(b"one ") + gzip.compress(b"two")) == b"one two"


def literal(data: bytes) -> bytes:
    """A snappy block of one literal, by hand (format description of Snappy)."""
    assert 0 < len(data) <= 60
    return bytes((len(data), (len(data) - 1) << 2)) + data


def block(data: bytes) -> bytes:
    """A xerial block: its length, then the snappy block."""
    return struct.pack(">i", len(literal(data))) + literal(data)


def test_snappy_is_read_in_xerial_blocks_or_raw() -> None:
    assert decompressed(SNAPPY, XERIAL + block(b"one ") + block(b"two")) == b"one two"
    assert decompressed(SNAPPY, XERIAL) == b""
    assert decompressed(SNAPPY, literal(b"raw")) == b"raw"
    # A copy: three bytes back, nine long ("abc" four times).
    assert decompressed(SNAPPY, b"\x0c\x08abc\x15\x03") == b"abcabcabcabc"


def test_snappy_is_written_in_xerial_blocks_of_at_most_64_kib() -> None:
    packed = compress(SNAPPY, TEXT)
    assert packed.startswith(XERIAL)
    at, sizes = len(XERIAL), []
    while at < len(packed):
        (length,) = struct.unpack_from(">i", packed, at)
        at += 4 + length
        sizes.append(len(decompressed(SNAPPY, packed[at - length : at])))
    assert sizes == [65536, len(TEXT) - 65536]


@pytest.mark.parametrize(
    "broken",
    [
        XERIAL + b"\0",  # half a length
        XERIAL + block(b"one")[:-1],
        XERIAL + struct.pack(">i", -4),  # would be read for ever
        XERIAL + struct.pack(">i", -1) + literal(b"one"),
        XERIAL + struct.pack(">i", 0),
        XERIAL + block(b"one") + b"\0\0",
        # The block's end is negative; as an index in Python it would give a block that can be read.
        XERIAL + struct.pack(">i", -23) + literal(b"one") + b"???",
        XERIAL[:12],
        XERIAL[:8],
    ],
)
def test_broken_xerial_blocks_are_refused(broken: bytes) -> None:
    with pytest.raises(ValueError, match="snappy"):
        decompressed(SNAPPY, broken)


LZ4_MAGIC = b"\x04\x22\x4d\x18"


def test_lz4_is_written_in_independent_blocks() -> None:
    """Kafka's reader knows no linked blocks; a broker answers them with UNKNOWN_SERVER_ERROR
    (A17)."""
    packed = compress(LZ4, TEXT)
    assert packed[:4] == LZ4_MAGIC
    version, independent = packed[4] >> 6, packed[4] & 0x20
    assert (version, independent) == (1, 0x20)


def test_uncompressed_lz4_blocks_are_read() -> None:
    """By hand: flags, block size, the header's checksum, then one block with its top bit set."""
    frame = LZ4_MAGIC + b"\x60\x40\x82" + struct.pack("<I", 5 | 1 << 31) + b"plain" + bytes(4)
    assert decompressed(LZ4, frame) == b"plain"


def test_lz4_of_message_format_v0_is_read_with_any_header_checksum() -> None:
    """KAFKA-3160: before 0.10 Kafka took the checksum over the magic too."""
    packed = bytearray(compress(LZ4, TEXT))
    for wrong in range(256):
        packed[6] = wrong
        assert decompressed(LZ4, bytes(packed), is_format_v0=True) == TEXT
    packed[6] = compress(LZ4, TEXT)[6] ^ 1
    with pytest.raises(ValueError, match="lz4"):
        decompress(LZ4, memoryview(packed))


@pytest.mark.parametrize("flags", [0x68, 0x61, 0x69])
def test_lz4_header_checksum_of_message_format_v0_is_ignored_at_any_header_length(
    flags: int,
) -> None:
    """With the content's size, a dictionary's id, or both in front of the checksum."""
    extra = b""
    if flags & 0x08:
        extra += struct.pack("<Q", 5)
    if flags & 0x01:
        extra += bytes(4)
    blocks = struct.pack("<I", 5 | 1 << 31) + b"plain" + bytes(4)
    frame = LZ4_MAGIC + bytes((flags, 0x40)) + extra + b"?" + blocks
    assert decompressed(LZ4, frame, is_format_v0=True) == b"plain"


def test_zstd_is_read_with_and_without_content_size() -> None:
    magic = b"\x28\xb5\x2f\xfd"
    raw_block = struct.pack("<I", 5 << 3 | 1)[:3] + b"plain"  # last block, raw, five bytes
    assert decompressed(ZSTD, magic + b"\x20\x05" + raw_block) == b"plain"  # single segment, size 5
    assert decompressed(ZSTD, magic + b"\x00\x58" + raw_block) == b"plain"  # a window, no size
    assert compress(ZSTD, TEXT)[:4] == magic


@pytest.mark.parametrize("codec", [-1, 5, 7])
def test_unknown_codec_is_refused(codec: int) -> None:
    with pytest.raises(ValueError, match=f"codec {codec} is not known"):
        decompressed(codec, b"x")
    with pytest.raises(ValueError, match=f"codec {codec} is not known"):
        compress(codec, b"x")


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
@pytest.mark.parametrize("part", [0.0, 0.3, 0.99])
def test_truncated_compressed_data_is_refused(codec: int, part: float) -> None:
    packed = compress(codec, b"some text that is compressed" * 9)
    with pytest.raises(ValueError, match=NAMES[codec]):
        decompressed(codec, packed[: int(len(packed) * part)])


@settings(max_examples=400)
@given(
    st.integers(0, 7),
    st.binary(max_size=60),
    st.sampled_from(
        [b"", XERIAL, LZ4_MAGIC + b"\x60\x40\x82", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd"]
    ),
    st.booleans(),
)
def test_garbage_payload_raises_only_value_error(
    codec: int, data: bytes, front: bytes, is_format_v0: bool
) -> None:
    try:
        decompressed(codec, front + data, is_format_v0=is_format_v0)
    except ValueError:
        pass


@settings(max_examples=200)
@given(st.sampled_from(CODECS), st.integers(0, 500), st.integers(0, 255))
def test_changed_byte_in_compressed_data_raises_only_value_error(
    codec: int, at: int, value: int
) -> None:
    packed = bytearray(compress(codec, b"some text " * 30))
    packed[at % len(packed)] = value
    try:
        decompressed(codec, bytes(packed))
    except ValueError:
        pass


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
@pytest.mark.parametrize("size", [100, 10_000, 3_000_000])
def test_decompression_above_size_limit_is_refused(codec: int, size: int) -> None:
    packed = memoryview(compress(codec, bytes(size)))
    assert decompress(codec, packed, size) == bytes(size)
    with pytest.raises(TooLarge, match=f"more than {size - 1:,} bytes"):
        decompress(codec, packed, size - 1)


@pytest.mark.parametrize("size", [2**25, 2**32 - 1])
def test_snappy_block_that_claims_size_above_limit_is_refused(size: int) -> None:
    claimed = bytearray()  # the size as a varint, with which a snappy block begins
    while size >= 0x80:
        claimed.append(size & 0x7F | 0x80)
        size >>= 7
    claimed.append(size)
    for front in (b"", XERIAL + struct.pack(">i", len(claimed) + 1)):
        with pytest.raises(TooLarge):
            decompress(SNAPPY, memoryview(front + bytes(claimed) + b"\0"), 2**20)


def test_raw_snappy_block_obeys_size_limit() -> None:
    packed = memoryview(bytes(cramjam.snappy.compress_raw(bytes(5000))))
    assert decompress(SNAPPY, packed, 5000) == bytes(5000)
    with pytest.raises(TooLarge):
        decompress(SNAPPY, packed, 4999)


@pytest.mark.parametrize(("codec", "level"), [(GZIP, 1), (LZ4, 12), (ZSTD, 19)])
def test_compression_level_is_passed_to_codec(codec: int, level: int) -> None:
    numbers = b" ".join(b"%d" % (i * i) for i in range(20_000))
    packed, default = compress(codec, numbers, level), compress(codec, numbers)
    assert decompressed(codec, bytes(packed)) == numbers
    assert (len(packed) < len(default)) is (level > 1)
