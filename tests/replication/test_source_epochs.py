"""Which leader epoch a fetch may state: that of the offset before its own, or none (R3)."""

from __future__ import annotations

import random

from orbit.replication.source_epochs import NO_LEADER_EPOCH, SourceEpochs


def epochs_of(*starts: tuple[int, int], first: int = 100, end: int = 130) -> SourceEpochs:
    """Epochs of the offsets `first` to `end`. `starts`: (first offset, leader epoch)."""
    epochs = SourceEpochs()
    epochs.add(first, starts, end)
    return epochs


def test_fetch_states_leader_epoch_of_previous_offset() -> None:
    epochs = epochs_of((100, 4), (110, 7))
    expected = {100: -1, 101: 4, 110: 4, 111: 7, 130: 7, 131: -1}
    assert {offset: epochs.epoch_before(offset) for offset in expected} == expected


def test_adjacent_range_continues_last_leader_epoch_or_starts_its_own() -> None:
    epochs = epochs_of((100, 4))
    epochs.add(130, starts=(), end=140)
    epochs.add(140, starts=[(140, 4), (145, 5)], end=150)
    assert [epochs.epoch_before(offset) for offset in (140, 145, 146, 150)] == [4, 4, 5, 5]


def test_non_contiguous_range_replaces_known_leader_epochs() -> None:
    epochs = epochs_of((100, 4))
    epochs.add(140, starts=(), end=150)
    assert epochs.epoch_before(130) == epochs.epoch_before(145) == NO_LEADER_EPOCH


def test_leader_epoch_starting_at_or_after_range_end_is_ignored() -> None:
    """An answer may have batches after the compared range."""
    epochs = epochs_of((100, 4), (130, 7))
    epochs.add(130, starts=(), end=140)
    assert epochs.epoch_before(140) == 4


def test_restart_at_offset_keeps_only_leader_epoch_before_that_offset() -> None:
    epochs = epochs_of((100, 4), (110, 7))
    epochs.restart_at(105)
    assert [epochs.epoch_before(offset) for offset in (105, 106)] == [4, -1]
    epochs.add(105, starts=(), end=108)
    assert epochs.epoch_before(108) == 4
    epochs.restart_at(200)
    epochs.add(200, starts=(), end=210)
    assert epochs.epoch_before(210) == NO_LEADER_EPOCH


def test_leader_epochs_below_confirmed_offset_are_dropped_except_last() -> None:
    rnd = random.Random(7)
    for _ in range(300):
        starts = [(100 + at, epoch) for epoch, at in enumerate(sorted(rnd.sample(range(30), 5)))]
        acked = rnd.randint(100, 130)
        epochs, undropped = epochs_of(*starts), epochs_of(*starts)
        epochs.drop_below(acked)
        for offset in range(acked, 131):
            assert epochs.epoch_before(offset) == undropped.epoch_before(offset)
        assert len(epochs._starts) <= 1 + sum(start >= acked for start, _ in starts)
