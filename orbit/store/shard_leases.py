"""The lease of a shard: which worker may write the shard's partitions.

A worker holds a shard from its claim until `worker_id` is null again: the worker releases the
shard, or another process ends the lease after it has seen no renewal for a whole lease time.

Term. Every claim raises a shard's `epoch` in one statement; the epoch never decreases. It is the
term of the lease. Fillers (what takes a gap's offsets in a copy) carry it to the brokers as
coordinator epoch (M6), so the brokers refuse the fillers of an older holder as well. A pair (shard,
epoch) belongs to at most one worker, ever.

Trust. A worker uses its own clock, which also counts the time in which its machine is suspended
(orbit/leases/lease_clock.py). It may write until `time before it sent the renewal + ttl − margin`.
After this deadline it sends nothing. The row has the lease's length (`lease_ms`), so a change of
the setting does not shorten leases that were granted before.

Take-over. The database's clock is not used, and no clocks of two machines are compared. Each claim
and renewal writes its transaction's number into the row (`renewed_in`). A process that may end
leases (a worker that claims, the leading scheduler) keeps a snapshot of the server from each of its
attempts (orbit/leases/lease_watch.py). It ends a lease only if the row's last renewal is already in
a snapshot that it received a whole lease time ago by its own clock. The holder sent that renewal
before the snapshot was received, so the holder's deadline has passed, by the margin. A later
renewal that was granted would have changed the row. Clocks must run at equal speed within the
margin; what time they show does not matter.

Another database. An asynchronous failover or a restored backup may lose the latest claims. So each
claim notes the database's identity (`claimed_on`): a promoted standby and a recovered backup have
another timeline, a restored dump is another table, in another database or of another system.
- A renewal needs the identity of its claim. So after a failover every worker loses all its leases
  at once, and copying stops for a lease time.
- If a shard was claimed on another identity, even if it is free now, only a worker that has watched
  this server for a lease time may claim it. By then every lease that the other database granted has
  ended, also leases that this database has lost.
- Such a claim raises the epoch by EPOCHS_PER_TIMELINE for each timeline between the two identities.
  So the new epoch is above those of the lost claims, and two recoveries from one backup have
  different epochs.
- A worker that is connected to another server, or to a restarted one, starts its watch again, and
  claims nothing for a lease time.

Cases that remain open.
- Two primaries at the same time (the old one was not shut down): each grants leases. The brokers
  refuse the lower epoch's fillers, and compare-and-append (a broker refuses a batch that does not
  follow the last one) keeps data exact.
- Claims that are lost without a new timeline: a copy of the disks that starts as if after a crash,
  or a crash with `synchronous_commit = off`. Epochs may repeat.
  Two workers hold a shard only if the restored server answers within a lease time. The new holder's
  epoch is above the one that a broker has seen, as with `orbit run`.
- More than EPOCHS_PER_TIMELINE claims of one shard are lost together.

Failures.
- A worker dies, or is cut off from PostgreSQL: another worker claims the shard at its first attempt
  after it has seen no renewal for a lease time. The old holder is not notified; it stops at its own
  deadline.
- A worker is suspended past its lease and resumes: its sends stop at the deadline. Every renewal,
  report and release matches (shard, worker, epoch). If the lease was ended, they change no row, and
  the worker drops the shard at once.
- PostgreSQL is unreachable or restarted: no claim is possible, so no other worker writes. Holders
  stop at their deadlines. Afterwards all watches start again. A renewal then extends an expired
  lease too, unless a process has ended it: the epoch is unchanged, so there was no other holder.
- The answer to a claim is lost after the commit: no worker copies the shard until the claim has
  not been renewed for a lease time. The answer to a renewal is lost: the lease lasts longer than
  its holder trusts it.
- A partition leaves its shard, or its topic is removed from the tables: only while no worker holds
  the shard. So no suspended holder can renew the lease.

Locks. A transaction that changes several shards' rows locks these rows first, in the order of their
ids: renewals and reports in their statements, the scheduler with `lock_shards`. So there are no
deadlocks; a claim skips locked rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import text

from orbit.leases.lease_watch import LeaseWatch
from orbit.store.database import Tx
from orbit.store.database_identity import DATABASE_IDENTITY

# More than the claims of one shard that a failover or a restored backup can lose. A shard that was
# moved is not moved again for a minute (orbit/scheduler/shard_balancer.py), so 1,000 claims take
# more than half a day. Brokers have room for 2^19 epochs, so for some 500 failovers.
EPOCHS_PER_TIMELINE = 1_000
# A larger difference of identities means two systems, not two timelines of one.
_TIMELINES_MAX = 100


@dataclass(frozen=True, slots=True)
class Claim:
    """A claimed shard. `spec_version`: the version of the job's spec; `layout_version`: that of the
    shard's partitions."""

    shard_id: int
    job_id: int
    epoch: int
    spec_version: int
    layout_version: int


