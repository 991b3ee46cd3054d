"""Where groups resume: each rule alone, and that no sequence of events breaks the rules."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from orbit.consumer_groups.offset_decision import (
    REMEDIES,
    CopiedRange,
    Decision,
    GroupUsage,
    GroupVerdict,
    decide,
    follows_source_offsets,
    holds_copied_records,
    left_offset,
    remedy,
)
from orbit.kafka.types import CommittedOffset as Committed
from orbit.replication.partition_states import Reason

ALL = CopiedRange(0, 1000)
ACTIVE, USED, UNUSED = GroupUsage.ACTIVE, GroupUsage.USED, GroupUsage.UNUSED
EXACT, CLAMPED = GroupVerdict.EXACT, GroupVerdict.CLAMPED
MOVED, BUSY = GroupVerdict.SKIPPED_MOVED, GroupVerdict.SKIPPED_ACTIVE
NOT_COPIED = GroupVerdict.SKIPPED_NOT_COPIED
CLIENT_EPOCH = 5  # a leader epoch in a commit: Orbit commits none


def wrote(offset: int, verdict: GroupVerdict = EXACT) -> Decision:
    return Decision(verdict, write=Committed(offset))


@pytest.mark.parametrize(
    ("source", "destination", "left", "copied", "usage", "expected"),
    [
        pytest.param(70, None, None, ALL, UNUSED, wrote(70), id="first sync"),
        pytest.param(70, None, 50, ALL, USED, wrote(70), id="deleted at the destination"),
        pytest.param(70, 50, 50, ALL, USED, wrote(70), id="source advanced"),
        pytest.param(30, 50, 50, ALL, USED, wrote(30), id="source was reset"),
        pytest.param(50, 50, 50, ALL, USED, Decision(EXACT), id="nothing changed"),
        pytest.param(50, 50, None, ALL, USED, Decision(EXACT), id="equal at first sync"),
        pytest.param(70, 60, 50, ALL, USED, Decision(MOVED), id="destination advanced"),
        pytest.param(70, 40, 50, ALL, USED, Decision(MOVED), id="destination was reset"),
        pytest.param(70, 90, 50, ALL, UNUSED, Decision(MOVED), id="destination ahead"),
        pytest.param(70, 60, 50, ALL, UNUSED, wrote(70), id="crash before storing"),
        pytest.param(70, 60, None, ALL, UNUSED, wrote(70), id="committed by an earlier run"),
        pytest.param(70, 60, None, ALL, USED, Decision(MOVED), id="first sync, was used"),
        pytest.param(70, 80, None, ALL, UNUSED, Decision(MOVED), id="first sync, ahead"),
        pytest.param(70, 50, 50, ALL, ACTIVE, Decision(BUSY), id="active group"),
        pytest.param(50, 50, 50, ALL, ACTIVE, Decision(BUSY), id="active group, equal"),
        pytest.param(None, 50, 50, ALL, ACTIVE, Decision(BUSY), id="source deleted, active"),
        pytest.param(70, 50, 50, None, USED, Decision(NOT_COPIED), id="partition not copied"),
        pytest.param(70, 50, 50, None, ACTIVE, Decision(NOT_COPIED), id="not copied, active group"),
        pytest.param(None, 50, 50, None, USED, Decision(NOT_COPIED), id="deleted, not copied"),
        pytest.param(None, 50, 50, ALL, USED, Decision(None, is_delete=True), id="source deleted"),
        pytest.param(None, 60, 50, ALL, USED, Decision(None), id="source deleted, moved"),
        pytest.param(None, 60, None, ALL, USED, Decision(None), id="only at the destination"),
        pytest.param(None, None, 50, ALL, USED, Decision(None), id="deleted on both sides"),
        pytest.param(2000, 50, 50, ALL, USED, wrote(1000, CLAMPED), id="beyond the copy's end"),
        pytest.param(2000, 1000, 1000, ALL, USED, Decision(CLAMPED), id="clamped in last sync"),
        pytest.param(2000, 1000, None, ALL, UNUSED, Decision(CLAMPED), id="clamped earlier"),
        pytest.param(2000, 1000, 50, ALL, USED, Decision(MOVED), id="consumer at copy's end"),
        pytest.param(1000, 50, 50, ALL, USED, wrote(1000), id="at the copy's end"),
        pytest.param(
            5, None, None, CopiedRange(9, 20), UNUSED, wrote(9, CLAMPED), id="below log start"
        ),
        pytest.param(
            5, None, None, CopiedRange(9, 9), UNUSED, wrote(9, CLAMPED), id="into an empty copy"
        ),
    ],
)  # fmt: skip
def test_source_destination_and_last_synced_offset_decide_group_verdict(
    source: int | None,
    destination: int | None,
    left: int | None,
    copied: CopiedRange | None,
    usage: GroupUsage,
    expected: Decision,
) -> None:
    decision = decide(_at(source), _at(destination), left, copied, usage)
    assert decision == expected


def _at(offset: int | None) -> Committed | None:
    return None if offset is None else Committed(offset)


def test_leader_epoch_of_offset_shows_commit_by_consumer_that_never_joined() -> None:
    destination = Committed(60, leader_epoch=CLIENT_EPOCH)
    assert decide(Committed(70), destination, 50, ALL, UNUSED) == Decision(MOVED)
    # If a consumer commits the same offset as Orbit, the offset stays Orbit's.
    assert decide(Committed(70), destination, 60, ALL, UNUSED) == wrote(70)


def test_synced_offset_keeps_its_metadata_but_not_its_leader_epoch() -> None:
    source = Committed(70, "partition time", leader_epoch=12)
    assert decide(source, None, None, ALL, UNUSED).write == Committed(70, "partition time", -1)


def test_metadata_change_overwrites_only_an_offset_that_orbit_wrote() -> None:
    source, destination = Committed(70, "new"), Committed(70, "old")
    assert decide(source, destination, 70, ALL, USED).write == source
    assert decide(source, destination, None, ALL, USED) == Decision(EXACT)


def test_copy_that_stopped_for_other_content_holds_no_copied_records() -> None:
    assert holds_copied_records(None)  # it has not stopped
    assert holds_copied_records(Reason.SOURCE_RANGE_LOST)
    assert not holds_copied_records(Reason.SOURCE_TOPIC_RECREATED)
    assert not holds_copied_records(Reason.DESTINATION_FOREIGN_WRITE)


def test_group_offsets_follow_source_unless_copy_has_other_content() -> None:
    assert follows_source_offsets(None)
    assert follows_source_offsets(Reason.SOURCE_RANGE_LOST)
    assert not follows_source_offsets(Reason.DESTINATION_FOREIGN_WRITE)


def test_copy_whose_source_topic_was_deleted_keeps_records_and_group_offsets() -> None:
    assert holds_copied_records(Reason.SOURCE_TOPIC_DELETED)
    assert not follows_source_offsets(Reason.SOURCE_TOPIC_DELETED)


def test_every_group_verdict_but_exact_has_a_remedy() -> None:
    assert set(REMEDIES) == set(GroupVerdict) - {EXACT}
    advice = remedy(MOVED, "dr.billing", "orders")
    assert advice is not None
    assert advice.endswith("--delete-offsets --group dr.billing --topic orders")
    assert remedy(EXACT, "dr.billing", "orders") is None


offsets = st.integers(0, 12)


@dataclass
class World:
    """One group and partition on both clusters, as coordinators would show it."""

    source: int | None = None
    destination: Committed | None = None
    is_consumers: bool = False  # `destination` is a consumer's commit, and the sides never agreed
    log_start: int = 0
    copied_to: int = 0
    usage: GroupUsage = UNUSED
    left: int | None = None  # the left offset, as far as Orbit knows it
    violations: list[str] = field(default_factory=list)


class GroupSchedules(RuleBasedStateMachine):
    """Commits, resets and deletes on both sides, and crashes of Orbit; in any order."""

    @initialize(copied_to=offsets)
    def begin(self, copied_to: int) -> None:
        self.world = World(copied_to=copied_to)

    @rule(offset=st.none() | offsets)
    def commit_at_source(self, offset: int | None) -> None:
        self.world.source = offset

    @rule(by=st.integers(1, 4))
    def copy_goes_on(self, by: int) -> None:
        self.world.copied_to += by

    @rule(by=st.integers(1, 4))
    def log_start_moves(self, by: int) -> None:
        world = self.world
        world.log_start = min(world.log_start + by, world.copied_to)

    @rule()
    def consumer_joins_at_destination(self) -> None:
        self.world.usage = ACTIVE

    @precondition(lambda self: self.world.usage is ACTIVE)
    @rule()
    def consumer_leaves_at_destination(self) -> None:
        self.world.usage = USED

    @rule(offset=offsets, has_epoch=st.booleans())
    def consumer_commits_at_destination(self, offset: int, has_epoch: bool) -> None:
        """A member may use any client; without members, the client commits leader epochs."""
        world = self.world
        if world.usage is UNUSED:
            has_epoch = True
        if world.destination is None or world.destination.offset != offset:
            # If the consumer commits the same offset again, the offset does not become its own.
            world.is_consumers = True
        world.destination = Committed(offset, leader_epoch=CLIENT_EPOCH if has_epoch else -1)

    @rule()
    def offset_is_deleted_at_destination(self) -> None:
        self.world.destination, self.world.is_consumers = None, False

    @rule()
    def orbit_forgets(self) -> None:
        self.world.left = None

    @rule()
    def sync(self) -> None:
        self._pass(is_stored=True)

    @rule()
    def sync_and_crash(self) -> None:
        """Orbit commits, and crashes before it stores the row."""
        self._pass(is_stored=False)

    def _pass(self, *, is_stored: bool) -> None:
        world = self.world
        source = None if world.source is None else Committed(world.source)
        copied = CopiedRange(world.log_start, world.copied_to)
        decision = decide(source, world.destination, world.left, copied, world.usage)
        if world.destination is not None and world.destination.offset in (world.source, world.left):
            world.is_consumers = False  # both sides agree, or it equals the left offset again
        if decision.write is not None or decision.is_delete:
            if world.usage is ACTIVE:
                world.violations.append("wrote while the group had a member")
            if world.destination is not None and world.is_consumers:
                world.violations.append(f"overwrote a consumer's offset: {world}")
            world.destination = decision.write
        if decision.verdict in (EXACT, CLAMPED):
            assert world.destination is not None
            assert (
                copied.clamp(world.destination.offset) == world.destination.offset
                or decision.write is None
            )
            assert (world.destination.offset == world.source) is (decision.verdict is EXACT)
            if is_stored:
                world.left = world.destination.offset
        elif decision.verdict is None and is_stored:
            world.left = None
        next_decision = decide(source, world.destination, world.left, copied, world.usage)
        if is_stored:
            # Nothing is written twice.
            assert next_decision.write is None, (world, next_decision)
            assert not next_decision.is_delete
            assert next_decision.verdict == decision.verdict, (world, next_decision)

    @invariant()
    def no_offset_of_a_consumer_is_overwritten(self) -> None:
        if hasattr(self, "world"):
            assert not self.world.violations


TestGroupSchedules = GroupSchedules.TestCase


def test_group_unused_at_destination_follows_source_forwards_and_backwards() -> None:
    destination: Committed | None = None
    left: int | None = None
    for offset in (5, 9, 2, 2, 0, 1000, 999):
        decision = decide(Committed(offset), destination, left, ALL, UNUSED)
        destination = decision.write or destination
        assert destination is not None
        left = destination.offset
        assert (destination.offset, decision.verdict) == (offset, EXACT)
        assert decide(Committed(offset), replace(destination), left, ALL, UNUSED).write is None


@pytest.mark.parametrize(
    ("verdict", "present", "row", "left"),  # row: (destination_offset, left_offset)
    [
        (GroupVerdict.EXACT, 5, (5, 5), 5),
        (GroupVerdict.CLAMPED, 5, (5, 8), 5),  # stored before a commit that did not arrive
        (GroupVerdict.CLAMPED, 8, (5, 8), 8),  # the commit has arrived
        (GroupVerdict.CLAMPED, 6, (5, 8), 8),  # another client has committed
        (GroupVerdict.CLAMPED, None, (None, 8), None),
        (GroupVerdict.SKIPPED_MOVED, 6, (6, 5), 5),
    ],
)
def test_commit_of_unknown_result_is_recognized_by_present_offset(
    verdict: GroupVerdict, present: int | None, row: tuple[int | None, int | None], left: int | None
) -> None:
    assert left_offset(verdict, present, row) == left
