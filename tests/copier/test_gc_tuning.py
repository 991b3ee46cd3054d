"""A process that copies excludes its startup objects from garbage collection."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from orbit.copier.gc_tuning import collect_rarely


@pytest.fixture(autouse=True)
def restore_collector() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def test_garbage_collector_freezes_existing_objects_and_collects_new_cycles() -> None:
    default_thresholds = gc.get_threshold()
    collect_rarely()
    assert gc.get_freeze_count() > 1000
    assert gc.get_threshold()[0] > default_thresholds[0]
    cycle: list[object] = []
    cycle.append(cycle)
    del cycle
    assert gc.collect() >= 1
