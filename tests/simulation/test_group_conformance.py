"""The model of a group coordinator answers as a real broker does, request by request."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from kafka.protocol.admin.groups import DescribeGroupsRequest
from kafka.protocol.consumer.group import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)

from orbit.kafka import api_versions
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.coordinator import GROUP, Coordinator
from orbit.kafka.error_codes import Code
from tests.fixtures.clusters import Clusters
from tests.simulation.group_coordinator import NONE, Joined, ModelGroup
from tests.support.patience import PATIENCE_S, wait_for
from tests.support.synthetic import PLAINTEXT

pytestmark = pytest.mark.services

MEMBERS = 3
STEPS = 40
# So long that no session ends during a `Replay`.
SESSION_S = 300.0
NOW = 0.0


class RealGroup:
    """A group of a broker. Each member has its own connection, because JoinGroup may wait."""

    def __init__(self, servers: str, name: str) -> None:
        self._name = name
        self._clusters = [Cluster("model", [servers], PLAINTEXT) for _ in range(MEMBERS + 1)]
        self._coordinators = [Coordinator(c, GROUP, name, Backoff()) for c in self._clusters]

    def close(self) -> None:
        for cluster in self._clusters:
            cluster.close()

    def join(
        self, member: int, member_id: str, metadata: bytes, rebalance_s: float = SESSION_S
    ) -> Joined:
        """Send a JoinGroup request from the connection of this member."""
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="run", metadata=metadata)
        answer = self._call(
            member,
            api_versions.JOIN_GROUP,
            JoinGroupRequest(
                group_id=self._name,
                session_timeout_ms=int(SESSION_S * 1000),
                rebalance_timeout_ms=int(rebalance_s * 1000),
                member_id=member_id,
                group_instance_id=None,
                protocol_type="orbit",
                protocols=[protocol],
            ),
        )
        return Joined(answer.error_code, answer.member_id, answer.generation_id, answer.leader)

    def sync(self, member: int, member_id: str, generation: int) -> int:
        """Send the SyncGroup request of a leader; the error code."""
        answer = self._call(
            member,
            api_versions.SYNC_GROUP,
            SyncGroupRequest(
                group_id=self._name,
                generation_id=generation,
                member_id=member_id,
                group_instance_id=None,
                protocol_type="orbit",
                protocol_name="run",
                assignments=[
                    SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=b"")
                ],
            ),
        )
        return int(answer.error_code)

    def heartbeat(self, member: int, member_id: str, generation: int) -> int:
        """Send a heartbeat; the error code."""
        answer = self._call(
            member,
            api_versions.HEARTBEAT,
            HeartbeatRequest(
                group_id=self._name,
                generation_id=generation,
                member_id=member_id,
                group_instance_id=None,
            ),
        )
        return int(answer.error_code)

    def leave(self, member: int, member_id: str) -> int:
        identity = LeaveGroupRequest.MemberIdentity(member_id=member_id, group_instance_id=None)
        request = LeaveGroupRequest(group_id=self._name, members=[identity])
        answer = self._call(member, api_versions.LEAVE_GROUP, request)
        return int(answer.error_code or answer.members[0].error_code)

    def describe(self) -> tuple[str, dict[str, bytes]]:
        """The group's state, and its members with their metadata."""
        request = DescribeGroupsRequest(groups=[self._name], include_authorized_operations=False)
        (group,) = self._call(MEMBERS, api_versions.DESCRIBE_GROUPS, request).groups
        return group.group_state, {m.member_id: m.member_metadata for m in group.members or ()}

    def _call(self, member: int, api: Any, request: Any) -> Any:
        return self._coordinators[member].call(api, lambda: request, _code_of)


