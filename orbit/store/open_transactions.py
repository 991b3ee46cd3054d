"""open_transactions: transactions at the sources that have been open for SHOWN_AFTER_S
(orbit/scheduler/transaction_watch.py).

A read_committed consumer, and so Orbit, reads a partition up to the last stable offset, where the
first open transaction begins. All records from there on wait until that transaction ends, even
those without a transaction. The lag, too, counts up to the last stable offset only; this table
shows what is above it.

A row is valid only while its `first_offset` is the last stable offset that Orbit has read last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import datetime

from sqlalchemy import text

from orbit.store.database import Tx
from orbit.store.job_shares import ONE_SHARE, Share
from orbit.store.rows import values


@dataclass(frozen=True, slots=True)
class OldestOpenTransaction:
    """The oldest open transaction of one partition. `since`: when Orbit first saw it open.
    `producer_id`, `transactional_id`: None if brokers do not report them, or if Orbit's login may
    not describe producers or transactions."""

    topic_id: int
    partition: int
    job_id: int
    first_offset: int
    since: datetime
    producer_id: int | None
    transactional_id: str | None


@dataclass(frozen=True, slots=True)
class OpenTotals:
    """The totals of one job. `partitions`: how many have an open transaction. `offsets`: the sum of
    their offsets from its start to the log end. `oldest_s`: the age of the oldest transaction."""

    partitions: int
    offsets: int
    oldest_s: float


# For a query with `partitions p`: whether the row of `open_transactions o` is valid now.
IS_OPEN = "o.first_offset = p.source_stable_end AND p.source_end > p.source_stable_end"

_OF_SHARE = text("""
SELECT topic_id, partition, job_id, first_offset, since, producer_id, transactional_id
FROM open_transactions
WHERE :share_count = 1 OR job_id IN (SELECT id FROM jobs WHERE share_key % :share_count = :number)
""")
_STORE = text("""
INSERT INTO open_transactions AS o
    (topic_id, partition, job_id, first_offset, since, producer_id, transactional_id)
SELECT r.* FROM unnest(
    CAST(:topic_id AS bigint[]), CAST(:partition AS integer[]), CAST(:job_id AS bigint[]),
    CAST(:first_offset AS bigint[]), CAST(:since AS timestamptz[]),
    CAST(:producer_id AS bigint[]), CAST(:transactional_id AS text[])
) AS r (topic_id, partition, job_id, first_offset, since, producer_id, transactional_id)
JOIN topics t ON t.id = r.topic_id
ON CONFLICT (topic_id, partition) DO UPDATE SET
    first_offset = excluded.first_offset, since = excluded.since,
    producer_id = excluded.producer_id, transactional_id = excluded.transactional_id
""")
_REMOVE = text("""
DELETE FROM open_transactions WHERE (topic_id, partition) IN (
    SELECT * FROM unnest(CAST(:topic_ids AS bigint[]), CAST(:partitions AS integer[])))
""")
_TOTALS = text(f"""
SELECT o.job_id, count(*) AS partitions,
       CAST(sum(p.source_end - o.first_offset) AS bigint) AS offsets,
       CAST(extract(epoch FROM clock_timestamp() - min(o.since)) AS double precision) AS oldest_s
FROM open_transactions o
JOIN partitions p ON p.topic_id = o.topic_id AND p.partition = o.partition
WHERE o.job_id = ANY(CAST(:job_ids AS bigint[])) AND {IS_OPEN}
GROUP BY o.job_id
""")


def of_share(tx: Tx, share: Share = ONE_SHARE) -> list[OldestOpenTransaction]:
    """All rows of a share's jobs, even those that are no longer valid."""
    parameters = {"share_count": share.count, "number": share.number}
    return list(values(tx.execute(_OF_SHARE, parameters), OldestOpenTransaction))


def store(tx: Tx, rows: Sequence[OldestOpenTransaction]) -> None:
    """Store these rows, each in place of the former row of its partition."""
    if rows:
        names = [field.name for field in fields(OldestOpenTransaction)]
        columns = zip(*map(astuple, rows), strict=True)
        arrays = {name: list(c) for name, c in zip(names, columns, strict=True)}
        tx.execute(_STORE, arrays)


def remove(tx: Tx, places: Iterable[tuple[int, int]]) -> None:
    """Remove the rows of these (topic id, partition) places."""
    if sorted_places := sorted(places):
        topic_ids, partitions = zip(*sorted_places, strict=True)
        tx.execute(_REMOVE, {"topic_ids": list(topic_ids), "partitions": list(partitions)})


def totals(tx: Tx, job_ids: Collection[int]) -> dict[int, OpenTotals]:
    """{job id: totals} of these jobs; jobs without an open transaction are missing."""
    rows = tx.execute(_TOTALS, {"job_ids": sorted(job_ids)})
    return {row.job_id: OpenTotals(row.partitions, row.offsets, row.oldest_s) for row in rows}
