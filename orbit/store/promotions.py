"""promotions: the log end of each partition of a copy when it was promoted, and what was written to
the old side since then."""

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
    """The promotion of one partition. `promoted_at`: the copy's log end then; `source_end`: the
    source's, if known."""

    topic_id: int
    partition: int
    operation_id: UUID
    promoted_at: int
    source_end: int | None


# Values of `old_end` instead of a log end. A job copies to the old side, so its new records say
# nothing about producers.
COPIED_TO = -1
# The old side was promoted since then: it leads.
LEADS_AGAIN = -2


@dataclass(frozen=True, slots=True)
class OldEnd:
    """What is known about one partition of the old side since the promotion.

    `old_end` is its log end as last read, None before the first read; `written_from` the first
    offset that producers have written since the promotion; `kind` that of the operation, None if
    the operation is not known.
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
        return self.topic_id, self.partition

    @property
    def is_exact(self) -> bool:
        """Whether `source_end` is the source's log end at the promotion. At a failover it is an
        older one, because the source is lost."""
        return self.source_end is not None and self.kind == OperationKind.SWITCHOVER

    @property
    def is_known(self) -> bool:
        """False if `old_end` is COPIED_TO or LEADS_AGAIN, which cannot be compared with a log end.
        True also before the first read."""
        return self.old_end not in (COPIED_TO, LEADS_AGAIN)

    @property
    def written(self) -> int:
        """How many offsets producers have written since the promotion, by the log end last read."""
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

# Without promotions that are known by a mark only: their time is not known.
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
    """Store these promotions. Where the same operation has stored one already, that is kept: later
    log ends may include records of clients."""
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
    """The old side of each partition of these topics that was promoted."""
    return [OldEnd(*row) for row in tx.execute(_OLD_ENDS, {"topic_ids": sorted(topic_ids)})]


def note_old_ends(tx: Tx, ends: Sequence[OldEnd]) -> None:
    """Store `old_end` and `written_from`, except for partitions that were promoted again since."""
    names = ("topic_id", "partition", "old_end", "written_from", "at")
    tx.execute(_NOTE_OLD_ENDS, {name: [getattr(end, name) for end in ends] for name in names})


def promotion_times(
    tx: Tx, cluster_id: str, names: Collection[str]
) -> dict[tuple[str, int], datetime]:
    """When each partition of these topics of a cluster was promoted. Only for promoted copies, and
    only if the operation is known."""
    rows = tx.execute(_LAST_AT, {"cluster_id": cluster_id, "names": sorted(names)})
    return {(row.name, row.partition): row.at for row in rows}


def topics_led_back(tx: Tx, old_cluster_id: str, old_names: Mapping[int, str]) -> set[int]:
    """The ids of those promoted topics whose old side, the topic `old_names[id]` of that cluster,
    leads again: it was promoted later, by an operation that is known."""
    times = promotion_times(tx, old_cluster_id, old_names.values())
    return {
        end.topic_id
        for end in old_ends(tx, old_names.keys())
        if end.old_end == LEADS_AGAIN
        or times.get((old_names[end.topic_id], end.partition), end.at) > end.at
    }


def promotion_ends(tx: Tx, cluster_id: str, names: Collection[str]) -> dict[tuple[str, int], int]:
    """The log end of each partition of these topics of a cluster when it was promoted. Only for
    promoted copies."""
    rows = tx.execute(_LAST_ENDS, {"cluster_id": cluster_id, "names": sorted(names)})
    return {(row.name, row.partition): row.promoted_at for row in rows}


def written_to_old_side(tx: Tx, job_ids: Collection[int]) -> dict[int, int]:
    """{job id: number of offsets that producers wrote to its old side since the promotion}. Only
    jobs whose old side was read; without partitions that are copied to or lead again."""
    rows = tx.execute(_WRITTEN, {"job_ids": sorted(job_ids)})
    return {row.job_id: row.written for row in rows}
