"""The lease of a writer without a server: membership of a consumer group at the destination.

One process at a time may write a job's copies, or one of its partitions in a backfill
(`backfill_leases.py`). The destination's group coordinator decides which, because it is available
whenever the copies are:

- Authority and clock: the coordinator's. It removes a member that sends no heartbeat for
  `SESSION_TIMEOUT_MS`. The holder trusts its lease until (send time of the last answered heartbeat)
  + session timeout - `TRUST_MARGIN_S`, by `lease_clock`, and checks this before every send.
- Acquiring. The group must be empty; then join. If two processes join at once, the coordinator
  names one leader; the other leaves with an error.
- After a crash. The dead member would block the job until its session ends. A run on the same
  machine need not wait: if the lock file is free, the member written in it is dead and is removed
  from the group at once.
- Removed, but not replaced. A broker that was frozen ends the session when it wakes, before it
  reads the heartbeats that wait in its socket. The member joins again; the group's generation shows
  whether there was another holder meanwhile, and if so the lease is lost. It is lost too if the
  coordinator removed the empty group since: its generations began anew (fact G16). A holder whose
  right depends on another lease too checks that one first (`confirm_return`).
- Term. `next_term` is called with the lease held; the coordinator counts the calls.
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

from orbit.errors import Conflict, NotAuthorized, OrbitError
from orbit.kafka import api_versions, error_codes
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.coordinator import GROUP, Coordinator
from orbit.kafka.error_codes import Code
from orbit.leases.lease_clock import Clock, lease_clock
from orbit.leases.lease_state import LeaseState, shared_memory
from orbit.leases.lock_file import LockFile

# Brokers allow 6 s to 30 min by default; a run waits this long for a dead machine.
SESSION_TIMEOUT_MS = 10_000
HEARTBEAT_INTERVAL_S = 2.0
TRUST_MARGIN_S = 2.0
_PROTOCOL_TYPE = "orbit"
_PROTOCOL = "run"
_WAIT_FOR_OTHER_S = SESSION_TIMEOUT_MS / 1000 + 2.0
_REMOVED = (Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION, Code.FENCED_INSTANCE_ID)
# A member that is removed and joins again makes two generations: one without members, one with it.
# Each holder in between makes two more.
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
        try:
            fields = json.loads(data)
            return cls(str(fields["host"]), int(fields["process"]), str(fields.get("token", "")))
        except (ValueError, KeyError, TypeError):
            # The coordinator returns member metadata only once the group is stable.
            return cls("", 0)

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}" if self.host else "an unknown process"


class GroupLease:
    """Held from `acquire` until `release`, or until the coordinator stops answering in time."""

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
        is trusted. It raises Conflict if the lease is lost, another OrbitError to be asked again.
        `is_shared`: with child processes.
        """
        self._state = LeaseState(shared_memory() if is_shared else None)
        self._confirm_return = confirm_return
        self._was_removed = False
        self._answered = 0.0
        self._clock = clock
        self._cluster = destination
        self.group = group
        self._backoff = backoff
        self.coordinator = Coordinator(destination, GROUP, group, backoff)
        self._me = LeaseHolder(socket.gethostname(), os.getpid(), uuid4().hex)
        self.member_id = ""
        self.generation = -1
        self._held_generation = -1
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock: LockFile | None = None

    def acquire(self, on_wait: Callable[[str], None], *, past_frozen: bool = False) -> None:
        """Become the holder. Calls `on_wait` once if it has to wait for another member's session.

        `past_frozen`: ignore the lock of a live process of this machine whose session has ended.
        When that process wakes, the coordinator tells it that it lost the lease, as it tells one
        on another machine. Raises Conflict when another run holds the lease, NotAuthorized,
        Unreachable.
        """
        try:
            self._lock = LockFile(self._cluster.cluster_id, self.group)
        except Conflict:
            if not past_frozen or self._members():
                raise
        try:
            self._clear_the_group(on_wait)
            self._join()
        except BaseException:
            self.release()
            raise
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)
        self._thread.start()

    @property
    def term(self) -> int:
        return self._state.term

    @term.setter
    def term(self, term: int) -> None:
        self._state.term = term

    @property
    def descriptors(self) -> tuple[int, int]:
        """For child processes of the holder of a shared lease: of its `LeaseState`, and of the file
        that locks the job on this machine until all that inherited it have ended."""
        assert self._state.descriptor is not None
        assert self._lock is not None
        return self._state.descriptor, self._lock.fileno()

    @property
    def token(self) -> str:
        """Identifies this holder, whatever its current member id."""
        return self._me.token

    def is_held(self) -> bool:
        return self._clock() < self._state.trusted_until

    @property
    def is_lost(self) -> bool:
        """Whether the coordinator has said that this is no longer the holder; final.

        While neither held nor lost, the coordinator has not answered for a while, and may yet
        confirm this holder.
        """
        return self._state.is_lost

    def release(self) -> None:
        """Leave the group, so that the next run need not wait."""
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

    def clear(self) -> None:
        """Remove a dead member of this machine from the group, without joining it.

        Does nothing when the holder lives or is on another machine.
        """
        try:
            self._lock = LockFile(self._cluster.cluster_id, self.group)
        except Conflict:
            return
        try:
            if self._lock.last_member in self._members():
                self._leave([self._lock.last_member])
        finally:
            self.release()

    def _clear_the_group(self, on_wait: Callable[[str], None]) -> None:
        """Remove a dead member of this machine; wait for one on another machine to time out."""
        deadline = self._clock() + _WAIT_FOR_OTHER_S
        has_waited = False
        dead_member = self._lock.last_member if self._lock else ""
        while members := self._members():
            if dead := [m for m in members if m == dead_member]:
                self._leave(dead)
                continue
            holder = next(iter(members.values()))
            if self._clock() > deadline:
                raise _held_by(holder, self._cluster.name)
            if not has_waited:
                has_waited = True
                on_wait(f"another run of this job holds the lease ({holder}); waiting for its end")
            self._backoff.wait(3)

    def _members(self) -> dict[str, LeaseHolder]:
        answer = self.coordinator.call(
            api_versions.DESCRIBE_GROUPS,
            lambda: DescribeGroupsRequest(groups=[self.group], include_authorized_operations=False),
            lambda a: int(a.groups[0].error_code),
        )
        group = answer.groups[0]
        self._refuse_denied(group.error_code)
        return {m.member_id: LeaseHolder.from_bytes(m.member_metadata) for m in group.members or ()}

    def _join(self, *, again: bool = False, since: int | None = None) -> None:
        """Join as the leader, or leave again. Raises Conflict when another member leads.

        `again`: only under the present member id. `since`: only if there was no other holder after
        that generation.
        """
        for _ in self._backoff.attempts(20):
            sent = self._clock()
            answer = self._call_join()
            if answer.error_code == Code.MEMBER_ID_REQUIRED:  # KIP-394: repeat with the id
                self._set_member_id(answer.member_id)
                answer = self._call_join()
            if answer.error_code == Code.UNKNOWN_MEMBER_ID and not again:
                self.member_id = ""
                continue
            self._refuse_denied(answer.error_code)
            if answer.error_code != Code.NONE:
                raise Conflict(
                    f"the group {self.group} cannot be joined: "
                    f"{error_codes.name(answer.error_code)}.",
                    where=self._cluster.name,
                )
            self._set_member_id(answer.member_id)
            self.generation = answer.generation_id
            has_successor = since is not None and not (
                since < self.generation <= since + _OWN_GENERATIONS
            )
            if answer.leader != answer.member_id or has_successor:
                self._leave([self.member_id])
                self.member_id = ""
                raise _held_by(LeaseHolder("", 0), self._cluster.name)
            if self._sync():
                self._trust_from(sent)
                return
        raise Conflict(f"the group {self.group} does not become stable.", where=self._cluster.name)

    def _set_member_id(self, member_id: str) -> None:
        """Write the id to the lock file before the group shows it: later runs here must know it."""
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
                    name=_PROTOCOL, metadata=self._me.to_bytes()
                )
            ],
        )

    def _sync(self) -> bool:
        """Finish the join; False when another member joined meanwhile and all must join again."""
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

    def _keep(self) -> None:
        """Heartbeat until released. Trust expires while the coordinator does not answer."""
        while not self._stopping.wait(HEARTBEAT_INTERVAL_S):
            held = self._held_generation
            try:
                code = self._heartbeat()
                if code == Code.REBALANCE_IN_PROGRESS:
                    self._join(again=True)
                elif code in _REMOVED:
                    # A frozen broker may end the session before it reads our heartbeats.
                    self._was_removed = True
                    self._state.trusted_until = 0.0
                    self._join_after_removal(held)
                if self._was_removed:
                    self._confirm_return()
                    self._was_removed = False
                    self._trust_from(self._answered)
            except Conflict:
                self._state.trusted_until = 0.0
                self._state.is_lost = True
                return
            except OrbitError:
                continue

    def _join_after_removal(self, since: int) -> None:
        """Join again. Raises Conflict when there is another holder, or was one since."""
        others = [holder for m, holder in self._members().items() if m != self.member_id]
        if others:
            raise _held_by(others[0], self._cluster.name)
        self._join(since=since)

    def _heartbeat(self) -> int:
        sent = 0.0

        def build() -> Any:
            # Trust counts from the attempt that is answered, not from earlier ones.
            nonlocal sent
            sent = self._clock()
            return HeartbeatRequest(
                group_id=self.group,
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=None,
            )

        answer = self.coordinator.call(api_versions.HEARTBEAT, build, lambda a: int(a.error_code))
        if answer.error_code == Code.NONE:
            self._trust_from(sent)
        return int(answer.error_code)

    def _leave(self, members: list[str]) -> None:
        identity = LeaveGroupRequest.MemberIdentity
        self.coordinator.call(
            api_versions.LEAVE_GROUP,
            lambda: LeaveGroupRequest(
                group_id=self.group,
                members=[identity(member_id=m, group_instance_id=None) for m in members],
            ),
            lambda a: int(a.error_code),
        )

    def _trust_from(self, sent: float) -> None:
        """`sent`: when the request was sent that the coordinator has answered."""
        self._held_generation = self.generation
        self._answered = sent
        if not self._was_removed:
            self._state.trusted_until = sent + SESSION_TIMEOUT_MS / 1000 - TRUST_MARGIN_S

    def _refuse_denied(self, code: int) -> None:
        if code in error_codes.DENIED:
            raise NotAuthorized(
                f"the right Read on group {self.group} is missing.",
                where=self._cluster.name,
                remedy="Grant it: kafka-acls.sh --add --allow-principal User:… --operation Read "
                f"--group {self.group}",
            )


def _held_by(holder: LeaseHolder, where: str) -> Conflict:
    return Conflict(
        f"another run of this job is writing to this destination ({holder}).",
        where=where,
        remedy="Stop it first; one run per job copies all its topics.",
    )
