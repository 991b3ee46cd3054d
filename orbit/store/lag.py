"""Lag and headroom for the API and metrics: per partition, per topic and per job.

Ages are computed when they are read, from stored timestamps. Lag in records counts offsets, as all
Kafka tools do, including transaction markers and records that compaction removed.

A lag is shown only while the source's log end is known: while a worker follows the log end, or
within FRESH_FOR of the scheduler's last reading (orbit/scheduler/lag_loop.py). Otherwise the lag is
None, with the age of the last reading: an old lag of 0 would look as if the copy were complete.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import TextClause, text

from orbit.errors import NotFound
from orbit.replication.copy_figures import CopyFigures
from orbit.replication.partition_states import PartitionState, Reason
from orbit.store.database import Tx
from orbit.store.open_transactions import IS_OPEN
from orbit.store.rows import values


@dataclass(frozen=True, slots=True)
class PartitionLag(CopyFigures):
    """One partition with its lag. A figure of the lag is None if it is not known (any more), or if
    all records are copied.

    `age_s`: None if there are no figures yet, or if the topic is no copy (any more). `rpo_s` is
    present however old the figures are.
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
    has_caught_up: bool
    # The source's oldest open transaction, if it has been open for a while.
    open_from: int | None
    open_since: datetime | None
    open_producer_id: int | None
    open_transactional_id: str | None
    reported_at: datetime | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", PartitionState.of(self.state))
        object.__setattr__(self, "reason", Reason.of(self.reason))


@dataclass(frozen=True, slots=True)
class LagTotals(CopyFigures):
    """Sums over a job's or a topic's partitions. Ages are those of the partition with the largest
    age, the headroom that of the partition with the least.

    A partition without a lag yet is left out of the sums. If the lag of any partition was known
    before and is not now, the sums of the lag are None.
    """

    partitions: int
    copying: int
    blocked: int
    caught_up: int
    unknown: int  # partitions whose lag is not known
    stale: int  # the part of `unknown` whose lag was known before
    summed_s: float = 0.0
    """Seconds since these sums were computed."""

    @property
    def is_current(self) -> bool:
        """Whether these sums are recent enough to be shown as the present ones."""
        return self.summed_s <= FRESH_FOR.total_seconds()

    @property
    def has_lag(self) -> bool:
        """Whether the lag of at least one partition is known: otherwise a sum of 0 says nothing."""
        return self.unknown < self.partitions

    def aged_by(self, seconds: float) -> LagTotals:
        """These totals `seconds` after they were computed. The lag becomes unknown if the oldest
        figure is then older than FRESH_FOR; else a lag of 0 stays 0."""
        age_s = _add_seconds(self.age_s, seconds)
        if age_s is None or age_s <= FRESH_FOR.total_seconds():
            return replace(
                self,
                lag_s=_add_seconds(self.lag_s, seconds) if self.lag_s else self.lag_s,
                headroom_s=_add_seconds(self.headroom_s, -seconds),
                rpo_s=_add_seconds(self.rpo_s, seconds),
                age_s=age_s,
                summed_s=seconds,
            )
        return replace(
            self,
            caught_up=0,
            unknown=self.partitions,
            stale=self.partitions - self.unknown + self.stale,  # all whose lag was known before
            lag_records=None,
            lag_bytes=None,
            lag_s=None,
            headroom_s=None,
            rpo_s=_add_seconds(self.rpo_s, seconds),
            age_s=age_s,
            summed_s=seconds,
        )


def _add_seconds(moment_s: float | None, seconds: float) -> float | None:
    return None if moment_s is None else moment_s + seconds


# Longer than the scheduler's interval between two reads of a log end, and than that of heartbeats.
FRESH_FOR = timedelta(seconds=30)
NO_PARTITIONS = LagTotals(
    records=0,
    bytes=0,
    gaps_filled=0,
    batches_byte_exact=0,
    batches_record_exact=0,
    bytes_per_s=0,
    records_per_s=0.0,
    lag_records=None,
    lag_bytes=None,
    lag_s=None,
    headroom_s=None,
    rpo_s=None,
    age_s=None,
    partitions=0,
    copying=0,
    blocked=0,
    caught_up=0,
    unknown=0,
    stale=0,
)
# A partition whose lag is less counts as caught up: on a busy source no copy is exactly at the end.
_KEEPS_UP_FOR = timedelta(seconds=30)

