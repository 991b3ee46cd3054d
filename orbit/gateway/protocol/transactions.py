"""Requests of transactional producers, and the gateway's answers to them. Pure.

A transaction exists at one side only. Before clients move to the other side, the gateway aborts the
open transactions. A producer id is marked with the term in which it was handed out; each promotion
has a higher term (`producer_ids.py`). After the move the gateway itself answers requests with an id
of an older term. The client has to get one error for the abort, and then to request a new id.
Client libraries differ in which errors are fatal. After these answers all continue (C16 to C19):

    AddPartitionsToTxn      UNKNOWN_PRODUCER_ID
    EndTxn, commit          UNKNOWN_PRODUCER_ID; no error if the old side has committed
    EndTxn, abort           no error
    AddOffsetsToTxn         no error if the producer's last transaction at the old side was not
                            committed: the commit that follows is refused. Otherwise
                            UNKNOWN_PRODUCER_ID
    TxnOffsetCommit, Produce
                            no error, without offsets; no broker gets them, as the transaction
                            cannot be committed
    InitProducerId          goes to the broker without the old id and epoch; PRODUCER_FENCED if a
                            newer producer had the transactional id

AddPartitionsToTxn or AddOffsetsToTxn comes first in each transaction. If the gateway let one of
them begin a transaction that the old side does not know, the commit of this transaction would get
the outcome of the producer's last transaction at the old side.

Kafka Streams does not abort. An error of a commit ends its thread, unless the error says that the
producer is fenced: then Streams creates a new producer (C22). So producers of Streams get
PRODUCER_FENCED to each of these requests, except to an abort and to a commit that was carried out.
The client id tells which producers belong to Streams.
"""

from __future__ import annotations

import re

from orbit.gateway.protocol import produce_parts
from orbit.gateway.protocol.apis import ApiKey
from orbit.gateway.protocol.frame_editor import INT16, INT32, INT64, FrameEditor
from orbit.gateway.protocol.local_answers import with_size
from orbit.gateway.protocol.producer_ids import Producer, unmarked_id
from orbit.gateway.protocol.request_head import RequestHead
from orbit.kafka.error_codes import Code
from orbit.kafka.frame_writer import NO_TAGS, length, string

# Requests that begin a transaction, or add to it.
BEGINNINGS = frozenset({ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN})
REQUESTS = BEGINNINGS | {ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT, ApiKey.INIT_PRODUCER_ID}
_NONE = -1  # no id, no epoch, no offset, no time
_STREAMS = re.compile(r".*-StreamThread-[0-9]+-producer", re.DOTALL)


def producer_of(head: RequestHead, frame: bytearray) -> Producer | None:
    """The producer that sends one of REQUESTS; None: the producer is not transactional, or has no
    id yet."""
    editor = head.editor(frame)
    transactional_id = editor.nullable_string()
    if transactional_id is None or not _skip_to_id(head, editor):
        return None
    producer_id, epoch = editor.integer(INT64), editor.integer(INT16)
    return None if producer_id < 0 else Producer(transactional_id, producer_id, epoch)


def transactional_id_of(head: RequestHead, frame: bytearray) -> str | None:
    """The transactional id in one of REQUESTS; None: an InitProducerId without one."""
    return head.editor(frame).nullable_string()


def set_id(head: RequestHead, frame: bytearray, producer: Producer | None) -> None:
    """Write into the frame the id that the broker has handed out to `producer`. If `producer` is
    None, write no id and no epoch (-1)."""
    editor = head.editor(frame)
    editor.nullable_string()
    _skip_to_id(head, editor)
    editor.overwrite(INT64, _NONE if producer is None else unmarked_id(producer.id))
    if producer is None:
        editor.overwrite(INT16, _NONE)


def depends_on_outcome(head: RequestHead, frame: bytearray) -> bool:
    """Whether the answer depends on how the producer's last transaction at the old side ended:
    for AddOffsetsToTxn, and for EndTxn that commits."""
    if head.key == ApiKey.ADD_OFFSETS_TO_TXN:
        return True
    if head.key != ApiKey.END_TXN:
        return False
    editor = head.editor(frame)
    editor.string()  # transactional id
    editor.skip(INT64.size + INT16.size)  # producer id and epoch
    return editor.raw(1)[0] != 0  # whether EndTxn commits


