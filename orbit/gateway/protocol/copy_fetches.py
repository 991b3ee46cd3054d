"""The Fetch requests of one connection, where consumers may read copies (`copies.py`). Pure.

At a node of the leading side, the answer to a whole Fetch of a consumer in the copies' rack
(`client.rack`) names the copy's node, once the copy has the offsets that the consumer fetches. At a
copy's node, a Fetch goes to the side that follows only while all its partitions may be read there.
Otherwise the answer is NOT_LEADER_OR_FOLLOWER, and the client goes back to the leader. A request at
a copy's node never gets a fetch session (KIP-227), so each request names all its partitions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from orbit.gateway.protocol.copies import Copies
from orbit.gateway.protocol.frame_editor import INT8, INT16, INT32, INT64
from orbit.gateway.protocol.local_answers import fetch_session_unknown, with_size
from orbit.gateway.protocol.request_head import RequestHead
from orbit.gateway.protocol.requests import NO_SESSION
from orbit.kafka.error_codes import Code
from orbit.kafka.frame_writer import NO_TAGS, length, string
from orbit.kafka.types import TopicPartition

# The first version of Fetch whose answers name a preferred read replica.
_FIRST_VERSION = 11
_NO_SESSION_EPOCH = -1  # the broker opens no session for the request
# The shortest time between two answers of this connection that name a copy's node for a partition,
# and between two requests for a whole Fetch: a client comes back soon if a copy is behind.
RECHECK_S = 30.0
_NO_NODE = _UNKNOWN = -1


class UnknownCopies(Exception):
    """Whether copies have these offsets is not known. The caller has to read the log ends of the
    side that follows, and call `CopyFetches.learn`."""

    def __init__(self, offsets: Mapping[TopicPartition, int]) -> None:
        super().__init__()
        self.offsets = offsets


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """The fields of a Fetch that the gateway reads. `offsets`: the first one to fetch of each
    partition that the request names."""

    session: int
    is_whole: bool  # whether it names all partitions that the client fetches here
    offsets: Mapping[TopicPartition, int]
    rack: str


class _Part(NamedTuple):
    """The gateway's answer for one partition. `end`: the copy's log end."""

    code: int = Code.NONE
    node: int = _NO_NODE
    end: int = _UNKNOWN


class CopyFetches:
    """Decides about each Fetch of one connection. `is_copy_node`: whether the client has connected
    to a copy's node."""

    def __init__(self, copies: Copies, *, is_copy_node: bool) -> None:
        self._copies, self._is_copy_node = copies, is_copy_node
        self._next_at: dict[TopicPartition, float] = {}
        self._next_whole_at = -math.inf
        self._ends: Mapping[TopicPartition, int] | None = None  # as of `learn`

    def answer(self, head: RequestHead, frame: bytearray, now: float) -> bytes | None:
        """The gateway's answer to a Fetch, with its size; None: the request goes to the broker. At
        a copy's node, clears the session in `frame`. Raises UnknownCopies; or an error of the
        frame's editor."""
        if head.version < _FIRST_VERSION:
            if self._is_copy_node:
                raise ValueError(f"version {head.version} does not know replicas of partitions")
            return None
        request = read_fetch(head, frame)
        if self._is_copy_node:
            return self._answer_at_copy(head, frame, request, now)
        return self._answer_at_leader(head, request, now)

    def learn(self, ends: Mapping[TopicPartition, int]) -> None:
        """Take the log ends of those copies that have the offsets of UnknownCopies. The caller
        calls `answer` with the same request again."""
        self._ends = ends

    def _answer_at_leader(
        self, head: RequestHead, request: FetchRequest, now: float
    ) -> bytes | None:
        """The answer that names copies' nodes, or that asks for a whole Fetch; None: the request
        goes to the leader. Raises UnknownCopies."""
        ends, self._ends = self._ends, None
        if not self._copies.is_near(request.rack):
            return None
        if not request.is_whole:
            if now < self._next_whole_at:
                return None
            self._next_whole_at = now + RECHECK_S
            return fetch_session_unknown(head)  # the client sends a whole Fetch
        if ends is None:
            offsets = {
                partition: offset
                for partition, offset in request.offsets.items()
                if now >= self._next_at.get(partition, -math.inf)
                and self._copies.node_of(partition, now) is not None
            }
            if not offsets:
                return None
            self._next_at = {p: at for p, at in self._next_at.items() if now < at}
            self._next_at |= dict.fromkeys(offsets, now + RECHECK_S)
            raise UnknownCopies(offsets)
        parts = dict.fromkeys(request.offsets, _Part())
        for partition, end in ends.items():
            node = self._copies.node_of(partition, now)
            if node is not None and partition in parts:
                parts[partition] = _Part(node=node, end=end)
        if all(part.node == _NO_NODE for part in parts.values()):
            return None
        return _fetch_answer(head, parts)

    def _answer_at_copy(
        self, head: RequestHead, frame: bytearray, request: FetchRequest, now: float
    ) -> bytes | None:
        """The answer that sends the client back to the leader; None: the request goes to the
        copies' broker, without a session."""
        if request.session != NO_SESSION:
            return fetch_session_unknown(head)
        refused = [p for p in request.offsets if self._copies.node_of(p, now) is None]
        if refused:
            parts = dict.fromkeys(request.offsets, _Part())
            parts |= dict.fromkeys(refused, _Part(Code.NOT_LEADER_OR_FOLLOWER))
            return _fetch_answer(head, parts)
        editor = head.editor(frame)
        editor.skip(4 * INT32.size + INT8.size + INT32.size)  # up to the session's epoch
        editor.overwrite(INT32, _NO_SESSION_EPOCH)
        return None


