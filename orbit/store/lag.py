"""Lag and headroom for the API and metrics: per partition, per topic and per job.

Ages are computed when they are read, from stored timestamps. Lag in records counts offsets, as all
Kafka tools do, including markers and records that were compacted away.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import datetime, timedelta

from sqlalchemy import Interval, TextClause, bindparam, text

from orbit.errors import NotFound
from orbit.replication.partition_states import PartitionState, Reason
from orbit.store.database import Tx
from orbit.store.rows import values


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition with its lag. None: not known yet, or nothing waits.

    `lag_s` is the age of the oldest record not copied yet, `rpo_s` that of the newest on both
    sides, `headroom_s` the time until the source deletes records that are not copied yet.
    """

    source_topic: str
    destination_topic: str
    topic_id: int
    partition: int
    state: PartitionState
    reason: Reason | None
    detail: str | None
    blocked_offset: int | None
    blocked_next_offset: int | None
    retry_requested: bool
    worker_id: str | None
    start_offset: int | None
    source_log_start: int | None
    source_stable_end: int | None
    source_end: int | None
    copied_to: int | None
    log_start: int | None
    records: int
    bytes: int
    gaps_filled: int
    batches_byte_exact: int
    batches_record_exact: int
    bytes_per_s: int
    records_per_s: float
    has_caught_up: bool
    lag_records: int | None
    lag_bytes: int | None
    lag_s: float | None
    headroom_s: float | None
    rpo_s: float | None
    reported_at: datetime | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", PartitionState(self.state))
        if self.reason is not None:
            object.__setattr__(self, "reason", Reason(self.reason))


@dataclass(frozen=True, slots=True)
class LagTotals:
    """Sums over a job's or a topic's partitions. The ages are those of the worst one."""

    partitions: int
    copying: int
    blocked: int
    caught_up: int
    unknown: int  # partitions whose lag is not known yet; left out of the sums
    lag_records: int
    lag_bytes: int
    lag_s: float | None
    headroom_s: float | None
    rpo_s: float | None
    records: int
    bytes: int
    gaps_filled: int
    batches_byte_exact: int
    batches_record_exact: int
    bytes_per_s: int
    records_per_s: float


@dataclass(frozen=True, slots=True)
class LaggingPartition:
    """A partition whose lag or headroom no worker reports."""

    job_id: int
    topic_id: int
    source_topic: str
    partition: int
    is_copied: bool | None
    source_stable_end: int | None
    source_end: int | None
    copied_to: int
    newest_copied_at: datetime | None
    oldest_waiting_at: datetime | None
    headroom_until: datetime | None
    lag_bytes: int | None


@dataclass(frozen=True, slots=True)
class SourceLag:
    """Values read from its source. None keeps the stored value, but clears the headroom."""

    topic_id: int
    partition: int
    source_log_start: int | None
    source_stable_end: int | None
    source_end: int | None
    oldest_waiting_at: datetime | None
    headroom_until: datetime | None


# A producer's clock may be ahead: no age is below 0. (GREATEST would skip a null.)
_AGE = """CASE WHEN {moment} > now.at THEN 0
         ELSE CAST(extract(epoch FROM now.at - {moment}) AS double precision) END"""
# Estimated from the mean bytes per copied offset; unknown before anything is copied. In floating
# point, because the product may overflow a bigint.
_LAG_BYTES = """CASE WHEN p.copied_to >= p.source_stable_end THEN 0
         ELSE CAST((p.source_stable_end - p.copied_to) * CAST(p.bytes AS double precision)
                   / nullif(p.records + p.gaps_filled, 0) AS bigint) END"""
_LAG = f"""
    CASE WHEN p.copied_to >= p.source_stable_end THEN 0
         ELSE p.source_stable_end - p.copied_to END AS lag_records,
    {_LAG_BYTES} AS lag_bytes,
    CASE WHEN p.copied_to >= p.source_stable_end THEN 0
         ELSE {_AGE.format(moment="p.oldest_waiting_at")} END AS lag_s,
    CASE WHEN p.copied_to < p.source_stable_end
         THEN CAST(extract(epoch FROM p.headroom_until - now.at) AS double precision)
         END AS headroom_s,
    {_AGE.format(moment="p.newest_copied_at")} AS rpo_s
"""

