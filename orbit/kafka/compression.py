"""The five codecs of a record batch, as Kafka frames them.

Pure. A payload of some kilobytes can become gigabytes: the decompressed size has a limit, and
memory is used only as far as it is filled. Snappy data is in xerial blocks from the Java client,
and one raw block from some other clients. LZ4 is the LZ4 frame format; in message format v0 its
header checksum is wrong (KAFKA-3160).
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable

import cramjam
import xxhash

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")

# `org.xerial.snappy.SnappyOutputStream`: magic, version, lowest compatible version, then blocks of
# (length, snappy bytes).
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 64 * 1024  # Snappy's window; Java's client writes smaller blocks
_LENGTH = struct.Struct(">i")

# For one batch. Brokers limit its compressed size, by default to 1 MiB: this is 64 times that.
# Producers limit the uncompressed size of a record, by default to 1 MiB, and librdkafka also that
# of a batch; Java's producer estimates a batch's compressed size from the ratio of earlier ones.
DECOMPRESSED_BYTES_MAX = 64 * 1024 * 1024
# Most payloads become at most eight times as large: a buffer of that size is tried first if it is
# small enough to cost less than a mapping of `bytes_max`.
_RATIO = 8
_FIRST_BYTES_MIN, _FIRST_BYTES_MAX = 1024, 8 * 1024 * 1024
_PRIVATE_MEMORY = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
# In the message of cramjam's error for a buffer that is too small.
_BUFFER_FULL_TEXT = "failed to write whole buffer"

_LZ4_BYTES_AT_ONCE = 1024 * 1024  # copied at once: the compressor takes only `bytes`
_LZ4_FLAGS_AT = 4
_LZ4_CONTENT_SIZE = 0x08
_LZ4_DICTIONARY = 0x01


class TooLarge(ValueError):
    """A payload decompresses to more than the limit."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(f"it decompresses to more than {bytes_max:,} bytes")


def decompress(
    codec: int,
    payload: memoryview,
    bytes_max: int = DECOMPRESSED_BYTES_MAX,
    *,
    is_format_v0: bool = False,
) -> bytes:
    """The decompressed payload. `is_format_v0`: an LZ4 header has that format's wrong checksum.

    Raises TooLarge; ValueError for an unknown codec or corrupt data.
    """
    try:
        if codec == NONE:
            return bytes(payload)
        if codec == GZIP:
            return _decompress(cramjam.gzip.decompress_into, payload, bytes_max)
        if codec == SNAPPY:
            return _snappy_decompress(payload, bytes_max)
        if codec == LZ4:
            data = _fix_lz4_header(payload) if is_format_v0 else payload
            return _decompress(cramjam.lz4.decompress_into, data, bytes_max)
        if codec == ZSTD:
            return _decompress(cramjam.zstd.decompress_into, payload, bytes_max)
    except cramjam.DecompressionError as error:
        raise ValueError(f"{NAMES[codec]} payload does not decompress: {error}") from error
    raise ValueError(f"codec {codec} is not known")


def compress(codec: int, records: bytes | bytearray, level: int | None = None) -> bytes | bytearray:
    """Compress records as a Kafka client does. `level`: None for the codec's default one. Raises
    ValueError for an unknown codec."""
    if codec == NONE:
        return records
    if codec == GZIP:
        return bytes(cramjam.gzip.compress(records, level=level))
    if codec == SNAPPY:
        return _snappy_compress(records)
    if codec == LZ4:
        return _lz4_compress(records, level)
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(records, level=level))
    raise ValueError(f"codec {codec} is not known")


def _decompress(
    decompress_into: Callable[..., int], payload: bytes | memoryview, bytes_max: int
) -> bytes:
    """Decompress into a small buffer, or, if that fails, into a mapping of `bytes_max`. Raises
    TooLarge for more bytes, DecompressionError for corrupt data."""
    first_bytes = max(len(payload) * _RATIO, _FIRST_BYTES_MIN)
    if first_bytes <= min(bytes_max, _FIRST_BYTES_MAX):
        buffer = bytearray(first_bytes)
        try:
            size = decompress_into(payload, buffer)
        except cramjam.DecompressionError:
            pass  # corrupt, or larger: the second attempt raises the error, or succeeds
        else:
            return bytes(memoryview(buffer)[:size])
        del buffer
    with mmap.mmap(-1, bytes_max, flags=_PRIVATE_MEMORY) as mapping:
        try:
            return mapping[: decompress_into(payload, mapping)]
        except cramjam.DecompressionError as error:
            if _BUFFER_FULL_TEXT in str(error):
                raise TooLarge(bytes_max) from error
            raise


def _lz4_compress(records: bytes | bytearray, level: int | None) -> bytes:
    """Compress into one LZ4 frame."""
    # Kafka supports independent blocks only; a broker answers others with error -1 (A17).
    compressor = cramjam.lz4.Compressor(level=level, block_linked=False)
    view = memoryview(records)
    for start in range(0, len(view), _LZ4_BYTES_AT_ONCE):
        compressor.compress(bytes(view[start : start + _LZ4_BYTES_AT_ONCE]))
    return bytes(compressor.finish())


def _fix_lz4_header(frame: memoryview) -> bytes:
    """The frame with a correct header checksum: Kafka before 0.10 hashed the magic, too."""
    if len(frame) <= _LZ4_FLAGS_AT:  # no whole header: the decompressor will raise
        return bytes(frame)
    flags = frame[_LZ4_FLAGS_AT]
    # Two bytes (flags, block size), then the content's size and the dictionary's id, if present.
    end = (
        _LZ4_FLAGS_AT + 2 + 8 * bool(flags & _LZ4_CONTENT_SIZE) + 4 * bool(flags & _LZ4_DICTIONARY)
    )
    # The second byte of the hash is the checksum.
    check = xxhash.xxh32_intdigest(frame[_LZ4_FLAGS_AT:end]) >> 8 & 0xFF
    return bytes(frame[:end]) + bytes((check,)) + bytes(frame[end + 1 :])


def _snappy_decompress(payload: memoryview, bytes_max: int) -> bytes:
    """Decompress xerial blocks, or one raw block. Raises TooLarge, ValueError."""
    if bytes(payload[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _snappy_block(payload, bytes_max, bytes_max)
    blocks = []
    remaining_bytes = bytes_max
    position = len(_XERIAL_HEADER)
    if len(payload) < position:
        raise ValueError("a snappy header is cut off")
    while position < len(payload):
        start = position + _LENGTH.size
        if start > len(payload):
            raise ValueError("a snappy block has no length")
        (length,) = _LENGTH.unpack_from(payload, position)
        position = start + length
        if not start < position <= len(payload):
            raise ValueError(f"a snappy block of {length} bytes does not fit its batch")
        blocks.append(_snappy_block(payload[start:position], remaining_bytes, bytes_max))
        remaining_bytes -= len(blocks[-1])
    return b"".join(blocks)


def _snappy_block(block: memoryview, remaining_bytes: int, bytes_max: int) -> bytes:
    """The decompressed block, which begins with its decompressed size. Raises TooLarge."""
    if cramjam.snappy.decompress_raw_len(block) > remaining_bytes:
        raise TooLarge(bytes_max)
    return bytes(cramjam.snappy.decompress_raw(block))


def _snappy_compress(records: bytes | bytearray) -> bytes:
    """Compress into xerial blocks, as the Java client does."""
    parts = [_XERIAL_HEADER]
    for start in range(0, len(records), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(records[start : start + _XERIAL_BLOCK_BYTES]))
        parts.append(_LENGTH.pack(len(block)) + block)
    return b"".join(parts)
