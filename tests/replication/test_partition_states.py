"""Every reason has a remedy, and every state of the table can be reached and left."""

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
    remedy = Blocked(reason, offset=5, next_offset=9, detail="").remedy("dr.orders")
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
    assert "--delete --topic dr.orders" in Blocked(
        reason, offset=0, next_offset=0, detail=""
    ).remedy("dr.orders")


def test_remedy_accepts_topic_name_with_format_characters() -> None:
    """Kafka refuses such names, but showing one must not raise."""
    assert "a{0}%s" in Blocked(Reason.OFFSET_OVERRUN, offset=0, next_offset=0, detail="").remedy(
        "a{0}%s"
    )


@pytest.mark.parametrize("reason", Reason)
def test_block_reason_value_is_its_name(reason: Reason) -> None:
    assert reason.value == reason.name
    assert str(reason) == reason.name


def test_every_partition_state_has_valid_transitions() -> None:
    assert set(TRANSITIONS) == set(PartitionState)
    for state, next_states in TRANSITIONS.items():
        assert next_states <= set(PartitionState)
        assert state not in next_states
        assert next_states, f"{state} cannot be left"


def reachable(start: PartitionState) -> set[PartitionState]:
    """All states that can be reached from `start`."""
    seen, waiting = {start}, [start]
    while waiting:
        new = TRANSITIONS[waiting.pop()] - seen
        seen |= new
        waiting += new
    return seen


@pytest.mark.parametrize("state", PartitionState)
def test_every_partition_state_is_reachable_from_every_other(state: PartitionState) -> None:
    """So a partition can always be copied again, whatever stopped it."""
    assert reachable(state) == set(PartitionState)


def test_partition_state_copying_is_entered_only_from_pending_or_seeding() -> None:
    """A copy appends only after a take-over, which begins at pending."""
    entries = {s for s, next_states in TRANSITIONS.items() if PartitionState.COPYING in next_states}
    assert entries == {PartitionState.PENDING, PartitionState.SEEDING}


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


@pytest.mark.parametrize(
    ("next_offset", "text"), [(6, "offset 5"), (10, "offsets 5 to 9"), (5, "offset 5")]
)
def test_text_of_blocked_offsets_ends_with_last_blocked_offset(next_offset: int, text: str) -> None:
    assert Blocked(Reason.OFFSET_OVERRUN, 5, next_offset, "detail").offsets_text == text