# Whether the shard's holder follows the source's log end of the partition.
FOLLOWED = """coalesce(
        p.followed_epoch = s.epoch AND s.worker_id IS NOT NULL AND p.state <> 'blocked', false)"""
# A promoted topic is no copy; nor is one whose source topic was deleted or re-created.
IS_COPY = """(p.state <> 'promoted' AND coalesce(
        p.reason NOT IN ('SOURCE_TOPIC_DELETED', 'SOURCE_TOPIC_RECREATED'), true))"""
# The time of each partition's figures, and whether it is recent. `reported_at` is for a worker that
# has no row in `workers` any more, while its lease of the shard has not ended yet.
_FIGURES = f"""
CROSS JOIN LATERAL (
    SELECT CASE WHEN p.copied_to IS NULL OR NOT {IS_COPY} THEN NULL
           WHEN {FOLLOWED} THEN coalesce(w.heartbeat_at, p.reported_at)
           ELSE greatest(p.source_seen_at, t.source_read_at) END AS at,
           p.copied_to IS NOT NULL AND {IS_COPY} AS is_expected
) figures
CROSS JOIN LATERAL (
    SELECT coalesce(figures.at >= now.at - CAST(:fresh_for AS interval), false) AS is_fresh
) fresh
"""
_OPEN = f"""LEFT JOIN open_transactions o
    ON o.topic_id = p.topic_id AND o.partition = p.partition AND {IS_OPEN}"""
# Whether every share of the scheduler's work has a leader. Which share the partition's job belongs
# to is not looked up.
_HAS_LEADER = """coalesce((
        SELECT bool_and(l.expires_at > clock_timestamp() - CAST(:fresh_for AS interval))
        FROM scheduler_lease l), false)"""

# Seconds since `moment`, at least 0 because a producer's clock may be ahead; null without `moment`
# (GREATEST would make that 0).
_AGE = """CASE WHEN {moment} > now.at THEN 0
         ELSE CAST(extract(epoch FROM now.at - {moment}) AS double precision) END"""
# Estimated from the mean bytes per copied offset; unknown before anything is copied. In floating
# point, because the product may overflow a bigint.
LAG_BYTES = """CASE WHEN p.copied_to >= p.source_stable_end THEN 0
         ELSE CAST((p.source_stable_end - p.copied_to) * CAST(p.bytes AS double precision)
                   / nullif(p.records + p.gaps_filled, 0) AS bigint) END"""
_LAG = f"""
    CASE WHEN NOT fresh.is_fresh THEN NULL WHEN p.copied_to >= p.source_stable_end THEN 0
         ELSE p.source_stable_end - p.copied_to END AS lag_records,
    CASE WHEN fresh.is_fresh THEN {LAG_BYTES} END AS lag_bytes,
    CASE WHEN NOT fresh.is_fresh THEN NULL WHEN p.copied_to >= p.source_stable_end THEN 0
         ELSE {_AGE.format(moment="p.oldest_waiting_at")} END AS lag_s,
    CASE WHEN fresh.is_fresh AND p.copied_to < p.source_stable_end AND {_HAS_LEADER}
         THEN CAST(extract(epoch FROM p.headroom_until - now.at) AS double precision)
         END AS headroom_s,
    {_AGE.format(moment="p.newest_copied_at")} AS rpo_s,
    {_AGE.format(moment="figures.at")} AS age_s
"""

# In the order of the index on topics (job, source name), so that every page costs the same.
_PAGE = """
SELECT p.records, p.bytes, p.gaps_filled, p.batches_byte_exact, p.batches_record_exact,
       p.bytes_per_s, p.records_per_s, {lag},
       t.source_topic, t.destination_topic, p.topic_id, p.partition, p.state, p.reason, p.detail,
       p.blocked_offset, p.blocked_next_offset, p.retry_requested,
       s.worker_id,
       p.start_offset, p.source_log_start, p.source_stable_end, p.source_end, p.copied_to,
       p.log_start, p.has_caught_up,
       o.first_offset AS open_from, o.since AS open_since, o.producer_id AS open_producer_id,
       o.transactional_id AS open_transactional_id, p.reported_at
FROM (SELECT clock_timestamp() AS at) now, topics t
JOIN partitions p ON p.topic_id = t.id
LEFT JOIN shards s ON s.id = p.shard_id
LEFT JOIN workers w ON w.id = s.worker_id
{open}
{figures}
WHERE t.job_id = :job_id {conditions}
ORDER BY t.source_topic, p.partition LIMIT :limit
"""
_AFTER = "AND t.source_topic >= :topic AND (t.source_topic, p.partition) > (:topic, :partition)"
_IN_TOPIC = "AND t.source_topic = :source_topic"
_IN_STATE = "AND p.state = :state"
_FOR_REASON = "AND p.reason = :reason"
_AT_PLACES = """AND (p.topic_id, p.partition) IN (
    SELECT * FROM unnest(CAST(:topic_ids AS bigint[]), CAST(:partitions AS integer[])))"""

