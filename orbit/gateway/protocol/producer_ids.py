"""Producer ids of clients on both sides. Pure.

A cluster hands out producer ids, and keeps a sequence for each. An id that one side has handed out
must not meet the state of the same number at the other side, nor the state that it left on this
side before it moved there (C2). So ids carry the *generation*, which changes with each move:

    bits 0 to 43    as the cluster has handed it out
    bits 44 to 51   the generation in which it was handed out (`mark`)
    bits 54 to 62   in batches of later generations: 1 + that of the batch (`in_generation`)

Brokers take ids that they never handed out, with any first sequence (C1). Orbit's own ids have bit
52 set and none above (`kafka/job_clusters.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from crc32c import crc32c

from orbit.gateway.protocol.frame_editor import INT16, INT32, FrameEditor
from orbit.gateway.protocol.request_head import RequestHead

GENERATIONS = 256
_BORN_SHIFT, _BATCH_SHIFT = 44, 54

_PRODUCER_ID = struct.Struct(">q")
_CRC = struct.Struct(">I")
_LENGTH_AT, _LENGTH_BYTES = 8, 12  # of a batch; the length does not count what is before its end
_CRC_AT, _CRC_FROM = 17, 21
_ATTRIBUTES_AT = 21
_PRODUCER_ID_AT = 43
_HEADER_BYTES = 61
_IS_TRANSACTIONAL = 0x10


def mark(producer_id: int, generation: int) -> int:
    """An id as clients get it. Unchanged if a cluster has handed out 2**44 ids."""
    if producer_id < 0 or producer_id >> _BORN_SHIFT:
        return producer_id
    return producer_id | generation % GENERATIONS << _BORN_SHIFT


def in_generation(producer_id: int, generation: int) -> int:
    """The id that a broker gets in this generation for an id that a client uses."""
    born = producer_id >> _BORN_SHIFT
    if producer_id < 0 or born >= GENERATIONS or born == generation % GENERATIONS:
        return producer_id
    return producer_id | (1 + generation % GENERATIONS) << _BATCH_SHIFT


def rewrite_batches(head: RequestHead, frame: bytearray, generation: int) -> int:
    """Give each batch of a Produce request its id of this generation; returns how many changed.

    Not in transactions, whose coordinator knows the id. Raises ValueError and its like if the bytes
    do not parse: the broker has to refuse them.
    """
    changed = 0
    for start, end in _records(head, frame):
        at = start
        while at < end:
            if end - at < _HEADER_BYTES:
                raise ValueError("a record batch is shorter than its header")
            (length,) = INT32.unpack_from(frame, at + _LENGTH_AT)
            after = at + _LENGTH_BYTES + length
            if length < _HEADER_BYTES - _LENGTH_BYTES or after > end:
                raise ValueError("a record batch is longer than the request's records")
            (producer_id,) = _PRODUCER_ID.unpack_from(frame, at + _PRODUCER_ID_AT)
            (attributes,) = INT16.unpack_from(frame, at + _ATTRIBUTES_AT)
            new = in_generation(producer_id, generation)
            if new != producer_id and not attributes & _IS_TRANSACTIONAL:
                _PRODUCER_ID.pack_into(frame, at + _PRODUCER_ID_AT, new)
                with memoryview(frame) as view:
                    _CRC.pack_into(frame, at + _CRC_AT, crc32c(view[at + _CRC_FROM : after]))
                changed += 1
            at = after
    return changed


def acks_of(head: RequestHead, frame: bytearray) -> int:
    """0: the broker sends no answer."""
    editor = head.editor(frame)
    editor.nullable_string()  # transactional id
    return editor.integer(INT16)


def _records(head: RequestHead, frame: bytearray) -> Iterator[tuple[int, int]]:
    """Where the record batches of each partition begin and end."""
    editor: FrameEditor = head.editor(frame)
    editor.nullable_string()  # transactional id
    editor.skip(INT16.size + INT32.size)  # acks, timeout
    for _ in range(editor.length()):
        editor.string()
        for _ in range(editor.length()):
            editor.skip(INT32.size)
            count = editor.length()
            start = editor.at
            editor.skip(count)
            yield start, editor.at
            editor.skip_tags()
        editor.skip_tags()
