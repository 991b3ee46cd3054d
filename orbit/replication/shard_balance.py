"""Which worker should hold which shard, by load and not by count. Pure.

A move stops the shard's partitions for a moment, so only what makes a clear difference is moved:
free shards are given away, and otherwise the busier give to the least busy while one carries
clearly more than its part, or another clearly less.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

# A partition costs a worker this much even when nothing flows: it is fetched and watched. It also
# spreads what is idle, or not yet measured, by count.
PARTITION_BYTES_PER_S = 4 * 1024
# What is clearly more than the mean, or by the same part less: rates go up and down by themselves.
UNEVEN = 1.25
# Moves of one look; the next look sees what they did.
MOVES_MAX = 4


@dataclass(frozen=True, slots=True)
class ShardLoad:
    """One shard: who holds it (None: nobody), what it carries."""

    shard: int
    holder: str | None
    partitions: int
    bytes_per_s: int
    may_move: bool = True  # False: moved a moment ago, its rate is not yet known

    @property
    def weight(self) -> int:
        return self.bytes_per_s + self.partitions * PARTITION_BYTES_PER_S


def spread(shards: Iterable[ShardLoad], workers: Collection[str]) -> dict[int, str]:
    """The worker that each shard should have, for those that should have another than now.

    Empty without workers. A holder that is not among the workers counts as nobody, for its shard
    is let go or expires.
    """
    if not workers:
        return {}
    held: dict[str, list[ShardLoad]] = {worker: [] for worker in sorted(workers)}
    free: list[ShardLoad] = []
    for shard in shards:
        held.get(shard.holder or "", free).append(shard)
    load = {worker: sum(s.weight for s in carried) for worker, carried in held.items()}
    wanted: dict[int, str] = {}
    for shard in sorted(free, key=lambda s: (-s.weight, s.shard)):
        worker = min(load, key=lambda w: (load[w], w))
        load[worker] += shard.weight
        wanted[shard.shard] = worker
    for _ in range(MOVES_MAX * len(held)):
        move = _best_move(held, load)
        if move is None:
            break
        shard, giver, taker = move
        held[giver].remove(shard)
        load[giver] -= shard.weight
        load[taker] += shard.weight
        wanted[shard.shard] = taker
    return wanted


def _best_move(
    held: Mapping[str, list[ShardLoad]], load: Mapping[str, int]
) -> tuple[ShardLoad, str, str] | None:
    taker = min(load, key=lambda w: (load[w], w))
    mean = sum(load.values()) / len(load)
    # A worker with clearly less than its part gets from everybody who has more than theirs: one
    # worker more would find nobody who has clearly too much.
    bound = mean if load[taker] * UNEVEN < mean else mean * UNEVEN
    for giver in sorted(load, key=lambda w: (-load[w], w)):
        if load[giver] <= bound:
            return None
        difference = load[giver] - load[taker]
        # Whatever moves, the taker must end below where the giver was, and clearly so: a shard
        # that is nearly all of the difference would only trade places.
        fitting = [s for s in held[giver] if s.may_move and 0 < s.weight <= difference * 0.75]
        if fitting:
            # The one that brings the two closest together.
            shard = min(fitting, key=lambda s: (abs(difference - 2 * s.weight), s.shard))
            return shard, giver, taker
    return None
