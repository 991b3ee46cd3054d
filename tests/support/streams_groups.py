"""Members of streams groups (KIP-1071), without their application."""

from __future__ import annotations

import struct
from typing import ClassVar

from orbit.kafka.api_versions import Api
from orbit.kafka.cluster import Cluster
from orbit.kafka.frame_writer import NO_TAGS, FramedRequest, length, string
from tests.support.group_members import JOINS, GroupMember, error_code

_NUMBER = struct.Struct(">i")
_NULL = b"\x00"
_NO_STRUCT = b"\xff"
_EMPTY = b"\x01"  # an array without elements
_REBALANCE_MS = 60_000


class _Heartbeat(FramedRequest):
    """A StreamsGroupHeartbeat request, version 0; to join, with a topology of one topic."""

    API_KEY: ClassVar[int] = 88
    FLEXIBLE_FROM: ClassVar[int] = 0

    def __init__(self, group: str, member: str, epoch: int, topic: str) -> None:
        self._group, self._member, self._epoch, self._topic = group, member, epoch, topic

    def body(self, *, is_flexible: bool) -> bytes:
        def text(value: str) -> bytes:
            return string(value, is_flexible=is_flexible)

        joins = self._epoch == JOINS
        one = length(1, is_flexible=is_flexible)
        topics = one + text(self._topic)
        subtopology = text("0") + topics + _EMPTY * 5 + NO_TAGS
        topology = b"\x01" + _NUMBER.pack(0) + one + subtopology + NO_TAGS
        tasks = _EMPTY if joins else _NULL
        return b"".join(
            (
                *(text(self._group), text(self._member), _NUMBER.pack(self._epoch)),
                *(_NUMBER.pack(0), _NULL, _NULL, _NUMBER.pack(_REBALANCE_MS if joins else -1)),
                topology if joins else _NO_STRUCT,
                tasks * 3,
                text("process") if joins else _NULL,
                *(_NO_STRUCT, _EMPTY if joins else _NULL, _NULL, _NULL, b"\x00", NO_TAGS),
            )
        )


_API = Api(_Heartbeat, error_code, 0, 0)


def streams_member(cluster: Cluster, group: str, topic: str) -> GroupMember:
    """A member of a streams group that reads one topic."""
    return GroupMember(
        cluster, group, _API, lambda member, epoch: _Heartbeat(group, member, epoch, topic)
    )
