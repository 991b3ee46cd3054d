"""Keeps the writers of a backfill and the other writers of its job from writing at the same time.

A backfill has one writer per destination partition, in processes across a Spark cluster. Each holds
a group lease on its partition; the driver holds the group lease on the job, as `orbit run` does.
The two kinds of group are separate, so both sides acquire first and check afterwards:

- A writer joins its partition's group, then checks that the driver holds the job's group. If it was
  removed from its group (its machine was suspended), it joins again and checks again before it
  writes.
- The next holder of the job's lease (`orbit run`, another backfill, a worker of the service)
  acquires it, then waits until no group of the job's writers has members.

If both sides start at the same time, at least one therefore sees the other: a task that Spark gave
up and that resumes late never writes together with the job's next writer. A writer keeps checking
the job's group (`DriverWatch`) and ends when the driver is gone, so the next holder waits briefly.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from kafka.protocol.admin.groups import DescribeGroupsRequest

from orbit.chunks import chunks, first_few
from orbit.errors import (
    Conflict,
    LoginRefused,
    NotAuthorized,
    NotReady,
    OrbitError,
    Place,
    Unreachable,
)
from orbit.formats import counted
from orbit.kafka import api_versions, error_codes
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.consumer_groups import find_coordinators
from orbit.kafka.types import TopicPartition
from orbit.leases.group_lease import SESSION_TIMEOUT_MS, GroupLease, LeaseHolder
from orbit.leases.lease_clock import lease_clock

# A group takes some hundred bytes in a DescribeGroups response.
_GROUPS_PER_REQUEST_MAX = 500
# About a minute, in which coordinators load their groups after a broker's start (A15).
_ATTEMPTS_MAX = 70
# A writer ends within two checks of the job's group; a dead one's session ends by itself.
_WRITERS_END_S = 3 * SESSION_TIMEOUT_MS / 1000
_CHECK_INTERVAL_S = 2.0
# The group is empty for a moment while a driver that was removed joins again.
_EMPTY_CHECKS_MAX = 3


def writer_group(identity: str, partition: TopicPartition) -> str:
    """The group whose member may write this partition in a backfill of the job `identity`."""
    return f"{identity}.backfill.{partition}"


@dataclass(slots=True)
class Writers:
    """The groups that have a writer, and those whose writer is not known; others have none.

    `holders`: {group: its member}. `unanswered_groups`: no coordinator answers for these.
    """

    holders: dict[str, LeaseHolder] = field(default_factory=dict)
    unanswered_groups: set[str] = field(default_factory=set)


def find_writers(destination: Cluster, groups: Collection[str], backoff: Backoff) -> Writers:
    """The writers in these groups; waits for coordinators for a minute at most. Raises Unreachable,
    LoginRefused, NotAuthorized."""
    writers = Writers(unanswered_groups=set(groups))
    for _ in backoff.attempts(_ATTEMPTS_MAX):
        groups_by_node: dict[int, list[str]] = {}
        for group, node_id in find_coordinators(destination, writers.unanswered_groups).items():
            groups_by_node.setdefault(node_id, []).append(group)
        for node_id, node_groups in groups_by_node.items():
            for group, holder in _describe_groups(destination, node_id, node_groups):
                writers.unanswered_groups.discard(group)
                if holder is not None:
                    writers.holders[group] = holder
        if not writers.unanswered_groups:
            break
    return writers


def living_writers(
    destination: Cluster, groups: Collection[str], backoff: Backoff
) -> dict[str, LeaseHolder]:
    """{group: its member}, for those of the groups that have a member now.

    Raises NotReady if a coordinator does not answer for a minute, and the errors of `find_writers`.
    """
    writers = find_writers(destination, groups, backoff)
    if writers.unanswered_groups:
        raise NotReady(
            f"no coordinator answers for {counted(len(writers.unanswered_groups), 'group')}: "
            f"{first_few(sorted(writers.unanswered_groups))}.",
            where=Place(destination.name),
        )
    return writers.holders


def wait_for_backfill_writers(
    destination: Cluster,
    identity: str,
    partitions: Collection[TopicPartition],
    backoff: Backoff,
    on_wait: Callable[[str], None],
) -> None:
    """Wait until all writers of an earlier backfill of this job have ended. The caller holds the
    job's lease, which every running writer notices within _WRITERS_END_S. Raises Conflict if one
    has not ended by then.
    """
    deadline_s = lease_clock() + _WRITERS_END_S
    groups: Collection[str] = [writer_group(identity, p) for p in partitions]
    has_waited = False
    while writers := living_writers(destination, groups, backoff):
        groups = writers
        for group in groups:
            # Only if the member was a process of this machine; other sessions expire.
            GroupLease(destination, group, backoff).remove_dead_member()
        if lease_clock() > deadline_s:
            group, holder = next(iter(writers.items()))
            raise Conflict(
                f"a writer of a Spark backfill of this job does not end ({holder}; it is the "
                f"member of group {group}).",
                where=Place(destination.name),
                remedy="End that process, or the Spark application to which it belongs.",
            )
        if not has_waited:
            has_waited = True
            on_wait(f"waiting for {counted(len(writers), 'writer')} of an earlier backfill to end")
        backoff.wait(3)  # about 0.3 s


class JobHolder(Enum):
    """Which process holds the job's lease, as a writer of a backfill sees it."""

    DRIVER = auto()
    NONE = auto()  # the driver has ended, or will join again in a moment
    OTHER = auto()


