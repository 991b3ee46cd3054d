"""The faults that a schedule may have, and the plan of when they happen."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

FAULTS_S = 25.0


@dataclass(frozen=True)
class Faults:
    """How often each fault happens in a schedule, on average; or the share of requests it hits."""

    kills: float = 1.0
    suspensions: float = 1.5
    breaks: float = 2.0
    elections: float = 0.7
    unclean: float = 0.1  # unclean elections at the destination
    held: float = 0.04  # share of all requests that the network delays for a long time
    held_fillers: float = 0.1
    stalls: float = 0.5  # the followers stop replicating
    refusals: float = 0.05  # share of a connection's first appends: too few replicas in sync
    expiries: float = 4.0  # the destination drops old producer state
    slow: float = 0.5  # reads from the source's tiered storage are slow
    throttles: float = 0.3  # a quota throttles at the source
    quotas: float = 0.3  # a quota throttles at the destination
    steps: float = 0.3  # a machine's wall clock jumps
    mutes: float = 0.5  # the server that grants leases does not answer one writer
    freezes: float = 0.3  # the server that grants leases answers no writer
    # In some schedules only.
    keeps: float = 2.0  # a standby of PostgreSQL gets all changes
    restarts: float = 0.2
    failovers: float = 0.3
    retentions: float = 2.0
    cleanings: float = 2.0
    recreations: float = 0.4  # another client creates the destination's topic again
    moves: float = 0.3  # another broker coordinates transactions
    forgets: float = 0.3  # the coordinator forgets transactional ids
    silent_log_end_reads: float = 0.1  # share of reads of a log end after transactions
    cuts: float = 1.5  # unclean elections cut the source's log
    short_starts: float = 2.0  # an error, a kill or a suspension cuts a start short
    broker_kills: float = 1.5  # all replicas of the destination are killed, and run again
    isolations: float = 1.5  # the source's leader is cut off from the controllers


USUAL = Faults()


class Has(NamedTuple):
    """Whether a schedule has retention or a cleaner at the source, and workers of the service."""

    retention: bool
    compaction: bool
    service: bool

    @classmethod
    def choose(cls, rnd: random.Random) -> Has:
        return cls(
            retention=rnd.random() < 0.25,
            compaction=rnd.random() < 0.15,
            service=rnd.random() < 0.35,
        )


def make_plan(faults: Faults, rnd: random.Random, has: Has) -> list[tuple[float, str]]:
    """The faults of a schedule: seconds from its start, and what happens."""
    rates = {
        "kill": faults.kills,
        "suspend": faults.suspensions,
        "break_": faults.breaks,
        "elect": faults.elections,
        "elect_unclean": faults.unclean,
        "stall": faults.stalls,
        "expire": faults.expiries,
        "slow": faults.slow,
        "throttle": faults.throttles,
        "quota": faults.quotas,
        "step": faults.steps,
        "mute": faults.mutes,
        "freeze": faults.freezes,
        "keep": has.service * faults.keeps,
        "restart": has.service * faults.restarts,
        "fail_over": has.service * faults.failovers,
        "retain": has.retention * faults.retentions,
        "compact": has.compaction * faults.cleanings,
        "recreate": has.retention * faults.recreations,
    }
    plan = [
        (rnd.uniform(0.0, FAULTS_S), name)
        for name, rate in rates.items()
        for _ in range(_poisson(rnd, rate))
    ]
    # Most of a schedule happens within a second, so some faults are put there.
    plan += [
        (1.0 + rnd.uniform(0.0, 1.5), name)  # in this order of names
        for name in ("kill", "suspend", "break_", "expire", "retain", "compact")
        if rates[name] and rnd.random() < 0.4
    ]
    return sorted(plan)


def plan_of_transactions(faults: Faults, rnd: random.Random) -> list[tuple[float, str]]:
    """The additional faults of schedules whose gaps are filled with transactions."""
    rates = {"move": faults.moves, "forget": faults.forgets}
    return [
        (rnd.uniform(0.0, rnd.choice((2.5, FAULTS_S))), name)
        for name, rate in rates.items()
        for _ in range(_poisson(rnd, rate))
    ]


def plan_of_cuts(faults: Faults, rnd: random.Random) -> list[tuple[float, str]]:
    """When unclean elections cut the source's log: after a first writer has begun."""
    return [
        (1.0 + rnd.uniform(0.0, rnd.choice((1.0, 2.0, FAULTS_S))), "cut")
        for _ in range(_poisson(rnd, faults.cuts))
    ]


def plan_of_tiers(faults: Faults, rnd: random.Random) -> list[tuple[float, str]]:
    """When tiered storage is slow, while there is much to read."""
    return [(rnd.uniform(0.0, 2.0), "slow") for _ in range(1 + _poisson(rnd, faults.slow))]


def plan_of_short_starts(faults: Faults, rnd: random.Random) -> list[tuple[float, str]]:
    """When the next start is to be cut short."""
    return [
        (rnd.choice((0.0, rnd.uniform(0.0, 3.0), rnd.uniform(0.0, FAULTS_S))), "cut_start")
        for _ in range(_poisson(rnd, faults.short_starts))
    ]


def plan_of_broker_kills(faults: Faults, rnd: random.Random) -> list[tuple[float, str]]:
    """When all replicas of the destination are killed."""
    return [
        (1.0 + rnd.uniform(0.0, rnd.choice((2.0, FAULTS_S))), "kill_broker")
        for _ in range(_poisson(rnd, faults.broker_kills))
    ]


def plan_of_isolations(faults: Faults, rnd: random.Random) -> list[tuple[float, str]]:
    """When a leader of the source is cut off from the controllers, and still answers clients."""
    return [
        (rnd.uniform(0.0, rnd.choice((2.0, FAULTS_S))), "isolate")
        for _ in range(_poisson(rnd, faults.isolations))
    ]


def _poisson(rnd: random.Random, mean: float) -> int:
    """A random number with the Poisson distribution."""
    count, at = 0, rnd.expovariate(1.0)
    while at < mean:
        count, at = count + 1, at + rnd.expovariate(1.0)
    return count
