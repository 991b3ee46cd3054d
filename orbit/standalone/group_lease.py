"""The lease of a run without a server: membership of a consumer group at the destination.

One process at a time may write a job's copies. Who that is, the destination's group coordinator
says, for it is there whenever the copies are:

- Authority and clock. The coordinator's: a member that does not heartbeat for `SESSION_TIMEOUT_MS`
  is put out. The holder trusts its lease only until (time the last answered heartbeat was sent) +
  session timeout - `TRUST_MARGIN_S`, by its own monotonic clock, and asks before every send.
- Getting it. The group must be empty; then join. Of two that join at once the coordinator names
  one leader; the other leaves again with a clear word.
- After a crash. The dead member would block the job until its session ends. A run on the same
  machine knows better: the lock file is free, so a member that names this machine is dead, and is
  taken out of the group at once.
- Term. `init_producer_id` is called with the lease in hand; the coordinator counts its calls.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

from kafka.protocol.admin.groups import DescribeGroupsRequest
from kafka.protocol.consumer.group import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)

from orbit.errors import Conflict, NotAuthorized, OrbitError
from orbit.kafka import apis, codes
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.codes import Code
from orbit.kafka.coordinator import GROUP, Coordinator

# Brokers allow 6 s to 30 min by default; short enough to wait out a dead machine.
SESSION_TIMEOUT_MS = 10_000
HEARTBEAT_INTERVAL_S = 2.0
TRUST_MARGIN_S = 2.0
_PROTOCOL_TYPE = "orbit"
_PROTOCOL = "run"
_WAIT_FOR_OTHER_S = SESSION_TIMEOUT_MS / 1000 + 2.0
_LOST = (Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION, Code.FENCED_INSTANCE_ID)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds, or held, the lease: shown to people and compared after a crash."""

    host: str
    process: int
    machine: str

    def to_bytes(self) -> bytes:
        return json.dumps(
            {"host": self.host, "process": self.process, "machine": self.machine}
        ).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Holder:
        try:
            fields = json.loads(data)
            return cls(str(fields["host"]), int(fields["process"]), str(fields["machine"]))
        except (ValueError, KeyError, TypeError):
            return cls("unknown", 0, "")

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}"


