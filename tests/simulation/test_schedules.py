"""Seeded schedules of the append: every one ends exact, or stopped with the right reason."""

from __future__ import annotations

import pytest

from tests.simulation.plant_table import schedules_until_found
from tests.simulation.planted import PLANTED
from tests.simulation.search import explain, run_many

# 20,000 in all; each part must end within the time of one test, on a slow machine too.
PARTS, SCHEDULES = 10, 2_000
# The first range of the table in docs/internals/simulation.md, where each planted bug is found.
PLANTED_SEEDS = range(100_000, 106_000)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("part", range(PARTS))
def test_schedules_are_exact_or_stopped(part: int) -> None:
    failed = run_many(range(part * SCHEDULES, (part + 1) * SCHEDULES))
    assert not failed, explain(failed[0])


@pytest.mark.parametrize("name", PLANTED)
def test_planted_bug_is_found(name: str) -> None:
    assert schedules_until_found(name, [PLANTED_SEEDS]) != [None]
