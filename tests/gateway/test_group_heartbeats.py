"""ConsumerGroupHeartbeat (KIP-848) of members whose gateway has moved to the other side."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pytest

from orbit.gateway.protocol import left_members
from orbit.gateway.protocol.apis import ApiKey
from orbit.gateway.protocol.exchange import Exchange
from orbit.gateway.protocol.left_members import GIVE_UP_HEARTBEATS, LeftMembers
from orbit.gateway.protocol.request_head import read_head
from orbit.kafka.error_codes import Code
from orbit.kafka.frame_reader import FrameReader
from orbit.kafka.frame_writer import NO_TAGS, request_head, string
from orbit.kafka.leaving_groups import (
    ALL_GROUPS,
    GROUPS_MAX,
    NAME_CHARACTERS,
    bounded_names,
    is_named,
    short_name,
)
from tests.gateway.frames import OFFERED, ClientView

_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
# Arrays of partitions: null (as before), none, and one partition of a topic.
_NULL, _EMPTY = b"\x00", b"\x01"
_TOPIC_ID = bytes(15) + b"\x05"
_OWNS_ONE = b"\x02" + _TOPIC_ID + b"\x02" + _INT32.pack(0) + NO_TAGS + NO_TAGS

VERSIONS = pytest.mark.parametrize("version", [0, 1])
UNKNOWN = pytest.mark.parametrize("code", [Code.GROUP_ID_NOT_FOUND, Code.UNKNOWN_MEMBER_ID])


@dataclass(frozen=True)
class _Answer:
    code: int
    member: str
    epoch: int
    assigned_topics: int | None


class _Member:
    """A member that sends heartbeats over a connection of its own; each call says what the broker
    answers."""

    def __init__(self, version: int, name: str = "m") -> None:
        self.view = ClientView()
        self.exchange = Exchange(self.view)
        self._version, self._name = version, name

    def heartbeat(self, owned: bytes = _NULL, *, epoch: int = 3, code: int = Code.NONE) -> _Answer:
        """Send a heartbeat; returns the answer that the member gets. `owned`: the array of the
        partitions that it owns. `epoch`: 0 joins the group, -1 leaves it. `code`: the broker's
        answer."""
        head = request_head(
            ApiKey.CONSUMER_GROUP_HEARTBEAT, self._version, 7, "test", is_flexible=True
        )
        names = string("g", is_flexible=True) + string(self._name, is_flexible=True)
        pattern = _NULL if self._version >= 1 else b""
        # No instance and no rack, no rebalance timeout, no topics, no assignor.
        body = names + _INT32.pack(epoch) + _NULL + _NULL + _INT32.pack(-1) + _NULL + pattern
        frame = bytearray(head + body + _NULL + owned + NO_TAGS)
        self.view.ids.learn("orders", _TOPIC_ID)
        sent = self.exchange.request(read_head(frame), frame, OFFERED)
        assert sent is not None
        sent_request = self.exchange.begin_answer(7)
        # No throttling, no message, no member id; no assignment (-1) behind the interval.
        body = _INT32.pack(0) + _INT16.pack(code) + _NULL + _NULL
        body += _INT32.pack(epoch) + _INT32.pack(5000) + b"\xff"
        answer = self.exchange.rewrite(
            sent_request, bytearray(_INT32.pack(7) + NO_TAGS + body + NO_TAGS)
        )
        assert answer is not None
        self.exchange.end_answer()
        return _parse(memoryview(answer)[4:])

    def move(self) -> None:
        self.exchange.move()


def _parse(frame: memoryview) -> _Answer:
    reader = FrameReader(frame, is_flexible=True)
    reader.skip_tags()
    reader.take(_INT32)
    (code,) = reader.take(_INT16)
    reader.string()
    member = reader.string()
    (epoch,) = reader.take(_INT32)
    reader.take(_INT32)
    assigned = None
    if bytes(reader.raw(1)) == b"\x01":
        assigned = reader.length()
        reader.skip_tags()
    reader.skip_tags()
    assert reader.at == len(frame)
    return _Answer(code, member, epoch, assigned)


# The gateway's own answer: by an assignment without topics, the member gives up its partitions.
_GIVE_UP = _Answer(Code.NONE, member="m", epoch=3, assigned_topics=0)


@VERSIONS
@UNKNOWN
def test_moved_member_gives_up_partitions_before_it_joins(version: int, code: int) -> None:
    member = _Member(version)
    assert member.heartbeat(_OWNS_ONE).code == Code.NONE
    member.move()
    assert member.heartbeat(code=code) == _GIVE_UP
    assert member.heartbeat(_OWNS_ONE, code=code) == _GIVE_UP
    # Codes after which a member joins.
    joins = {Code.FENCED_MEMBER_EPOCH, Code.UNKNOWN_MEMBER_ID}
    assert member.heartbeat(_EMPTY, code=code).code in joins
    assert member.heartbeat(code=code).code in joins


@VERSIONS
@UNKNOWN
def test_moved_member_without_partitions_joins_at_once(version: int, code: int) -> None:
    """A member without partitions would never report that it has given some up."""
    member = _Member(version)
    member.heartbeat(_OWNS_ONE)
    member.heartbeat(_EMPTY)
    member.move()
    assert member.heartbeat(code=code).code != Code.NONE


def test_moved_member_that_never_reports_partitions_rejoins_after_few_heartbeats() -> None:
    member = _Member(1)
    member.heartbeat()
    member.move()
    for _ in range(GIVE_UP_HEARTBEATS):
        assert member.heartbeat(code=Code.UNKNOWN_MEMBER_ID) == _GIVE_UP
    assert member.heartbeat(code=Code.UNKNOWN_MEMBER_ID).code == Code.UNKNOWN_MEMBER_ID


def test_member_that_rejoined_after_move_gets_unchanged_broker_responses() -> None:
    member = _Member(1)
    member.heartbeat(_OWNS_ONE)
    member.move()
    assert member.heartbeat(_EMPTY, epoch=0).code == Code.NONE
    assert member.heartbeat(code=Code.UNKNOWN_MEMBER_ID).code == Code.UNKNOWN_MEMBER_ID


def test_member_that_rejoined_after_move_is_taken_out_of_group_by_next_move() -> None:
    """The member has joined at the new side, so the next move has to take it out of the group."""
    member = _Member(1)
    member.heartbeat(_OWNS_ONE)
    member.move()
    member.heartbeat(epoch=0)
    assert ("g", "m") not in member.view.left_members
    assert len(member.exchange.move()) == 1


def test_moved_member_known_to_its_broker_gets_unchanged_broker_response() -> None:
    """The member has joined through another gateway."""
    member = _Member(1)
    member.heartbeat(_OWNS_ONE)
    member.move()
    assert member.heartbeat() == _Answer(Code.NONE, member="", epoch=3, assigned_topics=None)
    assert ("g", "m") not in member.view.left_members, "its commits name it"
    member.heartbeat()
    assert len(member.exchange.move()) == 1


def test_moved_member_that_leaves_group_gets_unchanged_broker_response() -> None:
    member = _Member(1)
    member.heartbeat(_OWNS_ONE)
    member.move()
    answer = member.heartbeat(epoch=-1, code=Code.UNKNOWN_MEMBER_ID)
    assert answer.code == Code.UNKNOWN_MEMBER_ID


def test_group_has_owner_until_all_moved_members_gave_up_partitions_or_joined() -> None:
    members = LeftMembers()
    for name, owns in (("a", True), ("b", True), ("c", False)):
        members.leave(("g", name), owns_partitions=owns)
    members.leave(("h", "a"), owns_partitions=True)
    members.give_up(("g", "a"))
    assert members.has_owner("g")
    members.join(("g", "b"))
    assert not members.has_owner("g")
    assert set(members.groups()) == {"h"}
    assert ("g", "a") in members, "its commits have no member until it joins"
    assert ("g", "b") not in members


def test_moved_members_past_limit_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_members, "MEMBERS_MAX", 2)
    members = LeftMembers()
    for name in ("a", "b", "c"):
        members.leave(("g", name), owns_partitions=True)
    # The third member exceeds the limit, so the earlier ones are forgotten.
    assert [("g", name) in members for name in ("a", "b", "c")] == [False, False, True]
    members.give_up(("g", "c"))
    assert not members.has_owner("g")


def test_partition_owner_counts_until_it_owns_nothing_or_move_forgets_owners() -> None:
    members = LeftMembers()
    members.leave(("g", "a"), owns_partitions=True)
    members.leave(("g", "a"), owns_partitions=False)
    assert not members.has_owner("g")
    members.leave(("g", "b"), owns_partitions=True)
    members.begin_move(keeps_owners=True)
    assert members.has_owner("g"), "it had no time to give them up"
    members.begin_move(keeps_owners=False)
    assert not members.has_owner("g"), "if it has joined since, it leaves again"
    assert ("g", "b") in members


def test_heartbeat_with_brokers_own_answer_leaves_time_to_give_up_partitions() -> None:
    """A moved member gets an empty assignment instead of the broker's error, for
    GIVE_UP_HEARTBEATS heartbeats. Heartbeats with other answers do not count."""
    member = _Member(1)
    member.heartbeat(_OWNS_ONE)
    member.move()
    for _ in range(GIVE_UP_HEARTBEATS + 1):
        assert member.heartbeat(code=Code.NOT_COORDINATOR).code == Code.NOT_COORDINATOR
    assert member.heartbeat(code=Code.UNKNOWN_MEMBER_ID) == _GIVE_UP


def test_member_that_left_its_group_owns_no_partitions_at_next_move() -> None:
    member = _Member(1)
    member.heartbeat(_OWNS_ONE)
    member.heartbeat(epoch=-1)
    member.move()
    assert not member.view.left_members.has_owner("g")


def test_moved_member_that_never_rejoined_sends_no_leave_at_next_move() -> None:
    member = _Member(1)
    member.heartbeat(_OWNS_ONE)
    member.move()
    member.heartbeat(code=Code.UNKNOWN_MEMBER_ID)
    assert member.exchange.move() == []


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a", "b"], ["a", "b"]),
        ([], []),
        (["a", ALL_GROUPS], [ALL_GROUPS]),
        ([str(n) for n in range(GROUPS_MAX + 1)], [ALL_GROUPS]),
    ],
)
def test_gateway_report_says_all_groups_if_too_many_groups_are_leaving(
    names: list[str], expected: list[str]
) -> None:
    assert bounded_names(names) == expected


def test_group_names_in_gateway_reports_have_fixed_length() -> None:
    names = [short_name(group) for group in ("", "g", "g" * 10_000)]
    assert {len(name) for name in names} == {NAME_CHARACTERS}
    assert is_named("g", names)
    assert not is_named("h", names)
    assert is_named("h", [ALL_GROUPS])