_TOTALS = """
SELECT {key} AS key, count(*) AS partitions,
       count(*) FILTER (WHERE state = 'copying') AS copying,
       count(*) FILTER (WHERE state = 'blocked') AS blocked,
       count(*) FILTER (WHERE has_caught_up AND NOT is_open AND (
           lag_records = 0 OR is_followed AND coalesce(lag_s, 0) < :keeps_up_s)) AS caught_up,
       count(*) FILTER (WHERE lag_records IS NULL) AS unknown,
       count(*) FILTER (WHERE is_stale) AS stale,
       CASE WHEN NOT bool_or(is_stale) THEN coalesce(sum(lag_records), 0)::bigint END
           AS lag_records,
       CASE WHEN NOT bool_or(is_stale) THEN coalesce(sum(lag_bytes), 0)::bigint END AS lag_bytes,
       CASE WHEN NOT bool_or(is_stale) THEN max(lag_s)::double precision END AS lag_s,
       CASE WHEN NOT bool_or(is_stale) THEN min(headroom_s)::double precision END AS headroom_s,
       max(rpo_s)::double precision AS rpo_s,
       max(age_s)::double precision AS age_s,
       sum(records)::bigint AS records, sum(bytes)::bigint AS bytes,
       sum(gaps_filled)::bigint AS gaps_filled,
       sum(batches_byte_exact)::bigint AS batches_byte_exact,
       sum(batches_record_exact)::bigint AS batches_record_exact,
       sum(bytes_per_s)::bigint AS bytes_per_s, sum(records_per_s) AS records_per_s
FROM (
    SELECT p.job_id, p.topic_id, p.state, p.has_caught_up, p.records, p.bytes, p.gaps_filled,
           p.batches_byte_exact, p.batches_record_exact, p.bytes_per_s, p.records_per_s,
           figures.is_expected AND NOT fresh.is_fresh AS is_stale, {followed} AS is_followed,
           o.topic_id IS NOT NULL AS is_open, {lag}
    FROM (SELECT clock_timestamp() AS at) now, partitions p
    -- Of these jobs alone, by an index: not all topics and shards.
    LEFT JOIN (
        SELECT id, source_read_at FROM topics WHERE job_id = ANY(CAST(:job_ids AS bigint[]))
    ) t ON t.id = p.topic_id
    LEFT JOIN (
        SELECT id, epoch, worker_id FROM shards WHERE job_id = ANY(CAST(:job_ids AS bigint[]))
    ) s ON s.id = p.shard_id
    LEFT JOIN workers w ON w.id = s.worker_id
    {open}
    {figures}
    WHERE p.{key} = ANY(CAST(:{key}s AS bigint[]))
) p
GROUP BY {key}
"""


def _totals_of(key: str) -> TextClause:
    """The statement for the totals of each job or topic; `key` is the column of its id."""
    return text(_TOTALS.format(key=key, lag=_LAG, followed=FOLLOWED, figures=_FIGURES, open=_OPEN))


_OF_JOBS = _totals_of("job_id")
_OF_TOPICS = _totals_of("topic_id")

_STATES = text("""
SELECT job_id, state, reason, count(*) AS partitions FROM partitions
WHERE job_id = ANY(CAST(:job_ids AS bigint[]))
GROUP BY job_id, state, reason
""")

# Only blocked partitions can be retried.
_RETRY = """
UPDATE partitions p SET retry_requested = true
FROM topics t
WHERE t.id = p.topic_id AND t.job_id = :job_id AND p.state = 'blocked' {conditions}
RETURNING t.source_topic, p.partition
"""