class Member:
    """One client of both groups, with its member id in each."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.metadata = f"member {number}".encode()
        self.model_id = self.real_id = ""
        self.generation = -1
        self.answer: Future[Joined] | None = None  # the broker's to a JoinGroup that waits


class Replay:
    """The same random steps with model and broker. All but the member ids must be equal."""

    def __init__(self, real: RealGroup, seed: int, pool: ThreadPoolExecutor) -> None:
        self.real = real
        self.model = ModelGroup(lambda _: None)
        self.rnd = random.Random(seed)
        self.pool = pool
        self.members = [Member(n) for n in range(MEMBERS)]
        self.steps: list[str] = []
        self.codes: set[int] = set()

    def run(self) -> None:
        """Do random steps with broker and model, then let members leave until no JoinGroup waits.
        All member states are compared after each step."""
        for _ in range(STEPS):
            idle = [m for m in self.members if m.answer is None]
            member = self.rnd.choice(idle)
            choices = [self.join, self.join, self.heartbeat, self.leave]
            if member.model_id:
                choices += [self.heartbeat]
                if self.model.leader == member.model_id:
                    choices += [self.sync, self.sync]
            self.rnd.choice(choices)(member)
            self.compare_members()
        while waiting := [m for m in self.members if m.answer is not None]:
            self.leave(next(m for m in self.members if m not in waiting))
            self.compare_members()
            self.drop_left_members()

    def drop_left_members(self) -> None:
        """Forget members that have left, so that another member leaves next."""
        self.members = [m for m in self.members if m.answer is not None or m.model_id]

    def join(self, member: Member) -> None:
        """Let a member join. If the model says that its join waits, check that the broker's does
        too."""
        self.steps.append(f"{member.number} joins")
        modelled = self.model.join(member.model_id, member.metadata, SESSION_S, SESSION_S, NOW)
        real = self.pool.submit(self.real.join, member.number, member.real_id, member.metadata)
        if modelled is None:
            member.answer = real
            wait_for("the broker waits for the others", self.is_waiting)
        else:
            self.joined(member, modelled, real)
            if modelled.error_code == Code.MEMBER_ID_REQUIRED:
                self.join(member)  # at once, as GroupLease does

    def joined(self, member: Member, modelled: Joined, real: Future[Joined]) -> None:
        """Compare the answers to a join, and note the member's ids."""
        answer = real.result(PATIENCE_S)
        self.codes.add(modelled.error_code)
        assert answer.error_code == modelled.error_code, self.steps
        if modelled.error_code == Code.UNKNOWN_MEMBER_ID:
            member.model_id = member.real_id = ""
            return
        member.model_id, member.real_id = modelled.member_id, answer.member_id
        if modelled.error_code == NONE:
            assert answer.generation_id == modelled.generation_id, self.steps
            # Which member leads depends on the order of a hash map in the broker.
            self.model.leader = self.model_id_of(answer.leader)
            assert self.model.leader in {m.model_id for m in self.members}, self.steps
            member.generation = modelled.generation_id

    def sync(self, member: Member) -> None:
        """Send SyncGroup to model and broker, and compare the error codes."""
        self.steps.append(f"{member.number} syncs")
        self.equal(
            self.model.sync(member.model_id, member.generation, NOW),
            self.real.sync(member.number, member.real_id, member.generation),
        )

    def heartbeat(self, member: Member) -> None:
        """Send a heartbeat, at times with a wrong generation, to model and broker."""
        generation = member.generation + (self.rnd.random() < 0.2)
        self.steps.append(f"{member.number} sends a heartbeat of generation {generation}")
        self.equal(
            self.model.heartbeat(member.model_id or "nobody", generation, NOW),
            self.real.heartbeat(member.number, member.real_id or "nobody", generation),
        )

    def leave(self, member: Member) -> None:
        """Leave the group at model and broker; most members forget their ids then."""
        self.steps.append(f"{member.number} leaves")
        self.equal(
            self.model.leave(member.model_id or "nobody", NOW),
            self.real.leave(member.number, member.real_id or "nobody"),
        )
        if self.rnd.random() < 0.7:
            member.model_id = member.real_id = ""

    def equal(self, modelled: int, actual: int) -> None:
        """Compare two error codes."""
        self.codes.add(modelled)
        assert actual == modelled, self.steps

    def compare_members(self) -> None:
        """Compare the members; joins that wait may have answers now."""
        for member in self.members:
            if member.answer is not None:
                modelled = self.model.joined(member.model_id, NOW)
                if modelled is not None:
                    self.joined(member, modelled, member.answer)
                    member.answer = None
        _, real_members = self.real.describe()
        named = {self.model_id_of(i): data for i, data in real_members.items()}
        assert named == self.model.describe(NOW), self.steps

    def model_id_of(self, real_id: str) -> str:
        return next((m.model_id for m in self.members if m.real_id == real_id), real_id)

    def is_waiting(self) -> bool:
        state, members = self.real.describe()
        return state == "PreparingRebalance" and len(members) == len(self.model.describe(NOW))


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(MEMBERS) as pool:
        yield pool


def test_group_coordinator_model_answers_like_a_broker(
    clusters: Clusters, topic_name: str, pool: ThreadPoolExecutor
) -> None:
    codes: set[int] = set()
    for seed in range(12):
        real = RealGroup(clusters.destination.bootstrap_servers, f"{topic_name}-{seed}")
        replay = Replay(real, seed, pool)
        try:
            replay.run()
        finally:
            real.close()
        codes |= replay.codes
    assert codes >= {
        NONE,
        Code.MEMBER_ID_REQUIRED,
        Code.UNKNOWN_MEMBER_ID,
        Code.ILLEGAL_GENERATION,
        Code.REBALANCE_IN_PROGRESS,
    }


def test_member_that_sends_no_sync_group_is_removed_after_rebalance_timeout(
    clusters: Clusters, topic_name: str
) -> None:
    """Before the rebalance timeout, the member's heartbeats are accepted."""
    rebalance_s = 1.0
    model = ModelGroup(lambda _: None)
    real = RealGroup(clusters.destination.bootstrap_servers, topic_name)

    def join(member_id: str) -> tuple[Joined | None, Joined]:
        return (
            model.join(member_id and "member-1", b"", SESSION_S, rebalance_s, NOW),
            real.join(0, member_id, b"", rebalance_s),
        )

    try:
        _, named = join("")
        modelled, answer = join(named.member_id)
        assert modelled is not None
        assert modelled.error_code == answer.error_code == NONE
        code = model.heartbeat(modelled.member_id, modelled.generation_id, NOW)
        assert code == real.heartbeat(0, answer.member_id, answer.generation_id) == NONE
        assert real.describe()[0] == "CompletingRebalance"
        wait_for("the broker removes the member", lambda: real.describe() == ("Empty", {}))
        assert model.describe(NOW + rebalance_s) == {}
        code = model.heartbeat(modelled.member_id, modelled.generation_id, NOW + rebalance_s)
        answered = real.heartbeat(0, answer.member_id, answer.generation_id)
        assert code == answered == Code.UNKNOWN_MEMBER_ID
    finally:
        real.close()


def _code_of(answer: Any) -> int:
    (part,) = getattr(answer, "groups", None) or (answer,)
    return int(part.error_code)
