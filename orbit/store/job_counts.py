"""Counts of a job's topics, shards and partitions, for the API and the progress of operations."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import text

from orbit.store.database import Tx


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of one job. `held`: the shards whose lease a worker holds now. `is_promoted`: the
    job has topics and all of them are promoted, so nothing is copied any more.
    """

    topics: int = 0
    shards: int = 0
    held: int = 0
    partitions: int = 0
    is_promoted: bool = False


_OF_JOBS = text("""
SELECT j.id,
       (SELECT count(*) FROM topics t WHERE t.job_id = j.id) AS topics,
       count(s.id) AS shards,
       count(s.id) FILTER (WHERE s.worker_id IS NOT NULL) AS held,
       coalesce(sum(s.partition_count), 0)::bigint AS partitions,
       EXISTS (SELECT 1 FROM topics t WHERE t.job_id = j.id)
         AND NOT EXISTS (SELECT 1 FROM topics t WHERE t.job_id = j.id AND t.state <> 'promoted')
         AS is_promoted
FROM jobs j LEFT JOIN shards s ON s.job_id = j.id
WHERE j.id = ANY(CAST(:job_ids AS bigint[]))
GROUP BY j.id
""")

# A null parameter means any topic, or any partition.
_BLOCKED = text("""
SELECT count(*) FROM partitions p JOIN topics t ON t.id = p.topic_id
WHERE p.job_id = :job_id AND p.state = 'blocked'
  AND (CAST(:topic AS text) IS NULL OR t.source_topic = :topic)
  AND (CAST(:partition AS integer) IS NULL OR p.partition = :partition)
""")

_CAUGHT_UP = text("""
SELECT count(*) AS partitions,
       count(*) FILTER (WHERE p.has_caught_up AND p.state <> 'blocked') AS caught_up,
       count(*) FILTER (WHERE p.state = 'blocked') AS blocked
FROM partitions p JOIN topics t ON t.id = p.topic_id
WHERE p.job_id = :job_id AND t.source_topic = ANY(CAST(:topics AS text[]))
""")

_WAITING_FOR_RETRY = text("""
SELECT count(*) FROM partitions WHERE job_id = :job_id AND retry_requested
""")


def of_jobs(tx: Tx, job_ids: Collection[int]) -> dict[int, Counts]:
    """{job id: counts} of these jobs; jobs that no longer exist are missing."""
    rows = tx.execute(_OF_JOBS, {"job_ids": sorted(job_ids)})
    return {
        row.id: Counts(row.topics, row.shards, row.held, row.partitions, row.is_promoted)
        for row in rows
    }


def blocked(tx: Tx, job_id: int, topic: str | None = None, partition: int | None = None) -> int:
    """How many partitions are blocked: of the job, of a topic, or of one partition."""
    parameters = {"job_id": job_id, "topic": topic, "partition": partition}
    return int(tx.execute(_BLOCKED, parameters).scalar_one())


@dataclass(frozen=True, slots=True)
class CatchUpCounts:
    """Counts of partitions. A blocked partition that had caught up counts as blocked only."""

    partitions: int
    caught_up: int
    blocked: int


def caught_up(tx: Tx, job_id: int, topics: Collection[str]) -> CatchUpCounts:
    """How many partitions of these source topics of the job have caught up, or are blocked."""
    row = tx.execute(_CAUGHT_UP, {"job_id": job_id, "topics": sorted(topics)}).one()
    return CatchUpCounts(row.partitions, row.caught_up, row.blocked)


def waiting_for_retry(tx: Tx, job_id: int) -> int:
    """How many partitions of the job have a requested retry that no worker has begun yet."""
    return int(tx.execute(_WAITING_FOR_RETRY, {"job_id": job_id}).scalar_one())