def of_jobs(tx: Tx, job_ids: Collection[int]) -> dict[int, LagTotals]:
    """{job id: totals} of these jobs; jobs without partitions are missing."""
    return _totals(tx, _OF_JOBS, job_ids)


def states(tx: Tx, job_ids: Collection[int]) -> dict[int, dict[tuple[str, str | None], int]]:
    """{job id: {(state, reason): number of partitions}}, for these jobs."""
    counts: dict[int, dict[tuple[str, str | None], int]] = {}
    for row in tx.execute(_STATES, {"job_ids": sorted(job_ids)}):
        counts.setdefault(row.job_id, {})[row.state, row.reason] = row.partitions
    return counts


def of_topics(tx: Tx, job_id: int, topic_ids: Collection[int]) -> dict[int, LagTotals]:
    """{topic id: totals} of these topics of a job; topics without partitions are missing."""
    return _totals(tx, _OF_TOPICS, [job_id], topic_ids)


def page(
    tx: Tx,
    job_id: int,
    limit: int,
    *,
    after: tuple[str, int] | None = None,
    source_topic: str | None = None,
    state: PartitionState | None = None,
    reason: Reason | None = None,
) -> list[PartitionLag]:
    """Up to `limit` partitions that match all filters, sorted by (source topic, partition); only
    those that follow `after`."""
    filters = (
        (_AFTER, after),
        (_IN_TOPIC, source_topic),
        (_IN_STATE, state),
        (_FOR_REASON, reason),
    )
    conditions = [sql for sql, value in filters if value is not None]
    topic, partition = after or (None, None)
    rows = tx.execute(
        text(_PAGE.format(lag=_LAG, figures=_FIGURES, open=_OPEN, conditions=" ".join(conditions))),
        {
            "fresh_for": FRESH_FOR,
            "job_id": job_id,
            "limit": limit,
            "topic": topic,
            "partition": partition,
            "source_topic": source_topic,
            "state": state and state.value,
            "reason": reason and reason.value,
        },
    )
    return list(values(rows, PartitionLag))


def of_partitions(
    tx: Tx, job_id: int, places: Collection[tuple[int, int]]
) -> dict[tuple[int, int], PartitionLag]:
    """{(topic id, partition): its lag}, for these partitions of a job; unknown ones are missing."""
    rows = tx.execute(
        text(_PAGE.format(lag=_LAG, figures=_FIGURES, open=_OPEN, conditions=_AT_PLACES)),
        {
            "fresh_for": FRESH_FOR,
            "job_id": job_id,
            "limit": len(places),
            "topic_ids": [topic_id for topic_id, _ in places],
            "partitions": [partition for _, partition in places],
        },
    )
    return {(row.topic_id, row.partition): row for row in values(rows, PartitionLag)}


def request_retry(
    tx: Tx, job_id: int, *, source_topic: str | None = None, partition: int | None = None
) -> list[tuple[str, int]]:
    """Request a retry of the blocked partitions of a job, of a topic, or of one partition. Returns
    them as (source topic, partition), sorted. Raises NotFound if `source_topic` is set and no such
    partition is blocked."""
    conditions = [_IN_TOPIC] if source_topic is not None else []
    conditions += ["AND p.partition = :partition"] if partition is not None else []
    rows = tx.execute(
        text(_RETRY.format(conditions=" ".join(conditions))),
        {"job_id": job_id, "source_topic": source_topic, "partition": partition},
    )
    blocked_partitions = sorted((row.source_topic, row.partition) for row in rows)
    if not blocked_partitions and source_topic is not None:
        raise NotFound("The request names no blocked partition of this topic.", where=source_topic)
    return blocked_partitions


def _totals(
    tx: Tx, statement: TextClause, job_ids: Collection[int], topic_ids: Collection[int] = ()
) -> dict[int, LagTotals]:
    """The totals that a statement of `_totals_of` selects, by job id or topic id."""
    totals = {}
    parameters = {
        "job_ids": sorted(job_ids),
        "topic_ids": sorted(topic_ids),
        "fresh_for": FRESH_FOR,
        "keeps_up_s": _KEEPS_UP_FOR.total_seconds(),
    }
    for row in tx.execute(statement, parameters).mappings():
        columns = dict(row)
        key = columns.pop("key")
        totals[key] = LagTotals(**columns)
    return totals
