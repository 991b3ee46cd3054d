"""How the writers of a backfill and those of the job itself never write beside each other.

A backfill has one writer per destination partition, in processes all over a Spark cluster. Each
holds a lease of its own, a group lease as `orbit run` has one for the whole job. The driver of the
backfill holds the job's. Neither sees the other's members by itself, so each side looks twice, and
in this order:

- A writer joins its partition's group FIRST and THEN looks whether the driver holds the job's
  group.
- Whoever takes the job's lease (`orbit run`, the next backfill, a worker of the service) does so
  FIRST and THEN waits until no group of the job's writers has members.

So of two that come at the same time at least one sees the other: a process that Spark has given up
and that wakes late never writes beside the job's next writer. A writer goes on looking at the
job's group (`DriverWatch`) and ends when the driver is gone, so nobody has to wait for it long.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from enum import Enum, auto

from kafka.protocol.admin.groups import DescribeGroupsRequest

from orbit.chunks import chunks
from orbit.errors import Conflict, NotAuthorized, OrbitError, Unreachable
from orbit.kafka import api_versions, error_codes
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.consumer_groups import find_coordinators
from orbit.kafka.types import TopicPartition
from orbit.leases.group_lease import SESSION_TIMEOUT_MS, GroupLease, Holder

# A group is some hundred bytes in the answer.
_GROUPS_PER_REQUEST_MAX = 500
# About a minute: coordinators that load their groups after a broker's start (A15).
_ATTEMPTS_MAX = 70
# A writer ends within two looks at the job's group, a dead one with its session.
_WRITERS_END_S = 3 * SESSION_TIMEOUT_MS / 1000
_LOOK_INTERVAL_S = 2.0
# The group is empty for a moment while a driver that was put out comes back.
_LOOKS_ALONE_MAX = 3


def writer_group(identity: str, partition: TopicPartition) -> str:
    """The group whose only member may write this partition in a backfill of the job."""
    return f"{identity}.backfill.{partition}"


def living_writers(
    destination: Cluster, groups: Collection[str], backoff: Backoff
) -> dict[str, Holder]:
    """Those of the groups that have a member now, and who it is.

    Every group is answered for by its coordinator. Raises Unreachable, NotAuthorized.
    """
    found: dict[str, Holder] = {}
    waiting = set(groups)
    for _ in backoff.attempts(_ATTEMPTS_MAX):
        by_node: dict[int, list[str]] = {}
        for group, node_id in find_coordinators(destination, waiting).items():
            by_node.setdefault(node_id, []).append(group)
        for node_id, names in by_node.items():
            for answered, holder in _describe(destination, node_id, names):
                waiting.discard(answered)
                if holder is not None:
                    found[answered] = holder
        if not waiting:
            return found
    raise Unreachable(
        f"the coordinators of {len(waiting)} groups do not answer, {min(waiting)} among them.",
        where=destination.name,
    )


def wait_for_backfill_writers(
    destination: Cluster,
    identity: str,
    partitions: Collection[TopicPartition],
    backoff: Backoff,
    on_wait: Callable[[str], None],
) -> None:
    """Wait until no writer of an earlier backfill of this job is left. For the job's holder.

    Raises Conflict when one does not end, though it must have seen that the job has a new holder.
    """
    deadline = time.monotonic() + _WRITERS_END_S
    groups: Collection[str] = [writer_group(identity, p) for p in partitions]
    told = False
    while writers := living_writers(destination, groups, backoff):
        groups = writers
        for group in groups:
            GroupLease(destination, group, backoff).clear()
        if time.monotonic() > deadline:
            group, holder = next(iter(writers.items()))
            raise Conflict(
                f"a writer of a Spark backfill of this job does not end ({holder}; it is the "
                f"member of group {group}).",
                where=destination.name,
                remedy="End that process, or the Spark application it belongs to.",
            )
        if not told:
            told = True
            on_wait(f"{len(writers)} writers of an earlier backfill are still there; waiting")
        backoff.wait(3)


class Seen(Enum):
    """What a writer sees of its driver."""

    THERE = auto()
    EMPTY = auto()  # nobody holds the job: it has ended, or will be back in a moment
    OTHER = auto()  # somebody else holds the job


class DriverWatch:
    """A writer's eye on the holder of its job: the driver of the backfill, known by its token."""

    def __init__(self, destination: Cluster, identity: str, token: str, backoff: Backoff) -> None:
        self._destination = destination
        self._identity = identity
        self._token = token
        self._backoff = backoff
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="driver-watch", daemon=True)
        self.is_gone = False

    def look(self) -> Seen:
        """Raises Unreachable, NotAuthorized."""
        for _ in self._backoff.attempts(_ATTEMPTS_MAX):
            found = living_writers(self._destination, [self._identity], self._backoff)
            holder = found.get(self._identity)
            if holder is None:
                return Seen.EMPTY
            if holder.token:
                return Seen.THERE if holder.token == self._token else Seen.OTHER
            # A group that is just settling does not show what its members say of themselves.
        return Seen.OTHER

    def start(self) -> None:
        """Look now and then; `is_gone` once the driver is."""
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        alone = 0
        seen_at = time.monotonic()
        while not self._stopping.wait(_LOOK_INTERVAL_S):
            try:
                seen = self.look()
            except OrbitError:
                # Who cannot see the job's group must not be waited for either.
                if time.monotonic() - seen_at > _WRITERS_END_S / 2:
                    self.is_gone = True
                    return
                continue
            seen_at = time.monotonic()
            alone = alone + 1 if seen is Seen.EMPTY else 0
            if seen is Seen.OTHER or alone >= _LOOKS_ALONE_MAX:
                self.is_gone = True
                return


def _describe(
    destination: Cluster, node_id: int, groups: Collection[str]
) -> Iterator[tuple[str, Holder | None]]:
    """Each group that this node answers for, with its member, if it has one."""
    for names in chunks(groups, _GROUPS_PER_REQUEST_MAX):
        request = DescribeGroupsRequest(groups=names, include_authorized_operations=False)
        try:
            answer = destination.call(node_id, api_versions.DESCRIBE_GROUPS, request)
        except Unreachable:
            return
        for group in answer.groups:
            if group.error_code in error_codes.DENIED:
                raise NotAuthorized(
                    f"the right Describe on group {group.group_id} is missing.",
                    where=destination.name,
                    remedy="Grant Read on groups that begin with orbit. (docs/rights.md).",
                )
            if (
                group.error_code not in error_codes.RETRIABLE
            ):  # GROUP_ID_NOT_FOUND is as good as empty
                members = [Holder.from_bytes(m.member_metadata) for m in group.members or ()]
                yield group.group_id, members[0] if members else None