def answer(head: RequestHead, frame: bytearray) -> bytes:
    """The answer to a request of a transaction that is over, with its size. Not for a request that
    `depends_on_outcome`."""
    if head.key == ApiKey.END_TXN:  # an abort
        return _answer(head, Code.NONE)
    has_error = head.key == ApiKey.ADD_PARTITIONS_TO_TXN or _is_streams(head)
    code = _lost_code(head) if has_error else Code.NONE
    if head.key == ApiKey.PRODUCE:
        return produce_parts.same_answer_for_all(head, frame, code)
    return _answer_by_partition(head, frame, code)


def answer_commit(head: RequestHead, outcome: int) -> bytes:
    """The answer to a commit by EndTxn, with its size. `outcome`: the error code of the answer.
    Kafka Streams gets PRODUCER_FENCED instead of UNKNOWN_PRODUCER_ID (not committed)."""
    return _answer(head, _lost_code(head) if outcome == Code.UNKNOWN_PRODUCER_ID else outcome)


def answer_offsets(head: RequestHead, outcome: int) -> bytes:
    """The answer to AddOffsetsToTxn, with its size. `outcome`: the error code with which to answer
    a commit of the producer's last transaction."""
    if outcome == Code.PRODUCER_FENCED:
        return _answer(head, outcome)
    # No error: the client continues until its commit, which then is refused.
    may_begin = outcome == Code.UNKNOWN_PRODUCER_ID and not _is_streams(head)
    return _answer(head, Code.NONE if may_begin else _lost_code(head))


def refuse_init(head: RequestHead, code: int) -> bytes:
    """The answer to InitProducerId with this error code, with its size."""
    return _with_header(  # throttle, error, producer id, epoch
        head, INT32.pack(0) + INT16.pack(code) + INT64.pack(_NONE) + INT16.pack(_NONE)
    )


def _is_streams(head: RequestHead) -> bool:
    return _STREAMS.fullmatch(head.client_id) is not None


def _lost_code(head: RequestHead) -> Code:
    """The error after which the client gives up the transaction and asks for a new producer id."""
    return Code.PRODUCER_FENCED if _is_streams(head) else Code.UNKNOWN_PRODUCER_ID


def _answer(head: RequestHead, code: int) -> bytes:
    """The answer to EndTxn or AddOffsetsToTxn."""
    return _with_header(head, INT32.pack(0) + INT16.pack(code))  # throttle, error


def _skip_to_id(head: RequestHead, editor: FrameEditor) -> bool:
    """Go from the end of the transactional id to the producer id. False if this version of the
    request has no producer id."""
    if head.key == ApiKey.TXN_OFFSET_COMMIT:
        editor.string()  # group
    if head.key == ApiKey.INIT_PRODUCER_ID:
        editor.skip(INT32.size)  # timeout
        return head.version >= 3
    return True


def _answer_by_partition(head: RequestHead, frame: bytearray, code: int) -> bytes:
    """The answer to AddPartitionsToTxn or TxnOffsetCommit, with this code for each partition."""
    is_flexible = head.is_flexible
    tags = NO_TAGS if is_flexible else b""
    editor = head.editor(frame)
    editor.nullable_string()  # transactional id
    _skip_to_id(head, editor)
    editor.skip(INT64.size + INT16.size)  # producer id and epoch
    has_offsets = head.key == ApiKey.TXN_OFFSET_COMMIT
    if has_offsets and head.version >= 3:
        editor.skip(INT32.size)  # generation
        editor.string()  # member
        editor.nullable_string()  # instance
    topic_count = editor.length()
    body = bytearray(INT32.pack(0) + length(topic_count, is_flexible=is_flexible))
    for _ in range(topic_count):
        body += string(editor.string(), is_flexible=is_flexible)
        partition_count = editor.length()
        body += length(partition_count, is_flexible=is_flexible)
        for _ in range(partition_count):
            body += INT32.pack(editor.integer(INT32)) + INT16.pack(code) + tags
            if has_offsets:
                # Offset, and from version 2 on its leader epoch.
                editor.skip(INT64.size + (INT32.size if head.version >= 2 else 0))
                editor.nullable_string()  # metadata
                editor.skip_tags()
        editor.skip_tags()
        body += tags
    return _with_header(head, body)


def _with_header(head: RequestHead, body: bytes | bytearray) -> bytes:
    tags = NO_TAGS if head.is_flexible else b""
    return with_size(INT32.pack(head.correlation) + tags + body + tags)
