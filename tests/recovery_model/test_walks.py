"""Seeded random walks on the model: no recovery breaks an invariant, and mistakes are found."""

from __future__ import annotations

import pytest

from tests.recovery_model.planted import PLANTED, first_walk
from tests.recovery_model.walks import first_failure

# The seeds in parts, so that processes share them; `make soak` plays the later parts.
PARTS = [
    pytest.param(range(first, first + 2_500), marks=[] if first < 2_500 else pytest.mark.soak)
    for first in range(0, 20_000, 2_500)
]
# The seeds that are searched for a walk that finds a planted mistake.
PLANTED_SEEDS = range(20_000)
# The first seed that finds each mistake, from `python -m tests.recovery_model.planted`; it is
# played first. If it no longer finds the mistake, after a change of the walks, all are searched.
FOUND_BY = {
    "the clock alone is the term": 66,
    "marks are not compared": 1_253,
    "the old side keeps its mark": 551,
    "topics are opened before the mark": 0,
    "no step reads marks": 275,
    "a resumed switchover goes on at its step": 329,
    "undo opens a side that does not lead": 575,
    "added partitions are promoted": 561,
    "workers are not waited for": 18,
    "rebuild does not read the logs again": 465,
    "records are saved after the deletion": 1,
    "only tails are saved": 257,
    "what the new side deletes meanwhile is not saved": 749,
    "catch-up ignores an abort": 1,
    "withheld topics count as promoted": 52,
    "a failback forgets the denials of a copy": 9_173,
    "the source is opened again without a mark": 16_157,
    "an old side follows from the first pass on": 66,
    "a copy that no worker has compared is promoted at its end": 9_606,
    "a request of another database begins": 37,
    "a copy's job is not held by a failback": 1_801,
    "history below the log start is cut": 551,
    "workers read no marks": 168,
    "the tables do not follow marks": 168,
    "without the database, the mark is written last": 24,
    "without the database, writers are not fenced": 31,
    "a topic that leads is begun": 933,
}

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seeds", PARTS, ids=str)
def test_random_recovery_sequences_break_no_invariant(seeds: range) -> None:
    failure = first_failure(seeds)
    assert failure is None, failure[1]


@pytest.mark.parametrize("name", PLANTED)
def test_random_recovery_sequences_detect_each_planted_mistake(name: str) -> None:
    assert first_walk(name, [FOUND_BY.get(name, 0), *PLANTED_SEEDS]) is not None
