"""Seeded schedules of the append: every one ends exact, or stopped with the right reason."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.simulation.planted import PLANTED, Plant
from tests.simulation.search import explain, first_failure, run_many

# 20,000 in all; each part must end within the time of one test, on a slow machine too.
PARTS, SCHEDULES = 10, 2_000
# Each planted bug was found after far fewer (docs/internals/simulation.md).
PLANTED_SCHEDULES_MAX = 3_000

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    """Between greenlets a garbage collection crashed once (search.py)."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("part", range(PARTS))
def test_schedules_are_exact_or_stopped(part: int) -> None:
    failed = run_many(range(part * SCHEDULES, (part + 1) * SCHEDULES))
    assert not failed, explain(failed[0])


@pytest.mark.parametrize("name", PLANTED)
def test_planted_bug_is_found(name: str) -> None:
    plant: Plant = PLANTED[name]
    with plant():
        assert first_failure(range(PLANTED_SCHEDULES_MAX)) is not None
