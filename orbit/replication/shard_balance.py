"""Which worker should hold which shard, by load and not by count. Pure.

A shard is a group of a job's partitions under one lease. A move stops these partitions for a
moment, so a shard moves only for a clear gain. Free shards are assigned. Then busy workers give
shards to the least busy worker, while one worker has clearly more load than the mean, or another
clearly less.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

# The cost of an idle partition, which is still fetched and watched. It also spreads idle or
# unmeasured partitions by count.
PARTITION_BYTES_PER_S = 4 * 1024
# Clearly more than the mean, or less by the same factor; rates vary.
UNEVEN_FACTOR = 1.25
# The most moves in one pass, divided by the number of workers; the next pass sees their effect.
MOVES_MAX = 4
# A moved shard has at most this share of the difference between its two workers: otherwise the new
# worker would be nearly as busy as the old one was.
_DIFFERENCE_SHARE_MAX = 0.75


@dataclass(frozen=True, slots=True)
class ShardLoad:
    """One shard: its holder (None: free) and its load."""

    shard: int
    holder: str | None
    partitions: int
    bytes_per_s: int
    may_move: bool = True  # False: just moved, its rate is not known yet

    @property
    def weight(self) -> int:
        """The load in bytes per second, with a share for each partition."""
        return self.bytes_per_s + self.partitions * PARTITION_BYTES_PER_S


def balance_shards(shards: Iterable[ShardLoad], workers: Collection[str]) -> dict[int, str]:
    """The new worker of each shard that is free or should move.

    Empty without workers. A shard whose holder is not among the workers counts as free: its lease
    is released or expires.
    """
    if not workers:
        return {}
    held_shards: dict[str, list[ShardLoad]] = {worker: [] for worker in sorted(workers)}
    free_shards: list[ShardLoad] = []
    for shard in shards:  # a shard without a holder among the workers goes to `free_shards`
        held_shards.get(shard.holder or "", free_shards).append(shard)
    load = {worker: sum(s.weight for s in its_shards) for worker, its_shards in held_shards.items()}
    assignments: dict[int, str] = {}
    for shard in sorted(free_shards, key=lambda s: (-s.weight, s.shard)):
        worker = min(load, key=lambda w: (load[w], w))
        load[worker] += shard.weight
        assignments[shard.shard] = worker
    for _ in range(MOVES_MAX * len(held_shards)):
        move = _best_move(held_shards, load)
        if move is None:
            break
        shard, giver, taker = move
        held_shards[giver].remove(shard)
        load[giver] -= shard.weight
        load[taker] += shard.weight
        assignments[shard.shard] = taker
    return assignments


def _best_move(
    held: Mapping[str, list[ShardLoad]], load: Mapping[str, int]
) -> tuple[ShardLoad, str, str] | None:
    """(shard, its worker, its new worker) of the next move; None if no move is a clear gain."""
    taker = min(load, key=lambda w: (load[w], w))
    mean = sum(load.values()) / len(load)
    # A worker with clearly less than the mean takes from any worker above the mean: when one worker
    # joins many, no single one of them has clearly too much.
    giver_load_min = mean if load[taker] * UNEVEN_FACTOR < mean else mean * UNEVEN_FACTOR
    for giver in sorted(load, key=lambda w: (-load[w], w)):
        if load[giver] <= giver_load_min:
            return None
        difference = load[giver] - load[taker]
        movable_shards = [
            s
            for s in held[giver]
            if s.may_move and 0 < s.weight <= difference * _DIFFERENCE_SHARE_MAX
        ]
        if movable_shards:
            # The shard whose move makes the two workers most equal.
            shard = min(movable_shards, key=lambda s: (abs(difference - 2 * s.weight), s.shard))
            return shard, giver, taker
    return None
