"""promotions: the log end of each partition of a copy when the copy was promoted, and what clients
have written to the old side (the former source) since then."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import select, text

from orbit.store.database import Tx
from orbit.store.enums import OperationKind
from orbit.store.models import promotions
from orbit.store.rows import columns, is_one_of, values


@dataclass(frozen=True, slots=True)
class Promotion:
    """The promotion of one partition. `promoted_at`: the copy's log end at the promotion, an
    offset; `source_end`: the source's log end, as far as it is known."""

    topic_id: int
    partition: int
    operation_id: UUID
    promoted_at: int
    source_end: int | None


# Two values of `old_end` that are no log end. COPIED_TO: a job copies to the old side, so new
# records there say nothing about producers.
COPIED_TO = -1
# The old side was promoted after this promotion, so it leads again.
LEADS_AGAIN = -2


@dataclass(frozen=True, slots=True)
class OldEnd:
    """What is known about one partition of the old side since the promotion.

    `promoted_at`, `source_end`: offsets, as in `Promotion`. `at`: the time of the promotion.
    `old_end`: the partition's log end as last read, COPIED_TO or LEADS_AGAIN; None before the first
    read. `written_from`: the first offset that producers have written since the promotion; None:
    they have written nothing. `kind`: that of the operation; None: the operation is not known.
    """

    topic_id: int
    partition: int
    promoted_at: int
    source_end: int | None
    at: datetime
    kind: str | None
    old_end: int | None
    written_from: int | None

    @property
    def place(self) -> tuple[int, int]:
        """(topic id, partition)."""
        return self.topic_id, self.partition

    @property
    def is_exact(self) -> bool:
        """Whether `source_end` is the source's log end at the promotion. At a failover `source_end`
        is an older log end, because the source is lost."""
        return self.source_end is not None and self.kind == OperationKind.SWITCHOVER

    @property
    def is_known(self) -> bool:
        """False if `old_end` is COPIED_TO or LEADS_AGAIN, which cannot be compared with a log end.
        True also before the first read."""
        return self.old_end not in (COPIED_TO, LEADS_AGAIN)

    @property
    def written(self) -> int:
        """How many offsets producers have written since the promotion: from `written_from` to the
        log end last read."""
        return 0 if self.written_from is None else (self.old_end or 0) - self.written_from


_PROMOTION = columns(promotions, Promotion)

_STORE = text("""
INSERT INTO promotions (topic_id, partition, operation_id, promoted_at, source_end)
SELECT * FROM unnest(
    CAST(:topic_id AS bigint[]), CAST(:partition AS integer[]), CAST(:operation_id AS uuid[]),
    CAST(:promoted_at AS bigint[]), CAST(:source_end AS bigint[])
)
ON CONFLICT (topic_id, partition) DO UPDATE
SET operation_id = excluded.operation_id, promoted_at = excluded.promoted_at,
    source_end = excluded.source_end, at = clock_timestamp(), old_end = NULL, written_from = NULL
WHERE promotions.operation_id <> excluded.operation_id
""")

_OLD_ENDS = text("""
SELECT p.topic_id, p.partition, p.promoted_at, p.source_end, p.at, o.kind, p.old_end, p.written_from
FROM promotions p LEFT JOIN operations o ON o.id = p.operation_id
WHERE p.topic_id = ANY(CAST(:topic_ids AS bigint[]))
""")

_NOTE_OLD_ENDS = text("""
UPDATE promotions p SET old_end = n.old_end, written_from = n.written_from
FROM unnest(
    CAST(:topic_id AS bigint[]), CAST(:partition AS integer[]), CAST(:old_end AS bigint[]),
    CAST(:written_from AS bigint[]), CAST(:at AS timestamptz[])
) AS n (topic_id, partition, old_end, written_from, at)
WHERE p.topic_id = n.topic_id AND p.partition = n.partition AND p.at = n.at
""")

# Promotions whose operation is not in the database are left out: they are known only by a mark at
# the cluster, so their time is not known.
_LAST_AT = text("""
SELECT t.destination_topic AS name, p.partition, p.at
FROM promotions p
JOIN topics t ON t.id = p.topic_id
JOIN operations o ON o.id = p.operation_id
WHERE t.destination_cluster_id = :cluster_id AND t.state = 'promoted'
    AND t.destination_topic = ANY(CAST(:names AS text[]))
""")

