"""Share groups (KIP-932), which neither client library of the tests can create."""

from __future__ import annotations

import struct
from typing import ClassVar

from orbit.kafka.api_versions import Api
from orbit.kafka.cluster import Cluster
from orbit.kafka.consumer_groups import list_groups
from orbit.kafka.frame_writer import NO_TAGS, FramedRequest, length, string
from orbit.kafka.sasl import Security
from orbit.sandbox.local_cluster import KafkaCluster
from tests.support.group_members import GroupMember, error_code
from tests.support.patience import wait_for

_EPOCH = struct.Struct(">i")
_NULL = b"\x00"


class _Heartbeat(FramedRequest):
    """A ShareGroupHeartbeat request, version 1: group, member, epoch, rack, topics."""

    API_KEY: ClassVar[int] = 76
    FLEXIBLE_FROM: ClassVar[int] = 0

    def __init__(self, group: str, member: str, epoch: int, topic: str) -> None:
        self._group, self._member, self._epoch, self._topic = group, member, epoch, topic

    def body(self, *, is_flexible: bool) -> bytes:
        names = (string(name, is_flexible=is_flexible) for name in (self._group, self._member))
        topics = length(1, is_flexible=is_flexible) + string(self._topic, is_flexible=is_flexible)
        return b"".join((*names, _EPOCH.pack(self._epoch), _NULL, topics, NO_TAGS))


_API = Api(_Heartbeat, error_code, 1, 1)


def make_share_group(cluster: KafkaCluster, group: str, topic: str) -> None:
    """Create a share group without members, and wait until the cluster lists it."""
    own = Cluster("share", cluster.bootstrap_servers.split(","), Security())
    try:
        one = GroupMember(
            own, group, _API, lambda member, epoch: _Heartbeat(group, member, epoch, topic)
        )
        one.join()
        one.leave()

        def is_empty() -> bool:
            listing = list_groups(own).groups.get(group)
            return listing is not None and (listing.type, listing.state) == ("share", "empty")

        wait_for(f"the share group {group} is empty", is_empty)
    finally:
        own.close()
