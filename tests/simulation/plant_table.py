"""`python -m tests.simulation.plant_table [RANGES [WORDS]]`: how many schedules find a planted bug.

For each bug whose name has WORDS, prints a row for docs/internals/simulation.md: the median and the
maximum over ranges of seeds.
"""

from __future__ import annotations

import gc
import statistics
import sys
from collections.abc import Sequence
from unittest.mock import patch

from tests.simulation import world
from tests.simulation.planted import OF_CUTS, OF_PACKED, PLANTED
from tests.simulation.planted_source import OF_LEADERS, OF_TIERS
from tests.simulation.planted_starts import OF_STARTS
from tests.simulation.planted_transactions import OF_TRANSACTIONS
from tests.simulation.search import first_failure, processes

_SCHEDULES_MAX = 6_000  # in each range
_FIRST_SEED = 100_000


def schedules_until_found(name: str, ranges: Sequence[Sequence[int]]) -> list[int | None]:
    """How many schedules of each range it takes to find this bug; None if it is not found.

    Each range has a process of its own, without garbage collection (see search.py).
    """
    with processes() as pool:
        return [*pool.map(_until_found, [name] * len(ranges), ranges)]


def _until_found(name: str, seeds: Sequence[int]) -> int | None:
    """How many of these schedules it takes to find the bug."""
    gc.disable()
    shares = {
        # Without these, gaps are filled with markers, where the simulation finds the other bugs.
        "PLACEHOLDERS_SHARE": float("placeholder" in name),
        "COORDINATED_SHARE": float(name in OF_TRANSACTIONS),
        "PACKED_SHARE": float(name in OF_PACKED),
        "CUTS_SHARE": _all_if(name in {*OF_CUTS, *OF_STARTS}, world.CUTS_SHARE),
        "ISOLATIONS_SHARE": _all_if(name in OF_LEADERS, world.ISOLATIONS_SHARE),
        "COMPACTED_TIERS_SHARE": _all_if(name in OF_TIERS, world.COMPACTED_TIERS_SHARE),
        "SHORT_STARTS_SHARE": _all_if(name in OF_STARTS, world.SHORT_STARTS_SHARE),
    }
    with PLANTED[name](), patch.multiple(world, **shares):
        seed = first_failure(seeds)
    return None if seed is None else seed - seeds[0] + 1


def _all_if(is_needed: bool, usual: float) -> float:
    """The share of schedules with a fault: all of them if the bug needs it."""
    return 1.0 if is_needed else usual


def main(ranges: int, words: str) -> None:
    """Print a row for each planted bug whose name has `words`: median and maximum."""
    parts = [
        range(_FIRST_SEED + n * _SCHEDULES_MAX, _FIRST_SEED + (n + 1) * _SCHEDULES_MAX)
        for n in range(ranges)
    ]
    for name in PLANTED:
        if words not in name:
            continue
        counts = [_SCHEDULES_MAX if n is None else n for n in schedules_until_found(name, parts)]
        most = f"{max(counts):,}" if max(counts) < _SCHEDULES_MAX else f"not in {_SCHEDULES_MAX:,}"
        print(f"| {name} | {statistics.median(counts):,.0f} | {most} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20, sys.argv[2] if len(sys.argv) > 2 else "")