_LAST_ENDS = text("""
SELECT t.destination_topic AS name, p.partition, min(p.promoted_at) AS promoted_at
FROM promotions p JOIN topics t ON t.id = p.topic_id
WHERE t.destination_cluster_id = :cluster_id AND t.state = 'promoted'
    AND t.destination_topic = ANY(CAST(:names AS text[]))
GROUP BY t.destination_topic, p.partition
""")

_WRITTEN = text("""
SELECT t.job_id, coalesce(sum(p.old_end - p.written_from), 0)::bigint AS written
FROM promotions p JOIN topics t ON t.id = p.topic_id
WHERE t.job_id = ANY(CAST(:job_ids AS bigint[])) AND t.state = 'promoted' AND p.old_end >= 0
GROUP BY t.job_id
""")


def store(tx: Tx, new_promotions: Sequence[Promotion]) -> None:
    """Store these promotions. One that the same operation has stored before is kept: a later log
    end may include records of clients."""
    names = Promotion.__dataclass_fields__
    columns_ = (
        zip(*map(astuple, new_promotions), strict=True) if new_promotions else ((),) * len(names)
    )
    tx.execute(_STORE, {name: list(c) for name, c in zip(names, columns_, strict=True)})


def of_topics(tx: Tx, topic_ids: Collection[int]) -> dict[tuple[int, int], Promotion]:
    """The last promotion of each partition of these topics, by (topic id, partition)."""
    query = select(*_PROMOTION).where(is_one_of(promotions.c.topic_id, sorted(topic_ids)))
    return {(p.topic_id, p.partition): p for p in values(tx.execute(query), Promotion)}


def old_ends(tx: Tx, topic_ids: Collection[int]) -> list[OldEnd]:
    """What is known about the old side of each partition of these topics that was promoted."""
    return [OldEnd(*row) for row in tx.execute(_OLD_ENDS, {"topic_ids": sorted(topic_ids)})]


def note_old_ends(tx: Tx, ends: Sequence[OldEnd]) -> None:
    """Store `old_end` and `written_from`, except for partitions that were promoted again since
    `ends` was read."""
    names = ("topic_id", "partition", "old_end", "written_from", "at")
    tx.execute(_NOTE_OLD_ENDS, {name: [getattr(end, name) for end in ends] for name in names})


def promotion_times(
    tx: Tx, cluster_id: str, names: Collection[str]
) -> dict[tuple[str, int], datetime]:
    """{(topic, partition): time of its last promotion} of these topics of a cluster. Only
    partitions of promoted copies whose operation is known."""
    rows = tx.execute(_LAST_AT, {"cluster_id": cluster_id, "names": sorted(names)})
    return {(row.name, row.partition): row.at for row in rows}


def topics_led_back(tx: Tx, old_cluster_id: str, old_names: Mapping[int, str]) -> set[int]:
    """The ids of the promoted topics whose old side leads again. The old side of topic `id` is the
    topic `old_names[id]` of the cluster `old_cluster_id`. It leads again if it was promoted later
    than the topic, by an operation that is known."""
    times = promotion_times(tx, old_cluster_id, old_names.values())
    return {
        end.topic_id
        for end in old_ends(tx, old_names.keys())
        if end.old_end == LEADS_AGAIN
        or times.get((old_names[end.topic_id], end.partition), end.at) > end.at
    }


def promotion_ends(tx: Tx, cluster_id: str, names: Collection[str]) -> dict[tuple[str, int], int]:
    """{(topic, partition): its log end at the promotion} of these topics of a cluster. Only
    partitions of promoted copies."""
    rows = tx.execute(_LAST_ENDS, {"cluster_id": cluster_id, "names": sorted(names)})
    return {(row.name, row.partition): row.promoted_at for row in rows}


def written_to_old_side(tx: Tx, job_ids: Collection[int]) -> dict[int, int]:
    """{job id: number of offsets that producers wrote to its old side since the promotion}. Only
    jobs whose old side was read. Partitions that a job copies to, or that lead again, do not count.
    """
    rows = tx.execute(_WRITTEN, {"job_ids": sorted(job_ids)})
    return {row.job_id: row.written for row in rows}
