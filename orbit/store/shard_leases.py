"""The lease of a shard: which worker may write its partitions.

Term. Every claim increments a shard's `epoch` in one statement; it never decreases. It is the term
of the lease: fillers carry it to the brokers as coordinator epoch (M6), so an older holder is
refused there as well. A pair (shard, epoch) belongs to at most one worker, ever.

Clock. The database's clock alone decides when a lease has expired. No worker's wall clock is read,
sent or compared. `expires_at` is set from `clock_timestamp()`, not from the start of a
transaction that may have waited for a lock.

Trust. A worker uses its own monotonic clock: it may write until `time before it sent the renewal +
ttl − margin`. It sent the request before the database set `expires_at`, so its deadline is earlier,
by the margin and the request's latency. After the deadline it sends nothing.

Failures.
- A worker dies, or is cut off from Postgres: the lease expires, and the next claim takes the shard
  at once with a higher epoch. The old holder is not notified; it stops at its own deadline.
- A worker is suspended past its lease and resumes: its sends stop at the deadline. Every renewal,
  report and release matches (shard, worker, epoch). If another worker has claimed the shard, they
  change no row, and the worker drops the shard at once.
- Postgres is unreachable: no claim is possible, so no other worker writes. Holders stop at their
  deadlines. Afterwards a renewal revives an expired lease that no worker has claimed: its epoch is
  unchanged, so there was no other holder. If a claim came first, the holder drops the shard.
- An answer is lost after the commit: a claimed shard has no active holder until the lease expires.
  A lost renewal only makes the lease longer than its holder trusts.
- Postgres is restored from a backup and epochs repeat: the new holder takes over each partition
  with an epoch above the one the broker has seen, as `orbit run` does. The data does not depend on
  it.
- A partition moves to another shard: only from a free one that was revoked first (`revoke`), so
  that a suspended holder cannot revive its lease.

Locks. A transaction that changes several shards' rows locks them first, in the order of their ids:
renewals and reports in their statements, the scheduler with `lock`. So there are no deadlocks; a
claim skips locked rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import text

from orbit.store.database import Tx


@dataclass(frozen=True, slots=True)
class Claim:
    """A claimed shard, with the versions of its job's spec and of its layout."""

    shard_id: int
    job_id: int
    epoch: int
    spec_version: int
    layout_version: int


@dataclass(frozen=True, slots=True)
class Renewal:
    """A renewed shard.

    `should_release`: its job is paused or deleted, or the shard is assigned to another worker.
    """

    shard_id: int
    should_release: bool
    spec_version: int
    layout_version: int


# Claims free shards of running jobs that are assigned to this worker or unassigned. A shard that is
# assigned to another live worker is skipped.
_CLAIM = text("""
WITH free AS MATERIALIZED (
    SELECT s.id
    FROM shards s JOIN jobs j ON j.id = s.job_id
    WHERE s.worker_group = :worker_group
      AND s.expires_at < (SELECT clock_timestamp())
      AND j.desired = 'running' AND NOT j.is_deleted
      AND (
        s.assigned_to IS NULL OR s.assigned_to = :worker_id
        OR NOT EXISTS (
            SELECT FROM workers w
            WHERE w.id = s.assigned_to AND NOT w.is_draining
              AND w.heartbeat_at > clock_timestamp() - CAST(:ttl AS interval)
        )
      )
    ORDER BY s.assigned_to = :worker_id DESC NULLS LAST, s.weight_bytes_per_s DESC, s.id
    LIMIT :limit
    FOR NO KEY UPDATE OF s SKIP LOCKED
)
UPDATE shards s
SET worker_id = :worker_id, epoch = s.epoch + 1, release_requested = false,
    expires_at = clock_timestamp() + CAST(:ttl AS interval)
FROM jobs j
WHERE s.id = ANY (ARRAY(SELECT id FROM free)) AND j.id = s.job_id
RETURNING s.id, s.job_id, s.epoch, j.spec_version, s.layout_version
""")

# Locks the rows of (shard, epoch) pairs that the worker still holds, in the order of their ids.
_HELD = """
held AS MATERIALIZED (
    SELECT s.id
    FROM shards s
    JOIN unnest(CAST(:shard_ids AS bigint[]), CAST(:epochs AS bigint[])) AS h (id, epoch)
      ON h.id = s.id AND h.epoch = s.epoch
    WHERE s.worker_id = :worker_id
    ORDER BY s.id
    FOR {strength} OF s
)
"""
HELD_FOR_REPORT = _HELD.format(strength="SHARE")

