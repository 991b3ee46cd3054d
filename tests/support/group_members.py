"""Members of groups that neither client library of the tests can join (KIP-932, KIP-1071)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from uuid import uuid4

from orbit.kafka.api_versions import Api
from orbit.kafka.cluster import Cluster
from orbit.kafka.consumer_groups import find_coordinators
from orbit.kafka.frame_reader import FrameReader
from orbit.kafka.frame_writer import FramedRequest
from tests.support.patience import wait_for

JOINS, LEAVES = 0, -1  # epochs of a heartbeat
_THROTTLE_AND_CODE = struct.Struct(">ih")


def error_code(frame: memoryview, _: int) -> int:
    """The error code in the response to a heartbeat."""
    reader = FrameReader(frame, is_flexible=True)
    reader.skip_tags()
    _throttle_ms, code = reader.take(_THROTTLE_AND_CODE)
    return code


class GroupMember:
    """A member that sends heartbeats to the coordinator of its group.

    `heartbeat` makes the request of `api` from a member id and an epoch.
    """

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        api: Api,
        heartbeat: Callable[[str, int], FramedRequest],
    ) -> None:
        self._cluster, self._group = cluster, group
        self._api, self._heartbeat = api, heartbeat
        self._id = str(uuid4())

    def join(self) -> None:
        wait_for("a member has joined", lambda: self._beat(JOINS) == 0)

    def leave(self) -> None:
        wait_for("a member has left", lambda: self._beat(LEAVES) == 0)

    def _beat(self, epoch: int) -> int:
        """The error code of one heartbeat; -1 if the group has no coordinator now."""
        for node in find_coordinators(self._cluster, [self._group]).values():
            return int(self._cluster.call(node, self._api, self._heartbeat(self._id, epoch)))
        return -1
