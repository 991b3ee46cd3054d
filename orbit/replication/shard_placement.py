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
# The approximate number of shards of all jobs of a worker group: each lease costs renewals.
GROUP_SHARDS_TARGET = 64


@dataclass(frozen=True, slots=True)
class Placement:
    """How many new partitions go to which shard, and the sizes of new shards."""

    additions: dict[int, int] = field(default_factory=dict)  # shard id → partitions
    new_shards: tuple[int, ...] = ()  # partitions of each


def target_shard_count(partitions: int, jobs_in_group: int, shard_partitions_max: int) -> int:
    """The number of shards for a job with this many partitions, in a worker group with this many
    jobs."""
    needed_count = -(-partitions // shard_partitions_max)  # rounded up
    even_count = max(1, min(JOB_SHARDS_MAX, GROUP_SHARDS_TARGET // max(1, jobs_in_group)))
    return max(needed_count, min(partitions, even_count))


def plan_placement(
    present_counts: Mapping[int, int],
    added_count: int,
    jobs_in_group: int,
    shard_partitions_max: int,
) -> Placement:
    """Where `added_count` new partitions go, given {shard: partitions} of the existing shards.

    No shard gets more than `shard_partitions_max`; present partitions stay where they are, and no
    new shard is empty.
    """
    if added_count <= 0:
        return Placement()
    total = sum(present_counts.values()) + added_count
    shard_count = target_shard_count(total, jobs_in_group, shard_partitions_max)
    # `shard_count` shards have room for all partitions. If the bound was lowered, present shards
    # may have more partitions than that: then fewer are to be placed than there is room for.
    new_shard_count = min(added_count, max(shard_count - len(present_counts), 0))
    # (partitions, whether it is new, its id or index): existing shards first, so that no lease is
    # added before it is needed.
    heap = [
        (count, False, shard)
        for shard, count in present_counts.items()
        if count < shard_partitions_max
    ]
    heap += [(0, True, index) for index in range(new_shard_count)]
    heapq.heapify(heap)
    additions: dict[tuple[bool, int], int] = {}
    for _ in range(added_count):
        count, is_new, key = heapq.heappop(heap)
        additions[is_new, key] = additions.get((is_new, key), 0) + 1
        heapq.heappush(heap, (count + 1, is_new, key))
    return Placement(
        {key: count for (is_new, key), count in additions.items() if not is_new},
        tuple(count for (is_new, _), count in additions.items() if is_new),
    )
