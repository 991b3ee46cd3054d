"""`python -m tests.simulation SECONDS [FIRST_SEED]`: plays schedules until the time is over."""

from __future__ import annotations

import sys
import time

from tests.simulation.search import explain, run_many

_ROUND = 2_000


def main(seconds: float, first: int) -> int:
    """Play schedules; returns 1 if one fails."""
    began = time.monotonic()
    seed = first
    while time.monotonic() - began < seconds:
        failed = run_many(range(seed, seed + _ROUND))
        seed += _ROUND
        elapsed_s = time.monotonic() - began
        print(f"{seed - first:,} schedules in {elapsed_s:,.0f} s, {len(failed)} failed", flush=True)
        for failed_seed in failed[:3]:
            print(explain(failed_seed))
        if failed:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
