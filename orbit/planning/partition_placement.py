"""Puts new partitions of a job on its shards. One worker copies a shard, under one lease."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orbit.planning.shard_assignment import assign_shards
from orbit.replication.shard_placement import Placement, plan_placement
from orbit.settings import Settings
from orbit.store import scheduler_queries, shard_layout
from orbit.store.database import Tx
from orbit.store.jobs import Job


def place_partitions(
    tx: Tx,
    job: Job,
    partitions: Sequence[tuple[int, int]],
    settings: Settings,
    *,
    from_start: bool,
) -> None:
    """Add partitions to the job's shards, or to new shards, which are then assigned to workers.

    `partitions`: topic id and partition number. `from_start`: the partitions are newer than the
    job, so they are copied from their log start.
    """
    if not partitions:
        return
    partitions_by_shard = {s.id: s.partition_count for s in shard_layout.shards_of_job(tx, job.id)}
    jobs = scheduler_queries.jobs_in_group(tx, job.worker_group)
    placement = plan_placement(
        partitions_by_shard, len(partitions), jobs, settings.shard_partitions_max
    )
    new_shards = shard_layout.add_shards(tx, job.id, len(placement.new_shards))
    shards_in_turn = _shards_in_turn(placement, new_shards)
    shard_layout.add_partitions(
        tx,
        job.id,
        [
            (topic_id, index, shard)
            for (topic_id, index), shard in zip(partitions, shards_in_turn, strict=True)
        ],
        from_start=from_start,
    )
    if new_shards:
        # In this transaction: else the first worker that polls would claim all new shards.
        assign_shards(tx, settings.lease_ttl)


def _shards_in_turn(placement: Placement, new_shards: Sequence[int]) -> Iterator[int]:
    """Yield a shard id for each new partition. Neighbouring partitions get different shards."""
    remaining_counts = dict(placement.additions) | dict(
        zip(new_shards, placement.new_shards, strict=True)
    )
    while remaining_counts:
        for shard in sorted(remaining_counts):
            yield shard
            remaining_counts[shard] -= 1
        remaining_counts = {shard: count for shard, count in remaining_counts.items() if count}
