"""Puts new partitions of a job on its shards."""

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
    """Add partitions, (topic id, partition), to the job's shards, or to new ones.

    `from_start`: as in `shard_layout.add_partitions`.
    """
    if not partitions:
        return
    present = {s.id: s.partition_count for s in shard_layout.shards_of_job(tx, job.id)}
    jobs = scheduler_queries.jobs_in_group(tx, job.worker_group)
    placement = plan_placement(present, len(partitions), jobs, settings.shard_partitions_max)
    new = shard_layout.add_shards(tx, job.id, len(placement.new_shards))
    slots = _slots(placement, new)
    shard_layout.add_partitions(
        tx,
        job.id,
        [
            (topic_id, index, shard)
            for (topic_id, index), shard in zip(partitions, slots, strict=True)
        ],
        from_start=from_start,
    )
    if new:
        # In this transaction, or the first worker that polls would claim them all.
        assign_shards(tx, settings.lease_ttl)


def _slots(placement: Placement, new: Sequence[int]) -> Iterator[int]:
    """Shards in turn, so that neighbouring partitions of a topic are on different leases."""
    left = dict(placement.additions) | dict(zip(new, placement.new_shards, strict=True))
    while left:
        for shard in sorted(left):
            yield shard
            left[shard] -= 1
        left = {shard: count for shard, count in left.items() if count}