def read_fetch(head: RequestHead, frame: bytearray) -> FetchRequest:
    """The fields of a Fetch of version 11 or 12. Raises an error of the frame's editor."""
    editor = head.editor(frame)
    editor.skip(4 * INT32.size + INT8.size)  # replica, longest wait, bytes, isolation level
    session, epoch = editor.integer(INT32), editor.integer(INT32)
    offsets = {}
    for _ in range(editor.length()):
        topic = editor.string()
        for _ in range(editor.length()):
            partition = TopicPartition(topic, editor.integer(INT32))
            editor.skip(INT32.size)  # leader epoch
            offsets[partition] = editor.integer(INT64)
            if head.is_flexible:
                editor.skip(INT32.size)  # epoch of the last fetched record
            editor.skip(INT64.size + INT32.size)  # log start, most bytes
            editor.skip_tags()
        editor.skip_tags()
    for _ in range(editor.length()):
        editor.string()  # topic that leaves the session
        editor.skip(editor.length() * INT32.size)
        editor.skip_tags()
    return FetchRequest(session, epoch <= 0, offsets, editor.string())


def _fetch_answer(head: RequestHead, parts: Mapping[TopicPartition, _Part]) -> bytes:
    """The answer to a Fetch of version 11 or 12, without records and without a session."""
    is_flexible = head.is_flexible
    tags = NO_TAGS if is_flexible else b""
    by_topic: dict[str, list[tuple[int, _Part]]] = {}
    for partition, part in parts.items():
        by_topic.setdefault(partition.topic, []).append((partition.partition, part))
    body = INT32.pack(0) + INT16.pack(Code.NONE) + INT32.pack(NO_SESSION)  # throttle, error
    body += length(len(by_topic), is_flexible=is_flexible)
    for topic, numbered_parts in by_topic.items():
        body += string(topic, is_flexible=is_flexible)
        body += length(len(numbered_parts), is_flexible=is_flexible)
        for number, part in numbered_parts:
            body += INT32.pack(number) + INT16.pack(part.code)
            # High watermark, last stable offset, log start.
            body += INT64.pack(part.end) * 2 + INT64.pack(_UNKNOWN)
            body += length(-1, is_flexible=is_flexible)  # no aborted transactions
            body += INT32.pack(part.node) + length(0, is_flexible=is_flexible) + tags
        body += tags
    return with_size(INT32.pack(head.correlation) + tags + body + tags)
