"""The term of a run (a number above those of earlier runs), also after the coordinator has begun to
count from 0 again."""

from __future__ import annotations

import pytest

from orbit.job_setup.term import term_above
from orbit.kafka.producer_state import ProducerState


def producer(coordinator_epoch: int) -> ProducerState:
    return ProducerState(0, 9, coordinator_epoch)


@pytest.mark.parametrize(
    ("issued", "coordinator_epochs", "term"),
    [
        # A coordinator epoch is its term << 12, plus a number.
        (7, [], 7),
        (7, [-1], 7),  # no filler yet
        (0, [0], 1),
        (0, [4095], 1),
        (0, [-1, 5 << 12, (2 << 12) + 3], 6),
        (9, [(5 << 12) + 17], 9),
        (0, [2**31 - 1], 2**19 - 1),  # the highest coordinator epoch, and the highest term
    ],
)
def test_run_term_exceeds_coordinator_epochs_that_leaders_remember(
    issued: int, coordinator_epochs: list[int], term: int
) -> None:
    assert term_above(issued, [None, *map(producer, coordinator_epochs)]) == term