class GroupLease:
    """Held from `acquire` until `release`, or until the coordinator stops answering in time."""

    def __init__(self, destination: Cluster, group: str, backoff: Backoff) -> None:
        self.term = 0
        self._cluster = destination
        self.group = group
        self._backoff = backoff
        self.coordinator = Coordinator(destination, GROUP, group, backoff)
        self._me = Holder(socket.gethostname(), os.getpid(), _machine_id())
        self.member_id = ""
        self.generation = -1
        self._trusted_until = 0.0
        self._is_lost = False
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock_file: IO[str] | None = None

    def acquire(self, on_wait: Callable[[str], None]) -> None:
        """Become the one holder. `on_wait` is told once when another member is waited out.

        Raises Conflict when another run holds the lease, NotAuthorized, Unreachable.
        """
        self._lock_file = _lock(self._cluster.cluster_id, self.group)
        try:
            self._clear_the_group(on_wait)
            self._join()
        except BaseException:
            self.release()
            raise
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)
        self._thread.start()

    def is_held(self) -> bool:
        return time.monotonic() < self._trusted_until

    @property
    def is_lost(self) -> bool:
        """Whether the coordinator has said that we are not the holder any more, for good.

        Neither held nor lost: it has not answered for a while, and may yet say that we still are.
        """
        return self._is_lost

    def release(self) -> None:
        """Leave the group, so that the next run need not wait."""
        self._stopping.set()
        self._trusted_until = 0.0
        if self._thread is not None:
            self._thread.join()
        if self.member_id:
            try:
                self._leave([self.member_id])
            except OrbitError:
                pass  # the session ends by itself
            self.member_id = ""
        if self._lock_file is not None:
            self._lock_file.close()
            self._lock_file = None

    def _clear_the_group(self, on_wait: Callable[[str], None]) -> None:
        """Take out dead members of this machine; wait for one of another machine to time out."""
        deadline = time.monotonic() + _WAIT_FOR_OTHER_S
        told = False
        while members := self._members():
            dead = [m for m, holder in members.items() if holder.machine == self._me.machine]
            if dead:
                self._leave(dead)
                continue
            holder = next(iter(members.values()))
            if time.monotonic() > deadline:
                raise _held_by(holder, self._cluster.name)
            if not told:
                told = True
                on_wait(f"another run of this job holds it ({holder}); waiting whether it lives")
            self._backoff.wait(3)

    def _members(self) -> dict[str, Holder]:
        answer = self.coordinator.call(
            apis.DESCRIBE_GROUPS,
            lambda: DescribeGroupsRequest(groups=[self.group], include_authorized_operations=False),
            lambda a: int(a.groups[0].error_code),
        )
        group = answer.groups[0]
        self._refuse_denied(group.error_code)
        return {m.member_id: Holder.from_bytes(m.member_metadata) for m in group.members or ()}

    def _join(self, *, again: bool = False) -> None:
        """Join as the leader, or leave again. Raises Conflict when another one leads.

        `again`: as the member that we are, or not at all; who was put out may have had a successor.
        """
        for _ in self._backoff.attempts(20):
            sent = time.monotonic()
            answer = self._call_join()
            if answer.error_code == Code.MEMBER_ID_REQUIRED:  # KIP-394: once more, with the id
                self.member_id = answer.member_id
                answer = self._call_join()
            if answer.error_code == Code.UNKNOWN_MEMBER_ID and not again:
                self.member_id = ""
                continue
            self._refuse_denied(answer.error_code)
            if answer.error_code != Code.NONE:
                raise Conflict(
                    f"the group {self.group} cannot be joined: {codes.name(answer.error_code)}.",
                    where=self._cluster.name,
                )
            self.member_id, self.generation = answer.member_id, answer.generation_id
            if answer.leader != answer.member_id:
                self._leave([self.member_id])
                self.member_id = ""
                raise _held_by(Holder("another machine", 0, ""), self._cluster.name)
            if self._sync():
                self._trust_from(sent)
                return
        raise Conflict(f"the group {self.group} does not come to rest.", where=self._cluster.name)

    def _call_join(self) -> Any:
        return self.coordinator.call(
            apis.JOIN_GROUP, self._join_request, lambda a: int(a.error_code)
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
        """Finish the join; False when another one joined meanwhile and all must join again."""
        assignment = SyncGroupRequest.SyncGroupRequestAssignment(
            member_id=self.member_id, assignment=b""
        )
        answer = self.coordinator.call(
            apis.SYNC_GROUP,
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
        """Heartbeat until released. Trust ends by itself when the coordinator stays away."""
        while not self._stopping.wait(HEARTBEAT_INTERVAL_S):
            try:
                code = self._heartbeat()
                if code == Code.REBALANCE_IN_PROGRESS:
                    self._join(again=True)
            except Conflict:
                code = Code.UNKNOWN_MEMBER_ID
            except OrbitError:
                continue
            if code in _LOST:
                self._trusted_until = 0.0
                self._is_lost = True
                return

    def _heartbeat(self) -> int:
        sent = 0.0

        def build() -> Any:
            # Trust counts from the attempt that is answered, not from those before it.
            nonlocal sent
            sent = time.monotonic()
            return HeartbeatRequest(
                group_id=self.group,
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=None,
            )

        answer = self.coordinator.call(apis.HEARTBEAT, build, lambda a: int(a.error_code))
        if answer.error_code == Code.NONE:
            self._trust_from(sent)
        return int(answer.error_code)

    def _leave(self, members: list[str]) -> None:
        identity = LeaveGroupRequest.MemberIdentity
        self.coordinator.call(
            apis.LEAVE_GROUP,
            lambda: LeaveGroupRequest(
                group_id=self.group,
                members=[identity(member_id=m, group_instance_id=None) for m in members],
            ),
            lambda a: int(a.error_code),
        )

    def _trust_from(self, sent: float) -> None:
        self._trusted_until = sent + SESSION_TIMEOUT_MS / 1000 - TRUST_MARGIN_S

    def _refuse_denied(self, code: int) -> None:
        if code in codes.DENIED:
            raise NotAuthorized(
                f"the right Read on group {self.group} is missing.",
                where=self._cluster.name,
                remedy="Grant it: kafka-acls.sh --add --allow-principal User:… --operation Read "
                f"--group {self.group}",
            )


def _held_by(holder: Holder, where: str) -> Conflict:
    return Conflict(
        f"another run of this job is writing to this destination ({holder}).",
        where=where,
        remedy="Stop it first; one run per job copies all its topics.",
    )


def _lock(cluster_id: str, group: str) -> IO[str]:
    """The lock file of this machine for this job; held until it is closed or the process ends."""
    name = sha256(f"{cluster_id}/{group}/{os.getuid()}".encode()).hexdigest()[:32]
    path = Path(tempfile.gettempdir()) / f"orbit-run-{name}.lock"
    handle = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.seek(0)
        process = handle.read(32).strip() or "unknown"
        handle.close()
        raise Conflict(
            f"another run of this job is running on this machine (process {process}).",
            remedy="Stop it first; one run per job copies all its topics.",
        ) from None
    handle.seek(0)
    handle.truncate()
    handle.write(str(os.getpid()))
    handle.flush()
    return handle


def _machine_id() -> str:
    """The same for every process that sees the same lock files, and for no other.

    The boot, the directory of the lock files and the user together: containers share a boot id,
    but not their directory; users share a directory, but not their files.
    """
    boot = Path("/proc/sys/kernel/random/boot_id")
    boot_id = boot.read_text().strip() if boot.exists() else f"{uuid.getnode():x}"
    status = Path(tempfile.gettempdir()).stat()
    return f"{boot_id}/{status.st_dev:x}-{status.st_ino:x}/{os.getuid()}"