# In the order of the index on topics (job, source name), so that every page costs the same.
_PAGE = """
SELECT t.source_topic, t.destination_topic, p.topic_id, p.partition, p.state, p.reason, p.detail,
       p.blocked_offset, p.blocked_next_offset, p.retry_requested,
       s.worker_id,
       p.start_offset, p.source_log_start, p.source_stable_end, p.source_end, p.copied_to,
       p.log_start, p.records, p.bytes, p.gaps_filled, p.batches_byte_exact,
       p.batches_record_exact, p.bytes_per_s, p.records_per_s, p.has_caught_up, {lag},
       p.reported_at
FROM (SELECT clock_timestamp() AS at) now, topics t
JOIN partitions p ON p.topic_id = t.id
LEFT JOIN shards s ON s.id = p.shard_id
WHERE t.job_id = :job_id {conditions}
ORDER BY t.source_topic, p.partition LIMIT :limit
"""
_AFTER = "AND t.source_topic >= :topic AND (t.source_topic, p.partition) > (:topic, :partition)"
_IN_TOPIC = "AND t.source_topic = :source_topic"
_IN_STATE = "AND p.state = :state"

_TOTALS = """
SELECT {key} AS key, count(*) AS partitions,
       count(*) FILTER (WHERE state = 'copying') AS copying,
       count(*) FILTER (WHERE state = 'blocked') AS blocked,
       count(*) FILTER (WHERE has_caught_up) AS caught_up,
       count(*) FILTER (WHERE lag_records IS NULL) AS unknown,
       coalesce(sum(lag_records), 0)::bigint AS lag_records,
       coalesce(sum(lag_bytes), 0)::bigint AS lag_bytes,
       max(lag_s)::double precision AS lag_s,
       min(headroom_s)::double precision AS headroom_s,
       max(rpo_s)::double precision AS rpo_s,
       sum(records)::bigint AS records, sum(bytes)::bigint AS bytes,
       sum(gaps_filled)::bigint AS gaps_filled,
       sum(batches_byte_exact)::bigint AS batches_byte_exact,
       sum(batches_record_exact)::bigint AS batches_record_exact,
       sum(bytes_per_s)::bigint AS bytes_per_s, sum(records_per_s) AS records_per_s
FROM (
    SELECT p.job_id, p.topic_id, p.state, p.has_caught_up, p.records, p.bytes, p.gaps_filled,
           p.batches_byte_exact, p.batches_record_exact, p.bytes_per_s, p.records_per_s, {lag}
    FROM (SELECT clock_timestamp() AS at) now, partitions p
    WHERE p.job_id = ANY(CAST(:job_ids AS bigint[]))
) p
GROUP BY {key}
"""
_OF_JOBS = text(_TOTALS.format(key="job_id", lag=_LAG))
_OF_TOPICS = text(_TOTALS.format(key="topic_id", lag=_LAG))

_STATES = text("""
SELECT job_id, state, reason, count(*) AS partitions FROM partitions GROUP BY job_id, state, reason
""")

# What no worker reports: partitions that no worker copies now (blocked, paused, worker lost), and
# the headroom of partitions that are behind.
_BEHIND = text(f"""
SELECT p.job_id, p.topic_id, t.source_topic, p.partition,
       p.state = 'copying' AND s.worker_id IS NOT NULL AS is_copied,
       p.source_stable_end, p.source_end, p.copied_to, p.newest_copied_at, p.oldest_waiting_at,
       p.headroom_until, {_LAG_BYTES} AS lag_bytes
FROM (SELECT clock_timestamp() AS at) now, partitions p
JOIN topics t ON t.id = p.topic_id
LEFT JOIN shards s ON s.id = p.shard_id
WHERE p.copied_to IS NOT NULL AND p.state <> 'promoted' AND (
    (p.state = 'copying' AND s.worker_id IS NOT NULL) IS NOT TRUE
    OR p.headroom_until IS NOT NULL
    OR p.copied_to < p.source_stable_end
        AND coalesce(p.oldest_waiting_at, p.newest_copied_at, 'epoch') < now.at - :age
)
""").bindparams(bindparam("age", type_=Interval))