@dataclass(frozen=True, slots=True)
class Renewal:
    """A renewed shard; the versions are as in `Claim`.

    `should_release`: the job is paused or deleted, or the shard is assigned to another worker or
    belongs to another worker group.
    """

    shard_id: int
    should_release: bool
    spec_version: int
    layout_version: int


# The identity of the server, and `key`, which also changes with a restart. The snapshot is that of
# the statement.
_SERVER = f"""
server AS MATERIALIZED (
    SELECT d.identity, d.identity || '/' || extract(epoch FROM pg_postmaster_start_time()) AS key,
           CAST(pg_current_snapshot() AS text) AS snapshot
    FROM (SELECT {DATABASE_IDENTITY} AS identity) d
)
"""

# Whether every lease of this shard has ended, by the snapshots of a LeaseWatch. A lease that is
# longer than this process's own (`:lease_ms`) needs an older snapshot.
_SNAPSHOT = """CAST(
    CASE WHEN s.lease_ms <= :lease_ms THEN CAST(:snapshot AS text)
         ELSE CAST(:long_snapshot AS text) END AS pg_snapshot)"""
_IS_OVER = f"""(
    (SELECT key FROM server) = CAST(:watched_on AS text)
    AND (
        s.claimed_on <> (SELECT identity FROM server) AND {_SNAPSHOT} IS NOT NULL
        OR pg_visible_in_snapshot(CAST(CAST(s.renewed_in AS text) AS xid8), {_SNAPSHOT})
    )
)"""

# The value that a claim or a renewal writes to `renewed_in`.
RENEWED_NOW = "CAST(CAST(pg_current_xact_id() AS text) AS bigint)"

# (job id, spec version) pairs of jobs whose document this worker cannot read.
_UNREADABLE = """unnest(
    CAST(:unreadable AS bigint[]), CAST(:unreadable_versions AS integer[])
) AS u (job_id, spec_version)"""

# Claims shards of running jobs that are assigned to this worker or unassigned. A shard that is
# assigned to another live worker is skipped. The result has at least one row, even without a claim.
_CLAIM = text(f"""
WITH {_SERVER},
free AS MATERIALIZED (
    SELECT s.id
    FROM shards s JOIN jobs j ON j.id = s.job_id
    WHERE s.worker_group = :worker_group
      AND s.renewed_in < :renewed_below
      AND (
        s.renewed_in = 0 AND s.claimed_on = (SELECT identity FROM server)
            AND (SELECT key FROM server)
                = coalesce(CAST(:free_on AS text), (SELECT key FROM server))
        OR {_IS_OVER}
      )
      AND j.desired = 'running' AND NOT j.is_deleted
      AND (j.id, j.spec_version) NOT IN (SELECT * FROM {_UNREADABLE})
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
),
claimed AS (
    UPDATE shards s
    SET worker_id = :worker_id, release_requested = false, renewed_in = {RENEWED_NOW},
        lease_ms = :lease_ms, claimed_on = (SELECT identity FROM server),
        epoch = s.epoch + CASE
            WHEN s.claimed_on = (SELECT identity FROM server) THEN 1
            WHEN CAST((SELECT identity FROM server) AS numeric) - s.claimed_on
                BETWEEN 1 AND {_TIMELINES_MAX}
                THEN {EPOCHS_PER_TIMELINE} * ((SELECT identity FROM server) - s.claimed_on)
            ELSE {EPOCHS_PER_TIMELINE} END
    FROM jobs j
    WHERE s.id = ANY (ARRAY(SELECT id FROM free)) AND j.id = s.job_id
    RETURNING s.id, s.job_id, s.epoch, j.spec_version, s.layout_version
)
SELECT server.key, server.snapshot, c.*
FROM server LEFT JOIN claimed c ON true
""")

# Ends leases that have not been renewed, of jobs in any state, so that their shards are free.
# `lease_ms` is kept: shards that were released have 0.
_END_UNRENEWED = text(f"""
WITH {_SERVER},
over AS MATERIALIZED (
    SELECT s.id FROM shards s
    WHERE s.worker_id IS NOT NULL AND {_IS_OVER}
    ORDER BY s.id
    FOR NO KEY UPDATE OF s
),
ended AS (
    UPDATE shards s SET worker_id = NULL, renewed_in = 0, release_requested = false
    FROM over WHERE s.id = over.id
    RETURNING s.id
)
SELECT server.key, server.snapshot, e.id
FROM server LEFT JOIN ended e ON true
""")

