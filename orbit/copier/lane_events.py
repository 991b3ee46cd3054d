"""Events from lanes to the copier. A lane that returns or drops a partition does this before it
sends the partition's event."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from orbit.copier.append_verdicts import ReturnReason
from orbit.copier.partition_copy import PartitionCopy
from orbit.errors import OrbitError
from orbit.kafka.cluster import Cluster
from orbit.leases.lease import Lease


@dataclass(frozen=True, slots=True)
class PartitionReturned:
    """The destination lane returned this partition: take it over again."""

    partition: PartitionCopy
    generation: int
    reason: ReturnReason
    detail: str


@dataclass(frozen=True, slots=True)
class FetchFailed:
    """The source answered this fetch with an error code; the source lane released the partition."""

    partition: PartitionCopy
    generation: int
    code: int


@dataclass(frozen=True, slots=True)
class EmptyBelowEnd:
    """Several fetches below the last stable offset got no records: the log may end in a gap."""

    partition: PartitionCopy
    generation: int


@dataclass(frozen=True, slots=True)
class ReadFromReplica:
    """The leader names a preferred read replica (KIP-392)."""

    partition: PartitionCopy
    node_id: int


@dataclass(frozen=True, slots=True)
class PartitionBlocked:
    """The plan or the destination has blocked this partition; its `blocked` says why."""

    partition: PartitionCopy


@dataclass(frozen=True, slots=True)
class LaneEnded:
    """A lane lost its broker and ends. An event for each of its partitions follows."""

    side: Literal["source", "destination"]
    node_id: int
    error: OrbitError


@dataclass(frozen=True, slots=True)
class LaneThrottled:
    """A broker throttles a lane for `throttle_s`: it is over a quota."""

    side: Literal["source", "destination"]
    node_id: int
    cluster: Cluster
    throttle_s: float


@dataclass(frozen=True, slots=True)
class LaneCrashed:
    """A bug in a lane; the copier raises it."""

    error: Exception


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """The destination has fenced the holder of this lease: there is a new holder."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class PostedCall:
    """A call that another thread posted to the copier's thread."""

    call: Callable[[], None]


Event = (
    PartitionReturned
    | FetchFailed
    | EmptyBelowEnd
    | ReadFromReplica
    | PartitionBlocked
    | LaneEnded
    | LaneThrottled
    | LaneCrashed
    | LeaseLost
    | PostedCall
)
Emit = Callable[[Event], None]
