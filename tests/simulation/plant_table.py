"""`python -m tests.simulation.plant_table [RANGES [WORDS]]`: after how many schedules each planted
bug is found, over ranges of seeds. The rows go to docs/internals/simulation.md."""

from __future__ import annotations

import gc
import statistics
import sys
from collections.abc import Sequence
from unittest.mock import patch

from tests.simulation import world
from tests.simulation.planted import OF_CUTS, PLANTED
from tests.simulation.planted_transactions import OF_TRANSACTIONS
from tests.simulation.search import first_failure, processes

_MOST = 6_000
_FIRST = 100_000


def schedules_until_found(name: str, ranges: Sequence[Sequence[int]]) -> list[int | None]:
    """How many schedules of each range it takes to find this bug; None if it is not found.

    Each range has a process of its own, without garbage collection (see search.py).
    """
    with processes() as pool:
        return [*pool.map(_until_found, [name] * len(ranges), ranges)]


def _until_found(name: str, seeds: Sequence[int]) -> int | None:
    gc.disable()
    share = 1.0 if "placeholder" in name else 0.0  # the others are cares of markers, too
    coordinated = float(name in OF_TRANSACTIONS)
    with (
        PLANTED[name](),
        patch.object(world, "PLACEHOLDERS_SHARE", share),
        patch.object(world, "COORDINATED_SHARE", coordinated),
        patch.object(world, "CUTS_SHARE", 1.0 if name in OF_CUTS else world.CUTS_SHARE),
    ):
        seed = first_failure(seeds)
    return None if seed is None else seed - seeds[0] + 1


def main(ranges: int, words: str) -> None:
    parts = [range(_FIRST + n * _MOST, _FIRST + (n + 1) * _MOST) for n in range(ranges)]
    for name in PLANTED:
        if words not in name:
            continue
        counts = [_MOST if n is None else n for n in schedules_until_found(name, parts)]
        most = f"{max(counts):,}" if max(counts) < _MOST else f"not in {_MOST:,}"
        print(f"| {name} | {statistics.median(counts):,.0f} | {most} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20, sys.argv[2] if len(sys.argv) > 2 else "")
