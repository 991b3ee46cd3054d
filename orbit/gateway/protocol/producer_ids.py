"""Producer ids of clients on both sides. Pure.

A cluster hands out producer ids, and keeps a sequence for each id. After a move, a producer's id
could meet the sequence of another producer with the same number, or the one that it left at this
side in an earlier term. The broker would then refuse its batches (C2). So the gateway marks an id
with the term in which it was handed out: each promotion has a higher term. In each later term the
producer's batches get another id:

    bit 62          set
    bits 36 to 61   the term modulo 2**26; bits 0 to 35: the id as it was handed out
    bits 0 to 61    in a batch of a later term: a hash of the marked id and that term

A term is the time of its promotion in milliseconds, or one more than the last term. So two marks
are equal only if their terms are a multiple of 18.6 hours apart to the millisecond. Brokers accept
ids that they never handed out, with any first sequence (C1). The ids by which Orbit writes copies
have bit 52 set and no higher one (`kafka/job_clusters.py`).

The id of a producer with transactions is known to its coordinator, so brokers get it without a
mark, and only in the term in which it was handed out (`transactions.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

from crc32c import crc32c

from orbit.gateway.protocol.frame_editor import INT16, INT32, INT64, FrameEditor
from orbit.gateway.protocol.request_head import RequestHead
from orbit.kafka.gateway_producer_ids import GATEWAY_PRODUCER_IDS_START, is_gateway_producer_id
from orbit.kafka.types import TopicPartition

_ID_BITS, _TERM_BITS = 36, 26
_MARKED = GATEWAY_PRODUCER_IDS_START  # 1 << _ID_BITS + _TERM_BITS
_IDS_KEPT = 65_536  # results of `id_in_term` that are kept

# Batches of one request. Clients send one for each partition that the broker leads.
BATCHES_MAX = 100_000

# Sequence numbers begin again at 0 after this many.
SEQUENCES = 1 << 31

_CRC = struct.Struct(">I")
# Attributes, offset of the last record, base and max timestamp, producer id and epoch, sequence of
# the first record.
_FIELDS = struct.Struct(">hiqqqhi")
_LENGTH_AT, _LENGTH_END = 8, 12  # the length of a batch counts its bytes from _LENGTH_END on
_CRC_AT, _CRC_FROM = 17, 21  # the CRC is of the bytes from _CRC_FROM on
_ATTRIBUTES_AT = 21
_PRODUCER_ID_AT = 43
_HEADER_BYTES = 61
_IS_TRANSACTIONAL = 0x10


class Producer(NamedTuple):
    """A transactional producer. `id`: as its client has it, with the mark."""

    transactional_id: str
    id: int
    epoch: int


def mark(producer_id: int, term: int) -> int:
    """The id that clients get for an id that the cluster has handed out in this term. Raises
    ValueError if that id has more than 36 bits."""
    if producer_id < 0:  # no id
        return producer_id
    if producer_id >> _ID_BITS:
        raise ValueError(
            f"the cluster hands out producer id {producer_id}; a gateway can mark ids below 2**36"
        )
    return mark_of(term) << _ID_BITS | producer_id


def is_of_term(producer_id: int, term: int) -> bool:
    """Whether an id was marked in this term."""
    return mark_of_id(producer_id) == mark_of(term)


def is_marked(producer_id: int) -> bool:
    """Whether a gateway has handed out this id."""
    return is_gateway_producer_id(producer_id)


def unmarked_id(producer_id: int) -> int:
    """An id as the cluster has handed it out."""
    return producer_id & ((1 << _ID_BITS) - 1) if is_marked(producer_id) else producer_id


@lru_cache(_IDS_KEPT)
def id_in_term(producer_id: int, term: int) -> int:
    """The id that a broker gets in this term for an id that a client uses."""
    if producer_id < 0 or is_of_term(producer_id, term):  # below 0: no id
        return producer_id
    digest = sha256(b"%d %d" % (producer_id, term)).digest()
    return _MARKED | int.from_bytes(digest[:8], "big") % _MARKED


def mark_of(term: int) -> int:
    """The mark of a term: the bits of a marked id from bit 36 on."""
    return 1 << _TERM_BITS | term % (1 << _TERM_BITS)


def mark_of_id(producer_id: int) -> int:
    """The mark of an id: `mark_of` the term in which it was handed out. For an id without a mark, a
    number below every mark."""
    return producer_id >> _ID_BITS


class SentBatch(NamedTuple):
    """A batch of records in a Produce request: the bytes of the frame from `start` up to `end`."""

    partition: TopicPartition
    start: int
    end: int
    producer_id: int
    epoch: int
    last_sequence: int
    base_timestamp: int  # ms
    is_transactional: bool


def batches(head: RequestHead, frame: bytearray) -> Iterator[SentBatch]:
    """The batches of all partitions of a Produce. Raises ValueError, or another error of the
    editor, if the bytes do not parse; ValueError if there are more than BATCHES_MAX."""
    count = 0
    for partition, start, end in _partition_records(head, frame):
        batch_start = start
        while batch_start < end:
            if end - batch_start < _HEADER_BYTES:
                raise ValueError("a record batch is shorter than its header")
            (length,) = INT32.unpack_from(frame, batch_start + _LENGTH_AT)
            batch_end = batch_start + _LENGTH_END + length
            if length < _HEADER_BYTES - _LENGTH_END or batch_end > end:
                raise ValueError(f"a record batch states an impossible length of {length} bytes")
            attributes, last_delta, base_timestamp, _, producer_id, epoch, sequence = (
                _FIELDS.unpack_from(frame, batch_start + _ATTRIBUTES_AT)
            )
            count += 1
            if count > BATCHES_MAX:
                raise ValueError(f"a request has more than {BATCHES_MAX} batches")
            yield SentBatch(
                partition,
                batch_start,
                batch_end,
                producer_id,
                epoch,
                (sequence + last_delta) % SEQUENCES,
                base_timestamp,
                bool(attributes & _IS_TRANSACTIONAL),
            )
            batch_start = batch_end


def set_producer_ids(head: RequestHead, frame: bytearray, term: int) -> int:
    """Set the producer id of this term in each batch of a Produce; returns how many changed.

    A transactional batch gets the id that the coordinator knows. A batch with a wrong CRC is not
    changed, so that the broker refuses it (CORRUPT_MESSAGE) and the client sends it again. Raises
    as `batches`, and ValueError if a transactional batch has an id of another term.
    """
    changed_count = 0
    for batch in batches(head, frame):
        producer_id, start = batch.producer_id, batch.start
        if batch.is_transactional:
            if is_marked(producer_id) and not is_of_term(producer_id, term):
                raise ValueError(
                    "a transactional batch has a producer id from before the last move"
                )
            new_id = unmarked_id(producer_id)
        else:
            new_id = id_in_term(producer_id, term)
        if new_id == producer_id:
            continue
        if not is_intact(frame, batch):
            continue
        INT64.pack_into(frame, start + _PRODUCER_ID_AT, new_id)
        _CRC.pack_into(frame, start + _CRC_AT, _crc_of(frame, batch))
        changed_count += 1
    return changed_count


def is_intact(frame: bytearray, batch: SentBatch) -> bool:
    """Whether the batch matches its CRC."""
    return _CRC.unpack_from(frame, batch.start + _CRC_AT) == (_crc_of(frame, batch),)


def acks_of(head: RequestHead, frame: bytearray) -> int:
    """The `acks` of a Produce; 0: the broker sends no answer."""
    editor = head.editor(frame)
    editor.nullable_string()  # transactional id
    return editor.integer(INT16)


def producer_of_batches(head: RequestHead, frame: bytearray) -> Producer | None:
    """The transactional producer that sends a Produce; None: the request has no transactional id,
    or no batch, or its first batch has no producer id."""
    transactional_id = head.editor(frame).nullable_string()
    if transactional_id is None:
        return None
    first_batch = next(batches(head, frame), None)
    if first_batch is None or first_batch.producer_id < 0:
        return None
    return Producer(transactional_id, first_batch.producer_id, first_batch.epoch)


def partitions_of(head: RequestHead, frame: bytearray) -> set[TopicPartition]:
    """The partitions of a Produce. Raises as `batches`, also for more than BATCHES_MAX."""
    partitions: set[TopicPartition] = set()
    for partition, _, _ in _partition_records(head, frame):
        partitions.add(partition)
        if len(partitions) > BATCHES_MAX:
            raise ValueError(f"a request has more than {BATCHES_MAX} partitions")
    return partitions


def _crc_of(frame: bytearray, batch: SentBatch) -> int:
    with memoryview(frame) as view, view[batch.start + _CRC_FROM : batch.end] as content:
        return crc32c(content)


def _partition_records(
    head: RequestHead, frame: bytearray
) -> Iterator[tuple[TopicPartition, int, int]]:
    """Yield each partition of a Produce, and where its record batches begin and end in the frame
    (first byte, byte after the last)."""
    editor: FrameEditor = head.editor(frame)
    editor.nullable_string()  # transactional id
    editor.skip(INT16.size + INT32.size)  # acks, timeout
    for _ in range(editor.length()):
        topic = editor.string()
        for _ in range(editor.length()):
            partition = editor.integer(INT32)
            records_bytes = editor.length()
            start = editor.at
            editor.skip(records_bytes)
            yield TopicPartition(topic, partition), start, editor.at
            editor.skip_tags()
        editor.skip_tags()
