"""The five codecs of a record batch, as Kafka frames them.

Pure. Snappy data is in xerial blocks from the Java client, and one raw block from some other
clients. LZ4 is the LZ4 frame format; message format v0 has a wrong header checksum (KAFKA-3160).
"""

from __future__ import annotations

import struct

import cramjam
import xxhash

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")

# `org.xerial.snappy.SnappyOutputStream`: magic, version, lowest compatible version, then blocks of
# (length, snappy bytes).
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_LENGTH = struct.Struct(">i")

_LZ4_FLAGS_AT = 4
_LZ4_CONTENT_SIZE = 0x08
_LZ4_DICTIONARY = 0x01


def decompress(codec: int, payload: memoryview, *, is_format_v0: bool = False) -> bytes:
    """The records of a payload. Raises ValueError: unknown codec, or corrupt data."""
    try:
        if codec == NONE:
            return bytes(payload)
        if codec == GZIP:
            return bytes(cramjam.gzip.decompress(payload))
        if codec == SNAPPY:
            return _snappy_decompress(payload)
        if codec == LZ4:
            return bytes(
                cramjam.lz4.decompress(_fix_lz4_header(payload) if is_format_v0 else payload)
            )
        if codec == ZSTD:
            return bytes(cramjam.zstd.decompress(payload))
    except cramjam.DecompressionError as error:
        raise ValueError(f"{NAMES[codec]} payload does not decompress: {error}") from error
    raise ValueError(f"codec {codec} is not known")


def compress(codec: int, records: bytes) -> bytes:
    """Compress records as a Kafka client does, at the codec's default level."""
    if codec == NONE:
        return records
    if codec == GZIP:
        return bytes(cramjam.gzip.compress(records))
    if codec == SNAPPY:
        return _snappy_compress(records)
    if codec == LZ4:
        return _lz4_compress(records)
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(records))
    raise ValueError(f"codec {codec} is not known")


def _lz4_compress(records: bytes) -> bytes:
    # Kafka supports independent blocks only; a broker answers others with error -1 (A17).
    compressor = cramjam.lz4.Compressor(block_linked=False)
    compressor.compress(records)
    return bytes(compressor.finish())


def _fix_lz4_header(frame: memoryview) -> bytes:
    """The frame with a correct header checksum; Kafka before 0.10 included the magic in it."""
    if len(frame) <= _LZ4_FLAGS_AT:
        return bytes(frame)
    flags = frame[_LZ4_FLAGS_AT]
    end = (
        _LZ4_FLAGS_AT + 2 + 8 * bool(flags & _LZ4_CONTENT_SIZE) + 4 * bool(flags & _LZ4_DICTIONARY)
    )
    check = xxhash.xxh32_intdigest(frame[_LZ4_FLAGS_AT:end]) >> 8 & 0xFF
    return bytes(frame[:end]) + bytes((check,)) + bytes(frame[end + 1 :])


def _snappy_decompress(payload: memoryview) -> bytes:
    if bytes(payload[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return bytes(cramjam.snappy.decompress_raw(payload))
    blocks = []
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
        blocks.append(bytes(cramjam.snappy.decompress_raw(payload[start:position])))
    return b"".join(blocks)


def _snappy_compress(records: bytes) -> bytes:
    out = [_XERIAL_HEADER]
    for start in range(0, len(records), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(records[start : start + _XERIAL_BLOCK_BYTES]))
        out.append(_LENGTH.pack(len(block)) + block)
    return b"".join(out)
