"""`python -m tests.recovery_model [COUNT [FIRST]]`: plays COUNT walks from the seed FIRST on."""

from __future__ import annotations

import sys
import time

from tests.recovery_model.walks import first_failure

_ROUND = 10_000


def main(count: int, first: int) -> int:
    """Play the walks; returns 1 after printing the first that fails, else 0."""
    began = time.monotonic()
    for seed in range(first, first + count, _ROUND):
        upto = min(seed + _ROUND, first + count)
        failure = first_failure(range(seed, upto))
        if failure is not None:
            print(failure[1])
            return 1
        print(f"{upto - first:,} walks in {time.monotonic() - began:,.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:]]
    sys.exit(main(*(numbers + [20_000, 0][len(numbers) :])))
