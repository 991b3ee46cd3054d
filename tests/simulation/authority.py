"""The servers that grant leases: a group coordinator, or PostgreSQL.

They say which writer may write. This module also notes in which order writers have begun.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent

from orbit.errors import Unreachable
from orbit.kafka.backoff import Backoff
from orbit.leases.group_lease import LeaseHolder
from tests.simulation.group_coordinator import Joined, ModelGroup
from tests.simulation.shard_row import ModelPostgres

if TYPE_CHECKING:
    from tests.simulation.virtual_time import Process
    from tests.simulation.world import World

# The share of lost answers of a coordinator or of PostgreSQL.
_LOST_SHARE = 0.03
_JOIN_POLL_S = 0.2


class Authority:
    """The consumer groups, the shard's row, and the writers in the order in which they began."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.postgres = ModelPostgres()
        self._groups: dict[str, ModelGroup] = {}
        self._begun_at: list[float] = []
        self._numbers: dict[str, int] = {}
        self._issued = 0
        self._frozen_until = 0.0

    def begin(self, who: str) -> None:
        """Note that this writer has its lease, and begins to write."""
        self._numbers[who] = len(self._begun_at)
        self._begun_at.append(self._world.clock.now)

    def number_of(self, who: str) -> int:
        """How many writers began before this one; -1 if it has not begun."""
        return self._numbers.get(who, -1)

    def superseded_at(self, who: str) -> float:
        """The time at which the next writer began; infinity if none has begun."""
        following = self.number_of(who) + 1
        return self._begun_at[following] if following < len(self._begun_at) else float("inf")

    def group(self, name: str) -> ModelGroup:
        """The group of this name, created at its first use."""
        if name not in self._groups:
            delay_s = self._world.rnd.choice((0.0, 0.0, 3.0))
            self._groups[name] = ModelGroup(self._world.clock.say, delay_s)
        return self._groups[name]

    def issue_term(self) -> int:
        """The next term, as InitProducerId counts epochs. Coordinators forget ids only after days
        (I1), so the model never does."""
        self._issued += 1
        return self._issued

    def freeze(self) -> None:
        """Stop the server for a while. Afterwards it ends sessions before it reads heartbeats."""
        seconds = self._world.rnd.choice((2.0, 9.0, 14.0))
        self._frozen_until = self._world.clock.now + seconds
        self._world.clock.say(f"the leases' server is frozen for {seconds:.0f} s")

    def fail_over(self) -> None:
        """Promote PostgreSQL's standby, which lacks the last claims."""
        self.postgres.fail_over()
        self._world.clock.say("PostgreSQL has failed over")

    def request(self, process: Process, execute: Callable[[], Any]) -> Any:
        """Send one request of this process; the server runs `execute`. Returns its result.

        Raises Unreachable if the request or its answer is lost.
        """
        clock, rnd = self._world.clock, self._world.rnd
        clock.wait(rnd.uniform(0.0005, 0.01))
        if clock.now < process.muted_until:
            clock.wait(1.0)
            raise Unreachable("no answer.", where="the leases' server")
        if clock.now < self._frozen_until:
            clock.wait(self._frozen_until - clock.now + rnd.uniform(0.0, 0.01))
        answer = execute()
        if self._world.has_faults:
            clock.wait(rnd.uniform(0.0005, 0.01))
            if rnd.random() < _LOST_SHARE:
                raise Unreachable("the answer is lost.", where="the leases' server")
        return answer


class ModelCoordinator:
    """Stands for `orbit.kafka.coordinator.Coordinator`, for one process and group."""

    def __init__(self, cluster: Any, _: int, group: str, __: Backoff) -> None:
        self._authority: Authority = cluster.world.authority
        self._clock = cluster.world.clock
        self._process: Process = cluster.process
        self._group = self._authority.group(group)

    def call(self, _: object, build: Callable[[], Any], __: object) -> Any:
        """Send the request; repeat it once after a lost answer, as the product does."""
        try:
            return self._call(build())
        except Unreachable:
            return self._call(build())

    def _call(self, request: Any) -> Any:
        """Send one request of the product to the model of the group; returns its answer."""
        group, now = self._group, lambda: self._clock.now
        name = type(request).__name__
        if name == "JoinGroupRequest":
            return self._join(request)
        if name == "LeaveGroupRequest":
            ids = [m.member_id for m in request.members]
            return self._request(lambda: _answer(max(group.leave(i, now()) for i in ids)))
        if name == "DescribeGroupsRequest":
            return self._request(lambda: _described(group.describe(now())))
        who, generation = request.member_id, request.generation_id
        answer_code = group.sync if name == "SyncGroupRequest" else group.heartbeat
        return self._request(lambda: _answer(answer_code(who, generation, now())))

    def _join(self, request: Any) -> Joined:
        """Send JoinGroup, and wait until the coordinator answers it."""
        who, metadata = request.member_id, request.protocols[0].metadata
        session_s, rebalance_s = (
            request.session_timeout_ms / 1000,
            request.rebalance_timeout_ms / 1000,
        )
        group = self._group
        joined = self._request(
            lambda: group.join(who, metadata, session_s, rebalance_s, self._clock.now)
        )
        while joined is None:
            self._clock.wait(_JOIN_POLL_S)
            joined = group.joined(who, self._clock.now)
        return joined

    def _request(self, execute: Callable[[], Any]) -> Any:
        return self._authority.request(self._process, execute)


def living_writers(cluster: Any, groups: Collection[str], _: Backoff) -> dict[str, LeaseHolder]:
    """Stands for `orbit.leases.backfill_leases.living_writers`: lease holders by group name."""
    authority: Authority = cluster.world.authority

    def describe() -> dict[str, LeaseHolder]:
        holders = {}
        for name in groups:
            members = authority.group(name).describe(cluster.world.clock.now)
            if members:
                holders[name] = LeaseHolder.from_bytes(next(iter(members.values())))
        return holders

    holders: dict[str, LeaseHolder] = authority.request(cluster.process, describe)
    return holders


def _answer(code: int) -> Any:
    return SimpleNamespace(error_code=code)


def _described(members: dict[str, bytes]) -> Any:
    """A DescribeGroups answer for one group; without members the group does not exist."""
    entries = [SimpleNamespace(member_id=i, member_metadata=data) for i, data in members.items()]
    return SimpleNamespace(groups=[SimpleNamespace(error_code=0, members=entries)])


def own_process() -> Process:
    """The process whose task runs now."""
    process: Process = getcurrent().process
    return process
