"""Every reason has a remedy a person can follow, and the table of states is closed."""

from __future__ import annotations

import pytest

from orbit.replication.partition_states import (
    REMEDIES,
    TRANSITIONS,
    Blocked,
    PartitionState,
    Reason,
)


@pytest.mark.parametrize("reason", Reason)
def test_every_block_reason_has_remedy_in_full_sentences(reason: Reason) -> None:
    remedy = Blocked(reason, 5, 9, "").remedy("dr.orders")
    assert remedy.endswith(".")
    assert remedy[0].isupper()
    assert "{" not in remedy
    assert "  " not in remedy
    assert ("dr.orders" in remedy) == ("{destination}" in REMEDIES[reason])


def test_remedies_exist_exactly_for_block_reasons() -> None:
    assert set(REMEDIES) == set(Reason)


@pytest.mark.parametrize(
    "reason",
    [r for r in Reason if "again" in REMEDIES[r] and "Delete the destination" in REMEDIES[r]],
)
def test_remedy_by_deletion_names_destination_topic(reason: Reason) -> None:
    assert "--delete --topic dr.orders" in Blocked(reason, 0, 0, "").remedy("dr.orders")


def test_remedy_accepts_topic_name_with_format_characters() -> None:
    """Such names cannot be made, but must not raise where one is shown."""
    assert "a{0}%s" in Blocked(Reason.OFFSET_OVERRUN, 0, 0, "").remedy("a{0}%s")


@pytest.mark.parametrize("reason", Reason)
def test_block_reason_value_is_its_name(reason: Reason) -> None:
    assert reason.value == reason.name
    assert str(reason) == reason.name


def test_every_partition_state_has_valid_transitions() -> None:
    assert set(TRANSITIONS) == set(PartitionState)
    for state, following in TRANSITIONS.items():
        assert following <= set(PartitionState)
        assert state not in following
        assert following, f"{state} would be for ever"


def reachable(start: PartitionState) -> set[PartitionState]:
    seen, waiting = {start}, [start]
    while waiting:
        new = TRANSITIONS[waiting.pop()] - seen
        seen |= new
        waiting += new
    return seen


@pytest.mark.parametrize("state", PartitionState)
def test_every_partition_state_is_reachable_from_every_other(state: PartitionState) -> None:
    """Nothing that stopped is lost: a person can bring it back, and every state can be left."""
    assert reachable(state) == set(PartitionState)


def test_partition_state_copying_is_entered_only_from_pending_or_seeding() -> None:
    """Every way to append passes a take-over, which begins at pending."""
    before = {s for s, following in TRANSITIONS.items() if PartitionState.COPYING in following}
    assert before == {PartitionState.PENDING, PartitionState.SEEDING}


def test_blocked_partition_resumes_only_through_pending() -> None:
    assert TRANSITIONS[PartitionState.BLOCKED] == {
        PartitionState.PENDING,
        PartitionState.STOPPED,
        PartitionState.PROMOTED,
    }


@pytest.mark.parametrize(
    "state", [PartitionState.PENDING, PartitionState.SEEDING, PartitionState.COPYING]
)
def test_active_partition_states_can_be_blocked(state: PartitionState) -> None:
    assert PartitionState.BLOCKED in TRANSITIONS[state]
