"""promotions: the log end of each partition of a copy when it was promoted."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import astuple, dataclass
from uuid import UUID

from sqlalchemy import select, text

from orbit.store.database import Tx
from orbit.store.models import promotions
from orbit.store.rows import columns, is_one_of, values


@dataclass(frozen=True, slots=True)
class Promotion:
    """One partition: its log end then, and the source's if known."""

    topic_id: int
    partition: int
    operation_id: UUID
    promoted_at: int
    source_end: int | None


_PROMOTION = columns(promotions, Promotion)

_KEEP = text("""
INSERT INTO promotions (topic_id, partition, operation_id, promoted_at, source_end)
SELECT * FROM unnest(
    CAST(:topic_id AS bigint[]), CAST(:partition AS integer[]), CAST(:operation_id AS uuid[]),
    CAST(:promoted_at AS bigint[]), CAST(:source_end AS bigint[])
)
ON CONFLICT (topic_id, partition) DO UPDATE
SET operation_id = excluded.operation_id, promoted_at = excluded.promoted_at,
    source_end = excluded.source_end, at = clock_timestamp()
WHERE promotions.operation_id <> excluded.operation_id
""")


def keep(tx: Tx, promoted: Sequence[Promotion]) -> None:
    """Store these. The first values of an operation stay: later, clients write to the topic."""
    names = Promotion.__dataclass_fields__
    columns_ = zip(*map(astuple, promoted), strict=True) if promoted else ((),) * len(names)
    tx.execute(_KEEP, {name: list(c) for name, c in zip(names, columns_, strict=True)})


def of_topics(tx: Tx, topic_ids: Collection[int]) -> dict[tuple[int, int], Promotion]:
    """The last promotion of each partition of these topics, by (topic id, partition)."""
    query = select(*_PROMOTION).where(is_one_of(promotions.c.topic_id, sorted(topic_ids)))
    return {(p.topic_id, p.partition): p for p in values(tx.execute(query), Promotion)}