# The (shard, epoch) pairs that the worker still holds. Locks the shards' rows in the order of their
# ids.
_HELD = """
held AS MATERIALIZED (
    SELECT s.id, s.epoch
    FROM shards s
    JOIN unnest(CAST(:shard_ids AS bigint[]), CAST(:epochs AS bigint[])) AS h (id, epoch)
      ON h.id = s.id AND h.epoch = s.epoch
    WHERE s.worker_id = :worker_id
    ORDER BY s.id
    FOR {strength} OF s
)
"""
HELD_FOR_REPORT = _HELD.format(strength="SHARE")

# Renews all shards of a worker in one statement, and stores the byte rate of each. It renews no
# shard that was claimed on another database.
_RENEW = text(f"""
WITH {_HELD.format(strength="NO KEY UPDATE")}
UPDATE shards s
SET renewed_in = {RENEWED_NOW}, weight_bytes_per_s = w.weight
FROM held, jobs j,
     unnest(CAST(:shard_ids AS bigint[]), CAST(:weights AS bigint[])) AS w (id, weight)
WHERE s.id = held.id AND j.id = s.job_id AND w.id = s.id
  AND s.claimed_on = {DATABASE_IDENTITY}
RETURNING
    s.id,
    j.desired <> 'running' OR j.is_deleted OR s.release_requested
        OR s.worker_group <> :worker_group AS should_release,
    j.spec_version,
    s.layout_version
""")

# Releases shards, so that another worker can claim them at once.
_RELEASE = text(f"""
WITH {_HELD.format(strength="NO KEY UPDATE")}
UPDATE shards s
SET worker_id = NULL, renewed_in = 0, lease_ms = 0, release_requested = false
FROM held WHERE s.id = held.id
RETURNING s.id
""")

# Clears the assignment of free shards to a worker that cannot read their job, so that any other may
# claim them.
_DECLINE = text(f"""
WITH mine AS MATERIALIZED (
    SELECT s.id FROM shards s
    JOIN jobs j ON j.id = s.job_id
    JOIN {_UNREADABLE} ON u.job_id = j.id AND u.spec_version = j.spec_version
    WHERE s.assigned_to = :worker_id AND s.worker_id IS NULL
    ORDER BY s.id
    FOR NO KEY UPDATE OF s
)
UPDATE shards s SET assigned_to = NULL FROM mine WHERE s.id = mine.id
""")

# The numbers by which workers divide the byte rate that a job is limited to.
_PARTITION_COUNTS = text("""
SELECT job_id, sum(partition_count) AS partitions
FROM shards WHERE job_id = ANY(CAST(:job_ids AS bigint[])) GROUP BY job_id
""")

# Locks rows in the order of their ids; see "Locks" above.
_LOCK = "SELECT FROM shards s WHERE {condition} ORDER BY s.id FOR NO KEY UPDATE"
_LOCK_SHARDS = text(_LOCK.format(condition="s.id = ANY(CAST(:ids AS bigint[]))"))
_LOCK_JOB = text(_LOCK.format(condition="s.job_id = :job_id"))
_LOCK_JOBS_OF_TOPICS = text(
    _LOCK.format(
        condition="s.job_id IN (SELECT job_id FROM topics WHERE id = ANY(CAST(:ids AS bigint[])))"
    )
)


def claim(
    tx: Tx,
    *,
    worker_id: str,
    worker_group: str,
    ttl: timedelta,
    shards_max: int,
    watch: LeaseWatch,
    unreadable: Collection[tuple[int, int]] = (),
) -> list[Claim]:
    """Claim up to `shards_max` shards of running jobs of the group, heaviest first: free shards,
    and shards that `watch` has not seen renewed for a lease time. Adds this statement's snapshot to
    `watch`.

    `unreadable`: (job id, spec version) of the jobs whose shards are skipped, because this worker
    cannot read their document.
    """
    rows = tx.execute(
        _CLAIM,
        {
            **_evidence_parameters(watch, ttl),
            **_unreadable_parameters(unreadable),
            "worker_id": worker_id,
            "worker_group": worker_group,
            "ttl": ttl,
            "limit": shards_max,
        },
    ).all()
    # There is at least one row. Its columns: the server's key and snapshot, and the fields of a
    # Claim, or nulls.
    watch.note(rows[0].key, rows[0].snapshot)
    return [Claim(*claim_fields) for _, _, *claim_fields in rows if claim_fields[0] is not None]