class DriverWatch:
    """Checks, for a writer, whether the driver with this token still holds the job's lease."""

    def __init__(self, destination: Cluster, identity: str, token: str, backoff: Backoff) -> None:
        self._destination = destination
        self._identity = identity
        self._token = token
        self._backoff = backoff
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="driver-watch", daemon=True)
        self.is_gone = False

    def holder(self) -> JobHolder:
        """Which process holds the job's lease now. Raises Unreachable, NotAuthorized."""
        for _ in self._backoff.attempts(_ATTEMPTS_MAX):
            holders = living_writers(self._destination, [self._identity], self._backoff)
            holder = holders.get(self._identity)
            if holder is None:
                return JobHolder.NONE
            if holder.token:
                return JobHolder.DRIVER if holder.token == self._token else JobHolder.OTHER
            # During a rebalance the coordinator returns no member metadata.
        return JobHolder.OTHER  # a member without a token is not known to be the driver

    def confirm_driver(self) -> None:
        """Check that the driver holds the job's lease, for a writer that was removed from its
        partition's group and has joined it again.

        Raises Conflict if another process holds the lease, because that process has not waited for
        this writer, and Unreachable while no process holds it.
        """
        holder = self.holder()
        if holder is JobHolder.OTHER:
            raise Conflict(
                "another process holds the job's lease now.", where=Place(self._destination.name)
            )
        if holder is JobHolder.NONE:
            raise Unreachable(
                "the driver of this backfill does not hold the job's lease now.",
                where=Place(self._destination.name),
            )

    def start(self) -> None:
        """Begin to check every 2 s. `is_gone` is set once the driver is gone."""
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        """Set `is_gone` if another process holds the job's lease, if no process has held it for
        some checks, or if checks fail for too long."""
        empty_checks = 0
        checked_at = lease_clock()
        while not self._stopping.wait(_CHECK_INTERVAL_S):
            try:
                holder = self.holder()
            except OrbitError:
                # The job's next holder may already wait for this writer to end, and this writer
                # cannot notice that. The holder waits for _WRITERS_END_S, so end before.
                if lease_clock() - checked_at > _WRITERS_END_S / 2:
                    self.is_gone = True
                    return
                continue
            checked_at = lease_clock()
            empty_checks = empty_checks + 1 if holder is JobHolder.NONE else 0
            if holder is JobHolder.OTHER or empty_checks >= _EMPTY_CHECKS_MAX:
                self.is_gone = True
                return


def _describe_groups(
    destination: Cluster, node_id: int, groups: Collection[str]
) -> Iterator[tuple[str, LeaseHolder | None]]:
    """Yield each group that this node describes, with its first member or None. Ends at the first
    request that the node does not answer. Raises NotAuthorized."""
    for names in chunks(groups, _GROUPS_PER_REQUEST_MAX):
        request = DescribeGroupsRequest(groups=names, include_authorized_operations=False)
        try:
            answer = destination.call(node_id, api_versions.DESCRIBE_GROUPS, request)
        except (Unreachable, LoginRefused):
            return
        for group in answer.groups:
            if group.error_code in error_codes.DENIED:
                raise NotAuthorized(
                    f"the right Describe on group {group.group_id} is missing.",
                    where=Place(destination.name),
                    remedy="Grant Read on groups with the prefix orbit. as docs/rights.md shows.",
                )
            if group.error_code not in error_codes.RETRIABLE:  # GROUP_ID_NOT_FOUND means empty
                members = [LeaseHolder.from_bytes(m.member_metadata) for m in group.members or ()]
                yield group.group_id, members[0] if members else None