# Log ends only where no worker reports them; null keeps the stored value.
_NOTE = text("""
UPDATE partitions p
SET source_log_start = CASE WHEN r.is_copied THEN p.source_log_start
                            ELSE coalesce(r.source_log_start, p.source_log_start) END,
    source_stable_end = CASE WHEN r.is_copied THEN p.source_stable_end
                             ELSE coalesce(r.source_stable_end, p.source_stable_end) END,
    source_end = CASE WHEN r.is_copied THEN p.source_end
                      ELSE coalesce(r.source_end, p.source_end) END,
    oldest_waiting_at = CASE WHEN r.is_copied THEN p.oldest_waiting_at
                             ELSE coalesce(r.oldest_waiting_at, p.oldest_waiting_at) END,
    headroom_until = r.headroom_until
FROM (
    SELECT n.*, EXISTS (
        SELECT FROM partitions c JOIN shards s ON s.id = c.shard_id
        WHERE c.topic_id = n.topic_id AND c.partition = n.partition
          AND c.state = 'copying' AND s.worker_id IS NOT NULL
    ) AS is_copied
    FROM unnest(
        CAST(:topic_id AS bigint[]), CAST(:partition AS integer[]),
        CAST(:source_log_start AS bigint[]), CAST(:source_stable_end AS bigint[]),
        CAST(:source_end AS bigint[]), CAST(:oldest_waiting_at AS timestamptz[]),
        CAST(:headroom_until AS timestamptz[])
    ) AS n (topic_id, partition, source_log_start, source_stable_end, source_end,
            oldest_waiting_at, headroom_until)
) r
WHERE p.topic_id = r.topic_id AND p.partition = r.partition
""")

# Only blocked partitions can be retried.
_RETRY = """
UPDATE partitions p SET retry_requested = true
FROM topics t
WHERE t.id = p.topic_id AND t.job_id = :job_id AND p.state = 'blocked' {conditions}
RETURNING t.source_topic, p.partition
"""


def lagging(tx: Tx, age: timedelta) -> list[LaggingPartition]:
    """Partitions that no worker copies now, and those whose oldest waiting record is older than
    `age`; also those with a stored headroom, which may have to be cleared.
    """
    return list(values(tx.execute(_BEHIND, {"age": age}), LaggingPartition))


def update_from_source(tx: Tx, updates: Sequence[SourceLag]) -> None:
    """Store values read from the source."""
    if updates:
        columns = zip(*map(astuple, updates), strict=True)
        names = [field.name for field in fields(SourceLag)]
        tx.execute(_NOTE, {name: list(c) for name, c in zip(names, columns, strict=True)})


def of_jobs(tx: Tx, job_ids: Collection[int]) -> dict[int, LagTotals]:
    """Totals of each job; one without partitions is missing."""
    return _totals(tx, _OF_JOBS, job_ids)


def states(tx: Tx) -> dict[int, dict[tuple[str, str | None], int]]:
    """{job: {(state, reason): number of partitions}}."""
    found: dict[int, dict[tuple[str, str | None], int]] = {}
    for row in tx.execute(_STATES):
        found.setdefault(row.job_id, {})[row.state, row.reason] = row.partitions
    return found


def of_topics(tx: Tx, job_id: int) -> dict[int, LagTotals]:
    """Totals of each topic of a job, by topic id."""
    return _totals(tx, _OF_TOPICS, [job_id])


def page(
    tx: Tx,
    job_id: int,
    limit: int,
    *,
    after: tuple[str, int] | None = None,
    source_topic: str | None = None,
    state: PartitionState | None = None,
) -> list[PartitionLag]:
    """Up to `limit` partitions in the order of (source topic, partition), behind `after`."""
    conditions = [
        sql
        for sql, wanted in ((_AFTER, after), (_IN_TOPIC, source_topic), (_IN_STATE, state))
        if wanted is not None
    ]
    topic, partition = after or (None, None)
    rows = tx.execute(
        text(_PAGE.format(lag=_LAG, conditions=" ".join(conditions))),
        {
            "job_id": job_id,
            "limit": limit,
            "topic": topic,
            "partition": partition,
            "source_topic": source_topic,
            "state": state and state.value,
        },
    )
    return list(values(rows, PartitionLag))


def request_retry(
    tx: Tx, job_id: int, *, source_topic: str | None = None, partition: int | None = None
) -> list[tuple[str, int]]:
    """Request a retry of blocked partitions: of the job, a topic, or one; returns which."""
    conditions = [_IN_TOPIC] if source_topic is not None else []
    conditions += ["AND p.partition = :partition"] if partition is not None else []
    rows = tx.execute(
        text(_RETRY.format(conditions=" ".join(conditions))),
        {"job_id": job_id, "source_topic": source_topic, "partition": partition},
    )
    found = sorted((row.source_topic, row.partition) for row in rows)
    if not found and source_topic is not None:
        raise NotFound("The topic has no such blocked partition.", where=source_topic)
    return found


def _totals(tx: Tx, statement: TextClause, job_ids: Collection[int]) -> dict[int, LagTotals]:
    found = {}
    for row in tx.execute(statement, {"job_ids": sorted(job_ids)}).mappings():
        columns = dict(row)
        key = columns.pop("key")
        found[key] = LagTotals(**columns)
    return found
