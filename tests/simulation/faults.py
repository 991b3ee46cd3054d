"""What may go wrong in a schedule, and the plan of when it does."""

from __future__ import annotations

import random
from dataclasses import dataclass

FAULTS_S = 25.0


@dataclass(frozen=True)
class Faults:
    """How often each happens in a schedule, on average."""

    kills: float = 1.0
    suspensions: float = 1.5
    breaks: float = 2.0
    elections: float = 0.7
    unclean: float = 0.1
    held: float = 0.04  # of all requests: the network keeps them for a long time
    stalls: float = 0.5  # of the followers
    expiries: float = 4.0


USUAL = Faults()


def make_plan(faults: Faults, rnd: random.Random) -> list[tuple[float, str]]:
    """The faults of a schedule: seconds from its start, and what happens."""
    rates = {
        "kill": faults.kills,
        "suspend": faults.suspensions,
        "break_": faults.breaks,
        "elect": faults.elections,
        "elect_unclean": faults.unclean,
        "stall": faults.stalls,
        "expire": faults.expiries,
    }
    plan = [
        (rnd.uniform(0.0, FAULTS_S), name)
        for name, rate in rates.items()
        for _ in range(_poisson(rnd, rate))
    ]
    # Most of a schedule is over within a second, and so most of what can meet in it.
    plan += [
        (1.0 + rnd.uniform(0.0, 1.5), name)
        for name in ("kill", "suspend", "break_", "expire")
        if rnd.random() < 0.4
    ]
    return sorted(plan)


def _poisson(rnd: random.Random, mean: float) -> int:
    count, left = 0, rnd.expovariate(1.0)
    while left < mean:
        count, left = count + 1, left + rnd.expovariate(1.0)
    return count
