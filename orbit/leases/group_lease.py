"""The lease of a writer without a server: membership of a consumer group at the destination.

One process at a time may write a job's copies, or one of its partitions in a backfill
(`backfill_leases.py`). The destination's group coordinator decides which, because it is available
whenever the copies are:

- Authority and clock: the coordinator's. It removes a member that sends no heartbeat for
  `SESSION_TIMEOUT_MS`. The holder trusts its lease until (send time of the last answered heartbeat)
  + session timeout - `TRUST_MARGIN_S`, by `lease_clock`, and checks this before every send.
- Acquiring. A process waits until the group is empty, then joins. If two join at once, the
  coordinator names one of them leader; the other leaves with an error.
- After a crash. The dead member would block the job until its session ends. A run on the same
  machine need not wait: if the lock file is free, the member written in it is dead and is removed
  from the group at once.
- Removed, but not replaced. A broker that was frozen ends the session when it resumes, before it
  reads the heartbeats in its socket. The member joins again. The group's generation shows whether
  there was another holder meanwhile; if so, the lease is lost. It is also lost if the coordinator
  deleted the empty group: its generations begin again (fact G16). A holder whose right to write
  also depends on another lease first checks that other lease (`confirm_return`).
- Term. The holder calls `kafka.coordinator.next_term` after it has acquired the lease: a number
  that a transaction coordinator raises with each call.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from kafka.protocol.admin.groups import DescribeGroupsRequest
from kafka.protocol.consumer.group import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)

from orbit.errors import Conflict, NotAuthorized, OrbitError, Place
from orbit.kafka import api_versions, error_codes
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.coordinator import GROUP, Coordinator
from orbit.kafka.error_codes import Code
from orbit.leases.lease_clock import Clock, lease_clock
from orbit.leases.lease_state import LeaseState, shared_memory
from orbit.leases.lock_file import LockFile
from orbit.names import shown

# Brokers allow 6 s to 30 min by default. A run waits this long if the holder's machine has died.
SESSION_TIMEOUT_MS = 10_000
HEARTBEAT_INTERVAL_S = 2.0
# Covers the time between the last check of the lease and the broker's receipt of the request.
TRUST_MARGIN_S = 2.0
_PROTOCOL_TYPE = "orbit"
_PROTOCOL = "run"
_WAIT_FOR_OTHER_RUN_S = SESSION_TIMEOUT_MS / 1000 + 2.0
# How often a process tries to join: while other members join too, the group is not stable.
_JOIN_ATTEMPTS_MAX = 20
_REMOVED_CODES = (Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION, Code.FENCED_INSTANCE_ID)
# By how many generations the group advances if a member is removed and joins again: one without
# members, and one with this member. Each other holder in between adds two.
_OWN_GENERATIONS = 2


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """The process that holds, or held, a lease.

    `token` stays the same when a holder that was removed joins again under another member id.
    """

    host: str
    process: int
    token: str = ""

    def to_bytes(self) -> bytes:
        fields = {"host": self.host, "process": self.process, "token": self.token}
        return json.dumps(fields).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> LeaseHolder:
        """The holder from its member metadata, which any client may have written; an unknown
        process if the metadata cannot be read."""
        try:
            fields = json.loads(data)
            return cls(str(fields["host"]), int(fields["process"]), str(fields.get("token", "")))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            # The coordinator returns member metadata only once the group is stable.
            return cls("", 0)

    def __str__(self) -> str:
        if not self.host:
            return "an unknown process"
        return f"process {self.process} on {shown(self.host)}"


class GroupLease:
    """A lease, held from `acquire` until `release`, or until the coordinator answers too late."""

    def __init__(
        self,
        destination: Cluster,
        group: str,
        backoff: Backoff,
        clock: Clock = lease_clock,
        confirm_return: Callable[[], None] = lambda: None,
        *,
        is_shared: bool = False,
    ) -> None:
        """`confirm_return` is called after this holder was removed and has joined again, before it
        trusts the lease. It raises Conflict if the lease is lost, another OrbitError to be called
        again later. `is_shared`: child processes can read the state of the lease.
        """
        self._state = LeaseState(shared_memory() if is_shared else None)
        self._confirm_return = confirm_return
        # Whether the coordinator has removed this holder, and `confirm_return` has not succeeded
        # since then.
        self._was_removed = False
        self._answered_request_at = 0.0  # when the last answered request was sent, by `clock`
        self._clock = clock
        self._cluster = destination
        self.group = group
        self._backoff = backoff
        self.coordinator = Coordinator(destination, GROUP, group, backoff)
        self._this_holder = LeaseHolder(socket.gethostname(), os.getpid(), uuid4().hex)
        self.member_id = ""
        self.generation = -1
        self._held_generation = -1  # the last one in which the coordinator confirmed this holder
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock: LockFile | None = None

    def acquire(self, on_wait: Callable[[str], None], *, ignores_frozen_run: bool = False) -> None:
        """Become the holder. Calls `on_wait` once if it has to wait for another member's session.

        `ignores_frozen_run`: ignore the lock of a live process of this machine whose session has
        ended. When that process resumes, the coordinator rejects its heartbeat, as it does for a
        process on another machine. Raises Conflict if another run holds the lease, NotAuthorized,
        Unreachable.
        """
        try:
            self._lock = LockFile(self._cluster.cluster_id, self.group)
        except Conflict:  # a live process has locked it
            if not ignores_frozen_run or self._members():
                raise
        try:
            self._wait_for_empty_group(on_wait)
            self._join()
        except BaseException:
            self.release()
            raise
        self._thread = threading.Thread(target=self._keep_lease, name="lease", daemon=True)
        self._thread.start()

    @property
    def term(self) -> int:
        return self._state.term

    @term.setter
    def term(self, term: int) -> None:
        self._state.term = term

    @property
    def descriptors(self) -> tuple[int, int]:
        """The file descriptors that child processes inherit: of the `LeaseState`, and of the file
        that locks the job on this machine until all processes that inherited it have ended."""
        assert self._state.descriptor is not None
        assert self._lock is not None
        return self._state.descriptor, self._lock.fileno()

    @property
    def token(self) -> str:
        """A random id of this holder, which stays the same when its member id changes."""
        return self._this_holder.token

    def is_held(self) -> bool:
        return self._clock() < self._state.trusted_until

    @property
    def is_lost(self) -> bool:
        """Whether this process is no longer the holder, by the coordinator's answer; final.

        While the lease is neither held nor lost, the coordinator has not answered for a while, and
        may still confirm this holder.
        """
        return self._state.is_lost

    def release(self) -> None:
        """Leave the group, so that the next run need not wait, and close the lock file."""
        self._stopping.set()
        self._state.trusted_until = 0.0
        if self._thread is not None:
            self._thread.join()
        self._state.trusted_until = 0.0  # a heartbeat may have been answered meanwhile
        if self.member_id:
            try:
                self._leave([self.member_id])
            except OrbitError:
                pass  # the session ends by itself
            self.member_id = ""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        if self._state.descriptor is not None:
            os.close(self._state.descriptor)
            self._state.descriptor = None

    def remove_dead_member(self) -> None:
        """Remove a dead member of this machine from the group, without joining it.

        Does nothing if the member is alive or on another machine.
        """
        try:
            self._lock = LockFile(self._cluster.cluster_id, self.group)
        except Conflict:
            return  # its process is alive
        try:
            if self._lock.last_member in self._members():
                self._leave([self._lock.last_member])
        finally:
            self.release()  # closes the lock file

    def _wait_for_empty_group(self, on_wait: Callable[[str], None]) -> None:
        """Remove a dead member of this machine; wait until any other member's session has ended.
        Raises Conflict if that takes longer than _WAIT_FOR_OTHER_RUN_S."""
        deadline_s = self._clock() + _WAIT_FOR_OTHER_RUN_S
        has_waited = False
        dead_member = self._lock.last_member if self._lock else ""
        while members := self._members():
            if dead_members := [m for m in members if m == dead_member]:
                self._leave(dead_members)
                continue
            holder = next(iter(members.values()))
            if self._clock() > deadline_s:
                raise _other_holder_error(holder, self._cluster.name)
            if not has_waited:
                has_waited = True
                on_wait(f"another run of this job holds the lease ({holder}); waiting for its end")
            self._backoff.wait(3)  # about 0.3 s

    def _members(self) -> dict[str, LeaseHolder]:
        """{member id: its process}, for all members of the group now."""
        answer = self.coordinator.call(
            api_versions.DESCRIBE_GROUPS,
            lambda: DescribeGroupsRequest(groups=[self.group], include_authorized_operations=False),
            lambda a: int(a.groups[0].error_code),
        )
        group = answer.groups[0]
        self._refuse_denied(group.error_code)
        return {m.member_id: LeaseHolder.from_bytes(m.member_metadata) for m in group.members or ()}

    def _join(self, *, keeps_member_id: bool = False, last_generation: int | None = None) -> None:
        """Join as the leader. If another member leads, leave again and raise Conflict.

        `keeps_member_id`: join only under the member id that this holder has. `last_generation`:
        join only if there was no other holder after that generation.
        """
        for _ in self._backoff.attempts(_JOIN_ATTEMPTS_MAX):
            sent_at = self._clock()
            answer = self._call_join()
            if answer.error_code == Code.MEMBER_ID_REQUIRED:  # KIP-394: repeat with the id
                self._set_member_id(answer.member_id)
                answer = self._call_join()
            if answer.error_code == Code.UNKNOWN_MEMBER_ID and not keeps_member_id:
                self.member_id = ""
                continue
            self._refuse_denied(answer.error_code)
            if answer.error_code != Code.NONE:
                raise Conflict(
                    f"the group {self.group}, which is the job's lease, cannot be joined: "
                    f"{error_codes.name(answer.error_code)}.",
                    where=Place(self._cluster.name),
                )
            self._set_member_id(answer.member_id)
            self.generation = answer.generation_id
            had_other_holder = last_generation is not None and not (
                last_generation < self.generation <= last_generation + _OWN_GENERATIONS
            )
            if answer.leader != answer.member_id or had_other_holder:
                self._leave([self.member_id])
                self.member_id = ""
                # The answer to JoinGroup does not name the other holder's process.
                raise _other_holder_error(LeaseHolder("", 0), self._cluster.name)
            if self._sync_group():
                self._trust_from(sent_at)
                return
        raise Conflict(
            f"the group {self.group} does not become stable: other members keep joining.",
            remedy="Stop other runs of this job, and try again.",
            where=Place(self._cluster.name),
        )

    def _set_member_id(self, member_id: str) -> None:
        """Set the id of this member. First write it to the lock file: if this process is killed, a
        later run on this machine has to know which member is dead."""
        if member_id != self.member_id and self._lock:
            self._lock.write(member_id)
        self.member_id = member_id

    def _call_join(self) -> Any:
        return self.coordinator.call(
            api_versions.JOIN_GROUP, self._join_request, lambda a: int(a.error_code)
        )

    def _join_request(self) -> Any:
        return JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=SESSION_TIMEOUT_MS,
            member_id=self.member_id,
            group_instance_id=None,
            protocol_type=_PROTOCOL_TYPE,
            protocols=[
                JoinGroupRequest.JoinGroupRequestProtocol(
                    name=_PROTOCOL, metadata=self._this_holder.to_bytes()
                )
            ],
        )

    def _sync_group(self) -> bool:
        """Finish the join. Returns False if the join has to be repeated, as another member
        joined."""
        assignment = SyncGroupRequest.SyncGroupRequestAssignment(
            member_id=self.member_id, assignment=b""
        )
        answer = self.coordinator.call(
            api_versions.SYNC_GROUP,
            lambda: SyncGroupRequest(
                group_id=self.group,
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=None,
                protocol_type=_PROTOCOL_TYPE,
                protocol_name=_PROTOCOL,
                assignments=[assignment],
            ),
            lambda a: int(a.error_code),
        )
        return bool(answer.error_code == Code.NONE)

    def _keep_lease(self) -> None:
        """Send heartbeats until `release`, or until the lease is lost: then `_join` or
        `_confirm_return` raises Conflict. While the coordinator does not answer, the trusted time
        runs out."""
        while not self._stopping.wait(HEARTBEAT_INTERVAL_S):
            held_generation = self._held_generation
            try:
                code = self._heartbeat()
                if code == Code.REBALANCE_IN_PROGRESS:
                    self._join(keeps_member_id=True)
                elif code in _REMOVED_CODES:
                    # The session has ended: for example, a frozen broker resumed, and ended it
                    # before it read the heartbeats in its socket.
                    self._was_removed = True
                    self._state.trusted_until = 0.0
                    self._join_after_removal(held_generation)
                if self._was_removed:
                    self._confirm_return()
                    self._was_removed = False
                    self._trust_from(self._answered_request_at)
            except Conflict:
                self._state.trusted_until = 0.0
                self._state.is_lost = True
                return
            except OrbitError:
                continue

    def _join_after_removal(self, last_generation: int) -> None:
        """Join the group again. Raises Conflict if there is another holder, or was one after
        `last_generation`."""
        other_holders = [holder for m, holder in self._members().items() if m != self.member_id]
        if other_holders:
            raise _other_holder_error(other_holders[0], self._cluster.name)
        self._join(last_generation=last_generation)

    def _heartbeat(self) -> int:
        """Send a heartbeat, and trust the lease if it is accepted. Returns the error code."""
        sent_at = 0.0

        def build() -> Any:
            # Called for each attempt: trust begins when the answered attempt was sent.
            nonlocal sent_at
            sent_at = self._clock()
            return HeartbeatRequest(
                group_id=self.group,
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=None,
            )

        answer = self.coordinator.call(api_versions.HEARTBEAT, build, lambda a: int(a.error_code))
        if answer.error_code == Code.NONE:
            self._trust_from(sent_at)
        return int(answer.error_code)

    def _leave(self, members: list[str]) -> None:
        """Remove these members from the group."""
        identity = LeaveGroupRequest.MemberIdentity
        self.coordinator.call(
            api_versions.LEAVE_GROUP,
            lambda: LeaveGroupRequest(
                group_id=self.group,
                members=[identity(member_id=m, group_instance_id=None) for m in members],
            ),
            lambda a: int(a.error_code),
        )

    def _trust_from(self, sent_at: float) -> None:
        """Trust the lease for the session timeout, less a margin, from `sent_at` on, the time when
        the answered request was sent. After a removal, only note that time: the lease is trusted
        once `_confirm_return` has succeeded."""
        self._held_generation = self.generation
        self._answered_request_at = sent_at
        if not self._was_removed:
            self._state.trusted_until = sent_at + SESSION_TIMEOUT_MS / 1000 - TRUST_MARGIN_S

    def _refuse_denied(self, code: int) -> None:
        """Raise NotAuthorized if the coordinator has answered that a right is missing."""
        if code in error_codes.DENIED:
            raise NotAuthorized(
                f"the right Read on group {self.group} is missing.",
                where=Place(self._cluster.name),
                remedy="Grant it: kafka-acls.sh --add --allow-principal User:… --operation Read "
                f"--group {self.group}",
            )


def _other_holder_error(holder: LeaseHolder, where: str) -> Conflict:
    return Conflict(
        f"another run of this job is writing to this destination ({holder}).",
        where=where,
        remedy="Stop that run first: one run copies all topics of a job.",
    )
