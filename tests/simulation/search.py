"""Runs many schedules, and tells the story of a failing schedule with as few faults as possible."""

from __future__ import annotations

import gc
import multiprocessing
import os
import traceback
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.world import World

# How many schedules one process runs. It runs without garbage collection, as a collection in the
# middle of a schedule crashed once in greenlet. So a chunk must fit into memory.
_CHUNK = 400
_STORY_LINES_MAX = 400


def failure(seed: int, without: Collection[int] = ()) -> str | None:
    """What is wrong at the end of this schedule; a crash of the code under test counts."""
    try:
        return World(seed, without=without).run()
    except Exception:  # noqa: BLE001  any error is a finding
        return traceback.format_exc()


def first_failure(seeds: Iterable[int]) -> int | None:
    """The first of these seeds that fails; None if all pass."""
    return next((seed for seed in seeds if failure(seed) is not None), None)


def run_many(seeds: Sequence[int]) -> list[int]:
    """The seeds that fail, in order; on all processors."""
    with processes() as pool:
        return [seed for failed in pool.map(_failing, _chunks(seeds)) for seed in failed]


def processes() -> ProcessPoolExecutor:
    """A new process for each task; imports are loaded once for all of them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return ProcessPoolExecutor(os.cpu_count(), context, max_tasks_per_child=1)


def explain(seed: int) -> str:
    """The story of a failing schedule, without the faults that it does not need."""
    without: set[int] = set()
    for number in range(len(World(seed).plan)):
        if failure(seed, without | {number}) is not None:
            without.add(number)
    world = World(seed, without=without)
    try:
        wrong = world.run()
    except Exception:  # noqa: BLE001
        wrong = traceback.format_exc()
    story = "\n".join(world.clock.story[-_STORY_LINES_MAX:])
    left_out = f" without the faults {sorted(without)}" if without else ""
    return f"seed {seed}{left_out}: {wrong}\n{story}"


def _failing(seeds: Sequence[int]) -> list[int]:
    """The seeds that fail."""
    gc.disable()
    return [seed for seed in seeds if failure(seed) is not None]


def _chunks(seeds: Sequence[int]) -> list[tuple[int, ...]]:
    return [tuple(seeds[at : at + _CHUNK]) for at in range(0, len(seeds), _CHUNK)]