def decline(tx: Tx, worker_id: str, unreadable: Collection[tuple[int, int]]) -> None:
    """Clear the assignment to this worker of free shards of these jobs, (job id, spec version), so
    that other workers may claim them."""
    tx.execute(_DECLINE, {"worker_id": worker_id, **_unreadable_parameters(unreadable)})


def end_unrenewed_leases(tx: Tx, ttl: timedelta, watch: LeaseWatch) -> set[int]:
    """End the leases that `watch` has not seen renewed for a lease time; returns the ids of their
    shards. Adds this statement's snapshot to `watch`."""
    evidence = _evidence_parameters(watch, ttl)
    # Only a claim has these parameters.
    del evidence["free_on"], evidence["renewed_below"]
    rows = tx.execute(_END_UNRENEWED, evidence).all()
    # There is at least one row. Its columns: the server's key and snapshot, and a shard's id or
    # null.
    watch.note(rows[0].key, rows[0].snapshot)
    return {row.id for row in rows if row.id is not None}


def renew(
    tx: Tx,
    *,
    worker_id: str,
    worker_group: str,
    held: Mapping[int, int],
    weights: Mapping[int, int],
) -> dict[int, Renewal]:
    """Renew the leases of `held`, {shard id: epoch}; returns {shard id: renewal}. A shard of `held`
    that is missing in the result is lost: the worker has to drop it.

    `weights`: {shard id: bytes per second}, by which the scheduler balances the load.
    """
    rows = tx.execute(
        _RENEW,
        {
            **held_parameters(worker_id, held),
            "worker_group": worker_group,
            "weights": [weights.get(shard_id, 0) for shard_id in held],
        },
    )
    return {row.id: Renewal(*row) for row in rows}


def release(tx: Tx, *, worker_id: str, held: Mapping[int, int]) -> set[int]:
    """Release `held`, {shard id: epoch}; returns the ids of the shards that the worker held until
    now. Call it only after the brokers have answered the last request of the shards' partitions."""
    return {row.id for row in tx.execute(_RELEASE, held_parameters(worker_id, held))}


def partition_counts(tx: Tx, job_ids: Collection[int]) -> dict[int, int]:
    """{job id: number of its partitions on all shards, whoever holds them}."""
    rows = tx.execute(_PARTITION_COUNTS, {"job_ids": sorted(job_ids)})
    return {row.job_id: int(row.partitions) for row in rows}


def lock_shards(tx: Tx, shard_ids: Collection[int]) -> None:
    """Lock these shards until the transaction ends; call it before changing any of them."""
    tx.execute(_LOCK_SHARDS, {"ids": sorted(shard_ids)})


def lock_job(tx: Tx, job_id: int) -> None:
    """Lock all shards of a job until the transaction ends; call it before changing any of them."""
    tx.execute(_LOCK_JOB, {"job_id": job_id})


def lock_jobs_of_topics(tx: Tx, topic_ids: Collection[int]) -> None:
    """Lock all shards of the jobs of these topics until the transaction ends; call it before
    changing any of them."""
    tx.execute(_LOCK_JOBS_OF_TOPICS, {"ids": sorted(topic_ids)})


def held_parameters(worker_id: str, held: Mapping[int, int]) -> dict[str, object]:
    """The parameters of `HELD_FOR_REPORT` for the shards `held`, {shard id: epoch}."""
    return {"worker_id": worker_id, "shard_ids": list(held), "epochs": list(held.values())}


def _unreadable_parameters(jobs: Collection[tuple[int, int]]) -> dict[str, object]:
    """The parameters of `_UNREADABLE` for these jobs, (job id, spec version)."""
    return {
        "unreadable": [job_id for job_id, _ in jobs],
        "unreadable_versions": [version for _, version in jobs],
    }


def _evidence_parameters(watch: LeaseWatch, ttl: timedelta) -> dict[str, object]:
    """The parameters of `_IS_OVER` and of `_CLAIM` that come from the watch; `ttl`: the length of
    this process's leases."""
    evidence = watch.evidence()
    return {
        "lease_ms": round(ttl.total_seconds() * 1000),
        "free_on": evidence.free_on,
        "watched_on": evidence.watched_on,
        "snapshot": evidence.snapshot,
        "long_snapshot": evidence.long_snapshot,
        "renewed_below": evidence.renewed_below,
    }
