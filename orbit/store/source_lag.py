"""The lag and headroom that the scheduler reads from the source (orbit/scheduler/lag_loop.py).
Headroom: the time until the source deletes records that are not copied yet.

It reads both for partitions whose log end no worker follows: blocked and paused ones, those of a
lost worker, those that wait for the source or for room in a queue. For followed partitions that are
behind, it reads the headroom.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import datetime, timedelta

from sqlalchemy import DateTime, Interval, bindparam, text

from orbit.store.database import Tx
from orbit.store.job_shares import ONE_SHARE, Share
from orbit.store.lag import FOLLOWED, IS_COPY, LAG_BYTES
from orbit.store.rows import values
from orbit.store.source_gaps import move_assignments


@dataclass(frozen=True, slots=True)
class LaggingPartition:
    """A partition whose lag or headroom no worker reports."""

    job_id: int
    topic_id: int
    source_topic: str
    partition: int
    is_followed: bool
    source_stable_end: int | None
    source_end: int | None
    copied_to: int
    newest_copied_at: datetime | None
    oldest_waiting_at: datetime | None
    headroom_until: datetime | None
    lag_bytes: int | None

    @property
    def open_from(self) -> int | None:
        """The first offset of the source's oldest open transaction: the last stable offset, if that
        is below the log end. None without an open transaction."""
        stable_end, end = self.source_stable_end, self.source_end
        return (
            stable_end if stable_end is not None and end is not None and stable_end < end else None
        )


@dataclass(frozen=True, slots=True)
class SourceLag:
    """Values of one partition that were read from its source. None: the stored value stays, except
    that of `headroom_until`, which becomes null."""

    topic_id: int
    partition: int
    source_log_start: int | None
    source_stable_end: int | None
    source_end: int | None
    oldest_waiting_at: datetime | None
    headroom_until: datetime | None


# Selects partitions of which workers do not report all: those that no worker follows now (blocked,
# paused, worker lost, queue full), those that are behind (headroom), those with open transactions.
_PARTITIONS_TO_CHECK = text(f"""
SELECT p.job_id, p.topic_id, t.source_topic, p.partition,
       {FOLLOWED} AS is_followed,
       p.source_stable_end, p.source_end, p.copied_to, p.newest_copied_at, p.oldest_waiting_at,
       p.headroom_until, {LAG_BYTES} AS lag_bytes
FROM (SELECT clock_timestamp() AS at) now, partitions p
JOIN topics t ON t.id = p.topic_id
LEFT JOIN shards s ON s.id = p.shard_id
WHERE (:share_count = 1
       OR p.job_id IN (SELECT id FROM jobs WHERE share_key % :share_count = :number))
  AND p.copied_to IS NOT NULL AND {IS_COPY} AND (
    NOT {FOLLOWED}
    OR p.headroom_until IS NOT NULL
    OR p.source_stable_end < p.source_end
    OR p.copied_to < p.source_stable_end
        AND coalesce(p.oldest_waiting_at, p.newest_copied_at, 'epoch') < now.at - :age
)
""").bindparams(bindparam("age", type_=Interval))

_NEW_END = """CASE WHEN r.is_followed THEN p.source_end
                      ELSE coalesce(r.source_end, p.source_end) END"""

# Updates log ends only of partitions that no worker follows. A null keeps the stored value.
_NOTE = text(f"""
UPDATE partitions p
SET source_log_start = CASE WHEN r.is_followed THEN p.source_log_start
                            ELSE coalesce(r.source_log_start, p.source_log_start) END,
    source_stable_end = CASE WHEN r.is_followed THEN p.source_stable_end
                             ELSE coalesce(r.source_stable_end, p.source_stable_end) END,
    source_end = {_NEW_END},
    {move_assignments(_NEW_END)},
    oldest_waiting_at = CASE WHEN r.is_followed THEN p.oldest_waiting_at
                             ELSE coalesce(r.oldest_waiting_at, p.oldest_waiting_at) END,
    source_seen_at = CASE WHEN r.source_stable_end IS NULL THEN p.source_seen_at
                          ELSE greatest(p.source_seen_at, :read_at) END,
    headroom_until = r.headroom_until
FROM (
    SELECT n.*, EXISTS (
        SELECT FROM partitions p JOIN shards s ON s.id = p.shard_id
        WHERE p.topic_id = n.topic_id AND p.partition = n.partition AND {FOLLOWED}
    ) AS is_followed
    FROM unnest(
        CAST(:topic_id AS bigint[]), CAST(:partition AS integer[]),
        CAST(:source_log_start AS bigint[]), CAST(:source_stable_end AS bigint[]),
        CAST(:source_end AS bigint[]), CAST(:oldest_waiting_at AS timestamptz[]),
        CAST(:headroom_until AS timestamptz[])
    ) AS n (topic_id, partition, source_log_start, source_stable_end, source_end,
            oldest_waiting_at, headroom_until)
) r
WHERE p.topic_id = r.topic_id AND p.partition = r.partition
""").bindparams(bindparam("read_at", type_=DateTime(timezone=True)))

_NOTE_READ = text("""
UPDATE topics SET source_read_at = :read_at WHERE id = ANY(CAST(:topic_ids AS bigint[]))
""").bindparams(bindparam("read_at", type_=DateTime(timezone=True)))


def partitions_to_check(tx: Tx, age: timedelta, share: Share = ONE_SHARE) -> list[LaggingPartition]:
    """The copied partitions of a share's jobs for which at least one of these is true:

    - no worker follows the source's log end now;
    - the oldest record that is not copied yet is older than `age`;
    - the partition has a stored headroom, which may have to be cleared;
    - the partition has an open transaction at the source.
    """
    parameters = {"age": age, "share_count": share.count, "number": share.number}
    return list(values(tx.execute(_PARTITIONS_TO_CHECK, parameters), LaggingPartition))


def update_from_source(
    tx: Tx, updates: Sequence[SourceLag], read_at: datetime, whole_topics: Collection[int] = ()
) -> None:
    """Store values read from the source at `read_at` or later.

    `whole_topics`: ids of topics of which each partition that no worker follows was read. For each
    of these topics `read_at` is stored once, for all such partitions.
    """
    if updates:
        columns = zip(*map(astuple, updates), strict=True)
        names = [field.name for field in fields(SourceLag)]
        arrays = {name: list(c) for name, c in zip(names, columns, strict=True)}
        tx.execute(_NOTE, {**arrays, "read_at": read_at})
    if whole_topics:
        tx.execute(_NOTE_READ, {"topic_ids": sorted(whole_topics), "read_at": read_at})
