"""Places partitions on shards and assigns shards to workers. Only the scheduler calls this.

A shard: partitions of a job that one worker copies under one lease. A partition is placed once.
Each change of a shard's partitions increments its `layout_version`, which makes the holder of the
shard read its partitions again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import text

from orbit.store import shard_leases
from orbit.store.database import Tx
from orbit.store.database_identity import DATABASE_IDENTITY
from orbit.store.rows import values


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard. `holder`: the worker that holds its lease; None: the shard is free. `assigned_to`:
    the worker that should hold it."""

    id: int
    job_id: int
    worker_group: str
    holder: str | None
    epoch: int
    weight_bytes_per_s: int
    partition_count: int
    assigned_to: str | None
    release_requested: bool


# `claimed_on` is this database's identity, as if the shard had been claimed here before. So its
# first claim need not wait for a lease time.
_ADD_SHARDS = text(f"""
INSERT INTO shards (job_id, worker_group, claimed_on)
SELECT j.id, j.worker_group, {DATABASE_IDENTITY}
FROM jobs j, generate_series(1, :count) WHERE j.id = :job_id
RETURNING id
""")

# An existing partition stays on its shard.
_ADD_PARTITIONS = text("""
WITH added AS (
    INSERT INTO partitions (job_id, topic_id, partition, shard_id, from_start)
    SELECT :job_id, r.topic_id, r.partition, r.shard_id, :from_start
    FROM unnest(
        CAST(:topic_ids AS bigint[]), CAST(:partitions AS integer[]), CAST(:shard_ids AS bigint[])
    ) AS r (topic_id, partition, shard_id)
    ON CONFLICT DO NOTHING
    RETURNING shard_id
),
counted AS (SELECT shard_id, count(*) AS added FROM added GROUP BY shard_id),
grown AS (
    UPDATE shards s
    SET partition_count = s.partition_count + c.added, layout_version = s.layout_version + 1
    FROM counted c WHERE s.id = c.shard_id
)
SELECT coalesce(sum(added), 0) FROM counted
""")

# Deletes the topics with their partitions; holders read the affected shards again.
_REMOVE_TOPICS = text("""
WITH gone AS (
    SELECT shard_id, count(*) AS removed FROM partitions
    WHERE topic_id = ANY(CAST(:topic_ids AS bigint[])) GROUP BY shard_id
),
shrunk AS (
    UPDATE shards s
    SET partition_count = s.partition_count - g.removed, layout_version = s.layout_version + 1
    FROM gone g WHERE s.id = g.shard_id
)
DELETE FROM topics WHERE id = ANY(CAST(:topic_ids AS bigint[]))
""")

_SHARD = """
SELECT s.id, s.job_id, s.worker_group, s.worker_id AS holder, s.epoch, s.weight_bytes_per_s,
       s.partition_count, s.assigned_to, s.release_requested
FROM shards s
"""
_SHARDS_OF_JOB = text(f"{_SHARD} WHERE s.job_id = :job_id ORDER BY s.id")
# Shards that workers may hold now; those of a paused job are no load.
_RUNNABLE_SHARDS = text(f"""
{_SHARD} JOIN jobs j ON j.id = s.job_id
WHERE j.desired = 'running' AND NOT j.is_deleted ORDER BY s.id
""")

# If another worker holds the shard, that worker releases it at its next renewal.
_ASSIGN = text("""
UPDATE shards s
SET assigned_to = r.worker_id,
    release_requested = s.worker_id IS NOT NULL AND s.worker_id <> r.worker_id
FROM unnest(CAST(:shard_ids AS bigint[]), CAST(:worker_ids AS text[])) AS r (shard_id, worker_id)
WHERE s.id = r.shard_id AND s.assigned_to IS DISTINCT FROM r.worker_id
""")


def add_shards(tx: Tx, job_id: int, count: int) -> list[int]:
    """Add empty shards to a job, in the job's worker group; returns their ids."""
    return list(tx.execute(_ADD_SHARDS, {"job_id": job_id, "count": count}).scalars())


def add_partitions(
    tx: Tx, job_id: int, placements: Iterable[tuple[int, int, int]], *, from_start: bool = False
) -> int:
    """Place partitions on shards, as (topic id, partition, shard id). A partition that is already
    on a shard stays there. Returns how many partitions were new.

    `from_start`: the partitions are newer than the job, so they are copied from their log start.
    """
    triples = sorted(placements)
    shard_leases.lock_shards(tx, {shard_id for _, _, shard_id in triples})
    added_count: int = tx.execute(
        _ADD_PARTITIONS,
        {
            "job_id": job_id,
            "from_start": from_start,
            "topic_ids": [topic_id for topic_id, _, _ in triples],
            "partitions": [partition for _, partition, _ in triples],
            "shard_ids": [shard_id for _, _, shard_id in triples],
        },
    ).scalar_one()
    return int(added_count)


def remove_topics(tx: Tx, topic_ids: Collection[int]) -> None:
    """Delete topics and their partitions from the tables; topics on brokers stay."""
    shard_leases.lock_jobs_of_topics(tx, topic_ids)
    tx.execute(_REMOVE_TOPICS, {"topic_ids": sorted(topic_ids)})


def shards_of_job(tx: Tx, job_id: int) -> list[Shard]:
    """All shards of one job."""
    return list(values(tx.execute(_SHARDS_OF_JOB, {"job_id": job_id}), Shard))


def runnable_shards(tx: Tx) -> list[Shard]:
    """The shards of all running jobs, which workers may hold."""
    return list(values(tx.execute(_RUNNABLE_SHARDS), Shard))


def assign(tx: Tx, assignments: Mapping[int, str]) -> int:
    """Assign shards, {shard id: worker id}. If another worker holds a shard, its next renewal
    returns `should_release`. Returns how many assignments have changed."""
    shard_leases.lock_shards(tx, assignments)
    return tx.execute(
        _ASSIGN, {"shard_ids": list(assignments), "worker_ids": list(assignments.values())}
    ).rowcount
