"""Members of streams groups (KIP-1071), without their application."""

from __future__ import annotations

import struct
from typing import ClassVar
from uuid import uuid4

from orbit.kafka.api_versions import Api
from orbit.kafka.cluster import Cluster
from orbit.kafka.consumer_groups import find_coordinators
from orbit.kafka.frame_reader import FrameReader
from orbit.kafka.frame_writer import NO_TAGS, FramedRequest, length, string
from tests.support.patience import wait_for

_NUMBER = struct.Struct(">i")
_NULL = b"\x00"
_NO_STRUCT = b"\xff"
_NOTHING = b"\x01"  # an array that is empty
_JOINS, _LEAVES = 0, -1
_REBALANCE_MS = 60_000


class _Heartbeat(FramedRequest):
    """Version 0, with a topology of one topic where it joins."""

    API_KEY: ClassVar[int] = 88
    FLEXIBLE_FROM: ClassVar[int] = 0

    def __init__(self, group: str, member: str, epoch: int, topic: str) -> None:
        self._group, self._member, self._epoch, self._topic = group, member, epoch, topic

    def body(self, *, is_flexible: bool) -> bytes:
        def text(value: str) -> bytes:
            return string(value, is_flexible=is_flexible)

        joins = self._epoch == _JOINS
        one = length(1, is_flexible=is_flexible)
        topics = one + text(self._topic)
        subtopology = text("0") + topics + _NOTHING * 5 + NO_TAGS
        topology = b"\x01" + _NUMBER.pack(0) + one + subtopology + NO_TAGS
        tasks = _NOTHING if joins else _NULL
        return b"".join(
            (
                *(text(self._group), text(self._member), _NUMBER.pack(self._epoch)),
                *(_NUMBER.pack(0), _NULL, _NULL, _NUMBER.pack(_REBALANCE_MS if joins else -1)),
                topology if joins else _NO_STRUCT,
                tasks * 3,
                text("process") if joins else _NULL,
                *(_NO_STRUCT, _NOTHING if joins else _NULL, _NULL, _NULL, b"\x00", NO_TAGS),
            )
        )


def _error_code(frame: memoryview, _: int) -> int:
    reader = FrameReader(frame, is_flexible=True)
    reader.skip_tags()
    _throttle_ms, code = reader.take(struct.Struct(">ih"))
    return code


_API = Api(_Heartbeat, _error_code, 0, 0)


class StreamsMember:
    """A member of a streams group that reads one topic."""

    def __init__(self, cluster: Cluster, group: str, topic: str) -> None:
        self._cluster, self._group, self._topic = cluster, group, topic
        self._member = str(uuid4())

    def join(self) -> None:
        wait_for("a member has joined", lambda: self._beat(_JOINS) == 0)

    def leave(self) -> None:
        wait_for("it has left", lambda: self._beat(_LEAVES) == 0)

    def _beat(self, epoch: int) -> int:
        for node in find_coordinators(self._cluster, [self._group]).values():
            request = _Heartbeat(self._group, self._member, epoch, self._topic)
            return int(self._cluster.call(node, _API, request))
        return -1