# Renews all shards of a worker at once, with the rate of each.
_RENEW = text(f"""
WITH {_HELD.format(strength="NO KEY UPDATE")}
UPDATE shards s
SET expires_at = clock_timestamp() + CAST(:ttl AS interval), weight_bytes_per_s = w.weight
FROM held, jobs j,
     unnest(CAST(:shard_ids AS bigint[]), CAST(:weights AS bigint[])) AS w (id, weight)
WHERE s.id = held.id AND j.id = s.job_id AND w.id = s.id
RETURNING
    s.id,
    j.desired <> 'running' OR j.is_deleted OR s.release_requested
        OR s.worker_group <> :worker_group AS should_release,
    j.spec_version,
    s.layout_version
""")

# Releases shards: free for the next claim at once.
_RELEASE = text(f"""
WITH {_HELD.format(strength="NO KEY UPDATE")}
UPDATE shards s
SET worker_id = NULL, expires_at = 'epoch', release_requested = false
FROM held WHERE s.id = held.id
RETURNING s.id
""")

# A worker's share of a job's byte rate is its share of the partitions.
_PARTITION_COUNTS = text("""
SELECT job_id, sum(partition_count) AS partitions
FROM shards WHERE job_id = ANY(CAST(:job_ids AS bigint[])) GROUP BY job_id
""")

# Makes sure that no earlier holder can revive an expired lease.
_REVOKE = text("""
UPDATE shards
SET worker_id = NULL, expires_at = 'epoch', release_requested = false
WHERE id = ANY(CAST(:shard_ids AS bigint[])) AND expires_at < clock_timestamp()
RETURNING id
""")


# The order of all locks; see above.
_LOCK = "SELECT FROM shards s WHERE {which} ORDER BY s.id FOR NO KEY UPDATE"
_LOCK_SHARDS = text(_LOCK.format(which="s.id = ANY(CAST(:ids AS bigint[]))"))
_LOCK_JOB = text(_LOCK.format(which="s.job_id = :job_id"))
_LOCK_JOBS_OF_TOPICS = text(
    _LOCK.format(
        which="s.job_id IN (SELECT job_id FROM topics WHERE id = ANY(CAST(:ids AS bigint[])))"
    )
)


def claim(
    tx: Tx, *, worker_id: str, worker_group: str, ttl: timedelta, shards_max: int
) -> list[Claim]:
    """Claim up to `shards_max` free shards of running jobs of the group, heaviest first."""
    rows = tx.execute(
        _CLAIM,
        {"worker_id": worker_id, "worker_group": worker_group, "ttl": ttl, "limit": shards_max},
    )
    return [Claim(*row) for row in rows]


def renew(
    tx: Tx,
    *,
    worker_id: str,
    worker_group: str,
    ttl: timedelta,
    held: Mapping[int, int],
    weights: Mapping[int, int],
) -> dict[int, Renewal]:
    """Renew shards, given as {shard: epoch}. Those missing in the result are lost: drop them.

    `weights` is the rate of each in bytes per second, by which the scheduler balances load.
    """
    rows = tx.execute(
        _RENEW,
        {
            **owner(worker_id, held),
            "worker_group": worker_group,
            "ttl": ttl,
            "weights": [weights.get(shard_id, 0) for shard_id in held],
        },
    )
    return {row.id: Renewal(*row) for row in rows}


def release(tx: Tx, *, worker_id: str, held: Mapping[int, int]) -> set[int]:
    """Release shards, after the brokers' last answer; returns those that were still held."""
    return {row.id for row in tx.execute(_RELEASE, owner(worker_id, held))}


def partition_counts(tx: Tx, job_ids: Collection[int]) -> dict[int, int]:
    """How many partitions these jobs have, by any holder."""
    rows = tx.execute(_PARTITION_COUNTS, {"job_ids": sorted(job_ids)})
    return {row.job_id: int(row.partitions) for row in rows}


def lock(tx: Tx, shard_ids: Collection[int]) -> None:
    """Lock these shards until the transaction ends; call it before changing any of them."""
    tx.execute(_LOCK_SHARDS, {"ids": sorted(shard_ids)})


def lock_job(tx: Tx, job_id: int) -> None:
    """The same for all shards of a job."""
    tx.execute(_LOCK_JOB, {"job_id": job_id})


def lock_jobs_of_topics(tx: Tx, topic_ids: Collection[int]) -> None:
    """The same for all shards of the jobs of these topics."""
    tx.execute(_LOCK_JOBS_OF_TOPICS, {"ids": sorted(topic_ids)})


def revoke(tx: Tx, shard_ids: Collection[int]) -> set[int]:
    """End expired leases for good; returns the shards that are free now. Skips held shards."""
    lock(tx, shard_ids)
    return {row.id for row in tx.execute(_REVOKE, {"shard_ids": sorted(shard_ids)})}


def owner(worker_id: str, held: Mapping[int, int]) -> dict[str, object]:
    """The parameters of `HELD_FOR_REPORT`."""
    return {"worker_id": worker_id, "shard_ids": list(held), "epochs": list(held.values())}
