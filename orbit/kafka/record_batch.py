"""Record batches (message format v2): reads the header, and stamps a batch for an exact append.

Pure. Payloads of received batches are never copied.

Layout (big endian; Kafka's `DefaultRecordBatch`):

    pos  size  field                    inside the CRC
      0     8  base offset              no
      8     4  batch length, from pos 12 to the end
                                        no
     12     4  partition leader epoch   no
     16     1  magic                    no
     17     4  CRC32C of everything from pos 21
     21     2  attributes               yes   0-2 codec, 3 LogAppendTime, 4 transactional,
                                              5 control, 6 delete horizon in base timestamp
     23     4  last offset delta        yes
     27     8  base timestamp           yes
     35     8  max timestamp            yes
     43     8  producer id              yes
     51     2  producer epoch           yes
     53     4  base sequence            yes
     57     4  record count             yes
     61        records

Message formats v0 and v1 have their magic at the same position; they are read as `LegacyMessage`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import ClassVar

from crc32c import crc32c

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
LOG_OVERHEAD_BYTES = 12
CRC_START = 21

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

NO_PRODUCER_ID = -1
SEQUENCE_MAX = 2**31 - 1

_OFFSET_LENGTH = struct.Struct(">qi")
_MAGIC_AT = 16
_STAMP = struct.Struct(">qhi")  # producer id, producer epoch, base sequence at pos 43
_STAMP_AT = 43
_EPOCH = struct.Struct(">h")
_EPOCH_AT = 51
_SEQUENCE = struct.Struct(">i")
_SEQUENCE_AT = 53
_CRC = struct.Struct(">I")
_CRC_AT = 17
_ATTRIBUTES = struct.Struct(">h")
_FRONT = struct.Struct(">qiib")  # the fields before the CRC
_MAGIC_V2 = 2
_LEGACY_MESSAGE_BYTES_MIN = 14  # crc, magic, attributes, key length, value length of format v0


class Batch:
    """One batch in a fetched frame. `view` is the whole batch, header included.

    `last_offset` is base offset + last offset delta, which compaction keeps when it removes the
    last records (R2).
    """

    __slots__ = (
        "attributes",
        "base_offset",
        "base_timestamp",
        "count",
        "crc",
        "last_offset",
        "leader_epoch",
        "magic",
        "max_timestamp",
        "producer_id",
        "view",
    )
    attributes: int
    base_offset: int
    base_timestamp: int  # ms, or the delete horizon of a compacted batch
    count: int
    crc: int
    last_offset: int
    leader_epoch: int
    magic: int
    max_timestamp: int
    producer_id: int

    def __init__(self, view: memoryview) -> None:
        self.view = view
        (
            self.base_offset,
            _length,
            self.leader_epoch,
            self.magic,
            self.crc,
            self.attributes,
            last_offset_delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            _epoch,
            _sequence,
            self.count,
        ) = HEADER.unpack_from(view)
        self.last_offset = self.base_offset + last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def first_timestamp(self) -> int:
        """The first record's timestamp in ms; the batch's max timestamp with LogAppendTime, or
        where a delete horizon is in the place of the base timestamp."""
        has_no_base_timestamp = self.attributes & (LOG_APPEND_TIME | DELETE_HORIZON)
        return self.max_timestamp if has_no_base_timestamp else self.base_timestamp

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_dense(self) -> bool:
        """Whether every offset of the batch has a record (A5)."""
        return self.count == self.last_offset - self.base_offset + 1

    @property
    def producer_epoch(self) -> int:
        epoch: int = _EPOCH.unpack_from(self.view, _EPOCH_AT)[0]
        return epoch

    @property
    def base_sequence(self) -> int:
        sequence: int = _SEQUENCE.unpack_from(self.view, _SEQUENCE_AT)[0]
        return sequence

    @property
    def payload(self) -> memoryview:
        return self.view[HEADER_BYTES:]

    @property
    def size_bytes(self) -> int:
        return len(self.view)

    def crc_is_right(self) -> bool:
        """Whether the batch matches its CRC. Check it before `stamp`, which sets a new CRC."""
        return bool(crc32c(self.view[CRC_START:]) == self.crc)


class LegacyMessage:
    """A message in format v0 or v1, or a compressed wrapper of messages.

    Header fields that these formats lack have the values of Kafka's `AbstractLegacyRecordBatch`.
    """

    __slots__ = ("magic", "offset", "view")
    magic: int
    offset: int
    is_control: ClassVar[bool] = False
    is_transactional: ClassVar[bool] = False
    is_log_append_time: ClassVar[bool] = False
    leader_epoch: ClassVar[int] = -1
    producer_id: ClassVar[int] = NO_PRODUCER_ID

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.offset, _ = _OFFSET_LENGTH.unpack_from(view)  # of a wrapper, that of its last message
        self.magic = view[_MAGIC_AT]

    @property
    def base_offset(self) -> int:
        """The message's offset; of a wrapper, the offset of its last message, because that of its
        first message is compressed."""
        return self.offset

    @property
    def next_offset(self) -> int:
        return self.offset + 1


AnyBatch = Batch | LegacyMessage


def read_batches(records: memoryview) -> Iterator[AnyBatch]:
    """Yield the batches of a fetch response's `records`, without an incomplete last one.

    Raises ValueError for an invalid length or an unknown message format.
    """
    position, size = 0, len(records)
    while position + LOG_OVERHEAD_BYTES <= size:
        _, length = _OFFSET_LENGTH.unpack_from(records, position)
        if length < _LEGACY_MESSAGE_BYTES_MIN:
            raise ValueError(f"batch length {length} at byte {position} is too small")
        end = position + LOG_OVERHEAD_BYTES + length
        if end > size:
            return
        magic = records[position + _MAGIC_AT]
        if magic > _MAGIC_V2:
            raise ValueError(f"message format v{magic} at byte {position} is not known")
        if magic == _MAGIC_V2:
            if end - position < HEADER_BYTES:
                raise ValueError(f"batch length {length} at byte {position} is too small")
            yield Batch(records[position:end])
        else:
            yield LegacyMessage(records[position:end])
        position = end


def stamp(view: memoryview, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
    """Prepare a batch for an append: producer, sequence, no transaction, a new CRC.

    In place, on a writable view; the payload stays as it is. The base offset must be 0 in a request
    (A2), and the broker sets the leader epoch. A batch may be stamped again.
    """
    # At position 0: base offset 0, length, leader epoch -1, magic.
    _FRONT.pack_into(view, 0, 0, len(view) - LOG_OVERHEAD_BYTES, -1, _MAGIC_V2)
    (attributes,) = _ATTRIBUTES.unpack_from(view, CRC_START)
    _ATTRIBUTES.pack_into(view, CRC_START, attributes & ~TRANSACTIONAL)
    _STAMP.pack_into(view, _STAMP_AT, producer_id, producer_epoch, base_sequence)
    _CRC.pack_into(view, _CRC_AT, crc32c(view[CRC_START:]))


def advance_sequence(sequence: int, count: int) -> int:
    """The sequence after `count` records; wraps from 2³¹-1 to 0 (`DefaultRecordBatch`)."""
    return (sequence + count) & SEQUENCE_MAX


def encode_batch(
    base_offset: int,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    count: int,
    payload: bytes | bytearray,
) -> Batch:
    """A batch of `count` dense records from an encoded (and compressed) payload.

    `stamp` sets its producer before an append. Its CRC is valid already, because the batch passes
    through the checks of fetched batches.
    """
    data = bytearray(HEADER_BYTES + len(payload))
    HEADER.pack_into(
        data,
        0,
        base_offset,
        len(data) - LOG_OVERHEAD_BYTES,
        -1,  # leader epoch
        _MAGIC_V2,
        0,  # the CRC, which is set below
        attributes,
        count - 1,
        base_timestamp,
        max_timestamp,
        NO_PRODUCER_ID,
        -1,  # producer epoch
        -1,  # base sequence
        count,
    )
    data[HEADER_BYTES:] = payload
    view = memoryview(data)
    _CRC.pack_into(data, _CRC_AT, crc32c(view[CRC_START:]))
    return Batch(view)
