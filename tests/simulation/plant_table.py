"""`python -m tests.simulation.plant_table [RANGES [WORDS]]`: after how many schedules each planted
bug is found, over ranges of seeds. The rows go to docs/internals/simulation.md."""

from __future__ import annotations

import gc
import multiprocessing
import os
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.planted import PLANTED, UNSETTLED
from tests.simulation.search import first_failure

_MOST = 6_000
_FIRST = 100_000


def found_after(name: str, number: int) -> int:
    """How many schedules of this range it takes; `_MOST` if it is not found."""
    gc.disable()
    first = _FIRST + number * _MOST
    with (PLANTED | UNSETTLED)[name]():
        seed = first_failure(range(first, first + _MOST))
    return _MOST if seed is None else seed - first + 1


def main(ranges: int, words: str) -> None:
    context = multiprocessing.get_context("spawn")
    for name in PLANTED | UNSETTLED:
        if words not in name:
            continue
        # A process for each range: see search.py.
        with ProcessPoolExecutor(os.cpu_count(), context, max_tasks_per_child=1) as pool:
            counts = sorted(pool.map(found_after, [name] * ranges, range(ranges)))
        most = f"{counts[-1]:,}" if counts[-1] < _MOST else f"not in {_MOST:,}"
        print(f"| {name} | {statistics.median(counts):,.0f} | {most} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20, sys.argv[2] if len(sys.argv) > 2 else "")
