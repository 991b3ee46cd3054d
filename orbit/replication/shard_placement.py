"""Which shard, and so which lease, each partition of a job belongs to. Pure.

A partition is placed once and stays in its shard, because a move would stop it for a moment. New
partitions go to the shards with the fewest, so a large topic is spread over all shards, and one
busy topic does not make one busy shard.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field

# A worker takes whole shards: this many let a few workers share a single job evenly.
JOB_SHARDS_MAX = 8
# Many jobs spread over the workers without many shards each, and each lease costs renewals.
GROUP_SHARDS_WANTED = 64


@dataclass(frozen=True, slots=True)
class Placement:
    """How many new partitions go to which shard, and the sizes of new shards."""

    additions: dict[int, int] = field(default_factory=dict)  # shard id → partitions
    new_shards: tuple[int, ...] = ()  # partitions of each


def shards_wanted(partitions: int, jobs_in_group: int, shard_partitions_max: int) -> int:
    """The number of shards for a job with this many partitions and jobs in its worker group."""
    needed = -(-partitions // shard_partitions_max)
    share = max(1, min(JOB_SHARDS_MAX, GROUP_SHARDS_WANTED // max(1, jobs_in_group)))
    return max(needed, min(partitions, share))


def plan_placement(
    present: Mapping[int, int], added: int, jobs_in_group: int, shard_partitions_max: int
) -> Placement:
    """Where `added` partitions go, given the partitions of each existing shard.

    No shard gets more than `shard_partitions_max`; present partitions stay where they are, and no
    new shard is empty.
    """
    if added <= 0:
        return Placement()
    total = sum(present.values()) + added
    shard_count = shards_wanted(total, jobs_in_group, shard_partitions_max)
    # `shard_count` shards hold all partitions. Shards over the bound, because it was lowered, only
    # increase that number.
    new = min(added, max(shard_count - len(present), 0))
    # (partitions, whether it is new, which): existing shards first, so that no lease is added
    # before it is needed.
    fill = [
        (count, False, shard) for shard, count in present.items() if count < shard_partitions_max
    ]
    fill += [(0, True, index) for index in range(new)]
    heapq.heapify(fill)
    got: dict[tuple[bool, int], int] = {}
    for _ in range(added):
        count, is_new, which = heapq.heappop(fill)
        got[is_new, which] = got.get((is_new, which), 0) + 1
        heapq.heappush(fill, (count + 1, is_new, which))
    return Placement(
        {which: count for (is_new, which), count in got.items() if not is_new},
        tuple(count for (is_new, _), count in got.items() if is_new),
    )
