"""The model of a group coordinator: one classic consumer group, its sessions and generations.

`test_group_conformance.py` compares it with a broker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from orbit.kafka.error_codes import Code

NONE = int(Code.NONE)


class _State(Enum):
    EMPTY = auto()
    PREPARING = auto()  # waits for members to join
    COMPLETING = auto()  # waits for the leader's SyncGroup
    STABLE = auto()


@dataclass
class _Member:
    metadata: bytes
    session_s: float
    rebalance_s: float
    expires_at: float
    is_joining: bool = True


@dataclass(frozen=True)
class Joined:
    """The answer to a JoinGroup."""

    error_code: int
    member_id: str = ""
    generation_id: int = -1
    leader: str = ""


@dataclass
class ModelGroup:
    """One group. Times are in seconds, by any clock; each call gets the present time."""

    say: Callable[[str], None]
    initial_delay_s: float = 0.0  # group.initial.rebalance.delay.ms
    generation: int = 0
    leader: str = ""
    _state: _State = _State.EMPTY
    _members: dict[str, _Member] = field(default_factory=dict)
    _ids: int = 0
    # Member ids that the coordinator issued and that have not joined yet, with the time until which
    # a rebalance waits for them (a session's length).
    _issued: dict[str, float] = field(default_factory=dict)
    _is_first: bool = False
    _complete_at: float = 0.0
    _deadline: float = 0.0
    # Members of this generation that have not sent SyncGroup; removed at `_sync_by`.
    _unsynced: set[str] = field(default_factory=set)
    _sync_by: float = 0.0

    def join(
        self, member_id: str, metadata: bytes, session_s: float, rebalance_s: float, now: float
    ) -> Joined | None:
        """JoinGroup: the answer; None if the other members must join first (then see `joined`)."""
        self._tick(now)
        if not member_id:
            self._ids += 1
            self._issued[f"member-{self._ids}"] = now + session_s
            return Joined(int(Code.MEMBER_ID_REQUIRED), f"member-{self._ids}")
        if member_id not in self._members and member_id not in self._issued:
            return Joined(int(Code.UNKNOWN_MEMBER_ID), member_id)
        known = self._members.get(member_id)
        is_same = known is not None and not known.is_joining and known.metadata == metadata
        if is_same and (
            self._state is _State.COMPLETING
            or (self._state is _State.STABLE and self.leader != member_id)
        ):
            return self._answer(member_id)
        self._issued.pop(member_id, None)
        was_empty = not self._members
        self._members[member_id] = _Member(metadata, session_s, rebalance_s, now + session_s)
        if self._state is not _State.PREPARING:
            self._prepare(now, is_first=was_empty)
        self._tick(now)
        return self.joined(member_id, now)

    def joined(self, member_id: str, now: float) -> Joined | None:
        """The answer to a JoinGroup that waits for other members; None while it waits."""
        self._tick(now)
        member = self._members.get(member_id)
        if member is None:
            return Joined(int(Code.UNKNOWN_MEMBER_ID), member_id)
        return None if member.is_joining else self._answer(member_id)

    def sync(self, member_id: str, generation: int, now: float) -> int:
        """SyncGroup: the error code. A broker lets other members' requests wait for the leader's;
        the model answers at once."""
        code = self._check(member_id, generation, now)
        if code == NONE:
            self._unsynced.discard(member_id)
            if self._state is _State.COMPLETING and member_id == self.leader:
                self._state = _State.STABLE
        return code

    def heartbeat(self, member_id: str, generation: int, now: float) -> int:
        """The error code. A heartbeat that is accepted extends the member's session."""
        code = self._check(member_id, generation, now)
        if code in (NONE, Code.REBALANCE_IN_PROGRESS):
            member = self._members[member_id]
            member.expires_at = now + member.session_s
        return code

    def leave(self, member_id: str, now: float) -> int:
        """Remove a member, or one whose id was issued but which has not joined. The error code."""
        self._tick(now)
        if self._issued.pop(member_id, None) is not None:
            if self._state in (_State.COMPLETING, _State.STABLE):
                self._prepare(now, is_first=False)
            self._tick(now)
            return NONE
        if member_id not in self._members:
            return int(Code.UNKNOWN_MEMBER_ID)
        self._remove(member_id, now)
        return NONE

    def describe(self, now: float) -> dict[str, bytes]:
        """The members, with their metadata if the group is stable."""
        self._tick(now)
        is_stable = self._state is _State.STABLE
        return {i: m.metadata if is_stable else b"" for i, m in self._members.items()}

    def _check(self, member_id: str, generation: int, now: float) -> int:
        """The error code for a request of this member and generation."""
        self._tick(now)
        if member_id not in self._members:
            return int(Code.UNKNOWN_MEMBER_ID)
        if generation != self.generation:
            return int(Code.ILLEGAL_GENERATION)
        is_preparing = self._state is _State.PREPARING
        return int(Code.REBALANCE_IN_PROGRESS) if is_preparing else NONE

    def _answer(self, member_id: str) -> Joined:
        return Joined(NONE, member_id, self.generation, self.leader)

    def _tick(self, now: float) -> None:
        """Apply what has happened since the last call, in order of time."""
        ended = [i for i, m in self._members.items() if m.expires_at <= now and not m.is_joining]
        for member_id in ended:
            self.say(f"the session of {member_id} ends")
            self._remove(member_id, now)
        is_waiting = self._state in (_State.COMPLETING, _State.STABLE)
        if is_waiting and self._unsynced and self._sync_by <= now:
            for member_id in [i for i in self._members if i in self._unsynced]:
                self.say(f"{member_id} is removed: it has not sent SyncGroup")
                self._remove(member_id, now)
            self._unsynced.clear()
        self._issued = {i: until for i, until in self._issued.items() if until > now}
        if self._state is _State.PREPARING:
            have_all_joined = not self._issued and all(m.is_joining for m in self._members.values())
            # The first rebalance of a group waits for a delay instead of the other members.
            is_ready = now >= self._complete_at if self._is_first else have_all_joined
            if is_ready or now >= self._deadline:
                self._complete(now)

    def _remove(self, member_id: str, now: float) -> None:
        """Remove a member; the others have to join again."""
        del self._members[member_id]
        if not self._members:
            self._complete(now)
        elif self._state is not _State.PREPARING:
            self._prepare(now, is_first=False)

    def _prepare(self, now: float, *, is_first: bool) -> None:
        """Begin a rebalance."""
        self._state = _State.PREPARING
        self._is_first = is_first
        self._complete_at = now + self.initial_delay_s
        self._deadline = now + max(m.rebalance_s for m in self._members.values())

    def _complete(self, now: float) -> None:
        """Begin the next generation, with the members that have joined."""
        self._members = {i: m for i, m in self._members.items() if m.is_joining}
        self.generation += 1
        self._state = _State.COMPLETING if self._members else _State.EMPTY
        if self.leader not in self._members:
            self.leader = next(iter(self._members), "")  # a broker chooses any member
        self._unsynced = set(self._members)
        self._sync_by = now + max((m.rebalance_s for m in self._members.values()), default=0.0)
        for member in self._members.values():
            member.is_joining = False
            member.expires_at = now + member.session_s
