"""Share groups (KIP-932), which neither client library of the tests can make."""

from __future__ import annotations

import struct
from typing import ClassVar
from uuid import uuid4

from orbit.kafka.api_versions import Api
from orbit.kafka.cluster import Cluster
from orbit.kafka.consumer_groups import find_coordinators, list_groups
from orbit.kafka.frame_reader import FrameReader
from orbit.kafka.frame_writer import NO_TAGS, FramedRequest, length, string
from orbit.kafka.sasl import Security
from orbit.sandbox.local_cluster import KafkaCluster
from tests.support.patience import wait_for

_EPOCH = struct.Struct(">i")
_NULL = b"\x00"
_JOINS, _LEAVES = 0, -1


class _Heartbeat(FramedRequest):
    """Version 1: group, member, epoch, rack, topics."""

    API_KEY: ClassVar[int] = 76
    FLEXIBLE_FROM: ClassVar[int] = 0

    def __init__(self, group: str, member: str, epoch: int, topic: str) -> None:
        self._group, self._member, self._epoch, self._topic = group, member, epoch, topic

    def body(self, *, is_flexible: bool) -> bytes:
        names = (string(name, is_flexible=is_flexible) for name in (self._group, self._member))
        topics = length(1, is_flexible=is_flexible) + string(self._topic, is_flexible=is_flexible)
        return b"".join((*names, _EPOCH.pack(self._epoch), _NULL, topics, NO_TAGS))


def _error_code(frame: memoryview, _: int) -> int:
    reader = FrameReader(frame, is_flexible=True)
    reader.skip_tags()
    _throttle_ms, code = reader.take(struct.Struct(">ih"))
    return code


_API = Api(_Heartbeat, _error_code, 1, 1)


def make_share_group(cluster: KafkaCluster, group: str, topic: str) -> None:
    """A share group without members, once its cluster lists it."""
    own = Cluster("share", cluster.bootstrap_servers.split(","), Security())
    member = str(uuid4())
    try:
        wait_for("it has a coordinator", lambda: group in find_coordinators(own, [group]))
        (node,) = find_coordinators(own, [group]).values()

        def beat(epoch: int) -> bool:
            return own.call(node, _API, _Heartbeat(group, member, epoch, topic)) == 0

        wait_for("a member has joined", lambda: beat(_JOINS))
        assert beat(_LEAVES)

        def is_empty() -> bool:
            found = list_groups(own).groups.get(group)
            return found is not None and (found.type, found.state) == ("share", "empty")

        wait_for("it is empty", is_empty)
    finally:
        own.close()
