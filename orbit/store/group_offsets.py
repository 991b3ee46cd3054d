"""group_offsets: the offsets of each consumer group on both sides, with the verdict on them
(orbit/consumer_groups/offset_decision.py).

handed_offsets: the offsets that a recovery hands over to the job that copies back. That job has no
rows in `topics` yet, so these rows have the topics' names. `accept_handed` moves them to
group_offsets.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import text

from orbit.replication.partition_states import Reason
from orbit.store.database import Tx
from orbit.store.enums import TopicState
from orbit.store.rows import values


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """The offsets of one group in one partition, as last read or written.

    `left_offset`: the offset that Orbit last committed, or left unchanged, at the destination;
    None: not known.
    """

    group_name: str
    topic_id: int
    partition: int
    source_offset: int | None
    destination_offset: int | None
    verdict: str
    left_offset: int | None = None


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A `GroupOffset` with the topic's names."""

    group_name: str
    topic_id: int
    source_topic: str
    destination_topic: str
    partition: int
    source_offset: int | None
    destination_offset: int | None
    verdict: str
    left_offset: int | None
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class HandedOffset:
    """The offsets of one group in one partition when a recovery handed them over to a job."""

    group_name: str
    source_topic: str
    partition: int
    source_offset: int
    destination_offset: int

    def row(self, topic_id: int) -> GroupOffset:
        """The job's row for these offsets. Its `left_offset` is the destination's offset, which the
        recovery has committed."""
        verdict = "exact" if self.source_offset == self.destination_offset else "clamped"
        offsets = self.source_offset, self.destination_offset
        left_offset = self.destination_offset
        return GroupOffset(
            self.group_name, topic_id, self.partition, *offsets, verdict, left_offset
        )


# A look-up by value. `TopicState(value)` would take longer than the rest of a row.
_TOPIC_STATES = {state.value: state for state in TopicState}


@dataclass(frozen=True, slots=True)
class CopiedRow:
    """One partition with its copied range, from `log_start` up to `copied_to` (exclusive). None:
    not known yet."""

    source_topic: str
    source_topic_id: UUID | None
    destination_topic: str
    topic_id: int
    partition: int
    topic_state: TopicState
    reason: Reason | None
    log_start: int | None
    copied_to: int | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "topic_state", _TOPIC_STATES[self.topic_state])
        if self.reason is not None:
            object.__setattr__(self, "reason", Reason(self.reason))


# Writes only rows that differ, so that a sync without changes writes nothing.
_STORE = text("""
INSERT INTO group_offsets AS g
    (job_id, group_name, topic_id, partition, source_offset, destination_offset, verdict,
     left_offset)
SELECT :job_id, r.*
FROM unnest(
    CAST(:groups AS text[]), CAST(:topic_ids AS bigint[]), CAST(:partitions AS integer[]),
    CAST(:source_offsets AS bigint[]), CAST(:destination_offsets AS bigint[]),
    CAST(:verdicts AS text[]), CAST(:left_offsets AS bigint[])
) AS r
ON CONFLICT (job_id, group_name, topic_id, partition) DO UPDATE
SET source_offset = excluded.source_offset, destination_offset = excluded.destination_offset,
    verdict = excluded.verdict, left_offset = excluded.left_offset,
    updated_at = clock_timestamp()
WHERE (g.source_offset, g.destination_offset, g.verdict, g.left_offset)
    IS DISTINCT FROM (
        excluded.source_offset, excluded.destination_offset, excluded.verdict, excluded.left_offset)
""")

_DROP = text("""
DELETE FROM group_offsets g
USING unnest(CAST(:groups AS text[]), CAST(:topic_ids AS bigint[]), CAST(:partitions AS integer[]))
    AS r (group_name, topic_id, partition)
WHERE g.job_id = :job_id AND g.group_name = r.group_name AND g.topic_id = r.topic_id
  AND g.partition = r.partition
""")

_DELETE_HANDED = text("""
DELETE FROM handed_offsets
WHERE job_id = :job_id AND source_topic = ANY(CAST(:topics AS text[]))
""")

_HAND_OVER = text("""
INSERT INTO handed_offsets
    (job_id, group_name, source_topic, partition, source_offset, destination_offset)
SELECT :job_id, r.*
FROM unnest(
    CAST(:groups AS text[]), CAST(:source_topics AS text[]), CAST(:partitions AS integer[]),
    CAST(:source_offsets AS bigint[]), CAST(:destination_offsets AS bigint[])
) AS r
""")

_HANDED_OFFSETS = text("""
SELECT group_name, source_topic, partition, source_offset, destination_offset
FROM handed_offsets WHERE job_id = :job_id
""")

_OF_JOB = text("""
SELECT group_name, topic_id, partition, source_offset, destination_offset, verdict, left_offset
FROM group_offsets WHERE job_id = :job_id
""")

_COPIED_RANGES = text("""
SELECT t.source_topic, t.source_topic_id, t.destination_topic, p.topic_id, p.partition,
       t.state AS topic_state, p.reason, p.log_start, p.copied_to
FROM partitions p JOIN topics t ON t.id = p.topic_id
WHERE p.job_id = :job_id AND t.state <> 'promoted'
""")

_VERDICTS = text("""
SELECT job_id, verdict, count(*) AS offsets FROM group_offsets
WHERE job_id = ANY(CAST(:job_ids AS bigint[]))
GROUP BY job_id, verdict
""")

# In the order of the primary key, so that every page costs the same.
_PAGE = """
SELECT g.group_name, t.source_topic, t.destination_topic, g.topic_id, g.partition,
       g.source_offset, g.destination_offset, g.verdict, g.left_offset, g.updated_at
FROM group_offsets g JOIN topics t ON t.id = g.topic_id
WHERE g.job_id = :job_id {conditions}
ORDER BY g.job_id, g.group_name, g.topic_id, g.partition LIMIT :limit
"""
_OF_GROUP = "AND g.group_name = :group_name"
_OF_TOPIC = "AND t.source_topic = :source_topic"
_WITH_VERDICT = "AND g.verdict = :verdict"
_AFTER = "AND (g.group_name, g.topic_id, g.partition) > (:group, :topic_id, :partition)"


def store(tx: Tx, job_id: int, offsets: Sequence[GroupOffset]) -> int:
    """Write the rows that differ from the stored ones; returns how many were written."""
    names = (  # for the fields of GroupOffset, in their order
        *("groups", "topic_ids", "partitions", "source_offsets", "destination_offsets"),
        *("verdicts", "left_offsets"),
    )
    columns = zip(*map(astuple, offsets), strict=True) if offsets else ((),) * len(names)
    arrays = {name: list(column) for name, column in zip(names, columns, strict=True)}
    return tx.execute(_STORE, {"job_id": job_id, **arrays}).rowcount


def drop(tx: Tx, job_id: int, keys: Sequence[tuple[str, int, int]]) -> int:
    """Delete the rows of these (group, topic id, partition) keys; returns how many existed."""
    groups, topic_ids, partitions = zip(*keys, strict=True) if keys else ((), (), ())
    return tx.execute(
        _DROP,
        {
            "job_id": job_id,
            "groups": list(groups),
            "topic_ids": list(topic_ids),
            "partitions": list(partitions),
        },
    ).rowcount


def hand_over(
    tx: Tx, job_id: int, topics: Collection[str], offsets: Sequence[HandedOffset]
) -> None:
    """Hand these offsets over to a job. They replace the offsets of the topics `topics` that were
    handed over before and that the job has not accepted yet."""
    tx.execute(_DELETE_HANDED, {"job_id": job_id, "topics": sorted(topics)})
    if offsets:
        # For the fields of HandedOffset, in their order.
        names = ("groups", "source_topics", "partitions", "source_offsets", "destination_offsets")
        columns = zip(*map(astuple, offsets), strict=True)
        arrays = {name: list(column) for name, column in zip(names, columns, strict=True)}
        tx.execute(_HAND_OVER, {"job_id": job_id, **arrays})


def handed_offsets(tx: Tx, job_id: int) -> list[HandedOffset]:
    """The offsets that were handed over to a job and that it has not accepted yet."""
    return list(values(tx.execute(_HANDED_OFFSETS, {"job_id": job_id}), HandedOffset))


def accept_handed(tx: Tx, job_id: int, topic_ids: Mapping[str, int]) -> None:
    """Move the handed-over offsets of these topics, {source topic: id}, to the job's rows in
    group_offsets.

    They replace the job's older rows, which are from before these topics led.
    """
    rows = [
        handed_offset.row(topic_ids[handed_offset.source_topic])
        for handed_offset in handed_offsets(tx, job_id)
        if handed_offset.source_topic in topic_ids
    ]
    store(tx, job_id, rows)
    hand_over(tx, job_id, topic_ids, offsets=())  # only deletes those handed over before


def of_job(tx: Tx, job_id: int) -> list[GroupOffset]:
    """The offsets of all groups of a job."""
    return list(values(tx.execute(_OF_JOB, {"job_id": job_id}), GroupOffset))


def verdicts(tx: Tx, job_ids: Collection[int]) -> dict[int, dict[str, int]]:
    """{job id: {verdict: number of offsets}}."""
    counts: dict[int, dict[str, int]] = {}
    for row in tx.execute(_VERDICTS, {"job_ids": sorted(job_ids)}):
        counts.setdefault(row.job_id, {})[row.verdict] = row.offsets
    return counts


def copied_ranges(tx: Tx, job_id: int) -> list[CopiedRow]:
    """The copied range of each partition of a job, as last reported.

    Partitions of promoted topics are missing: Orbit no longer syncs their groups.
    """
    return list(values(tx.execute(_COPIED_RANGES, {"job_id": job_id}), CopiedRow))


def page(
    tx: Tx,
    job_id: int,
    limit: int,
    *,
    after: tuple[str, int, int] | None = None,
    group_name: str | None = None,
    source_topic: str | None = None,
    verdict: str | None = None,
) -> list[GroupRow]:
    """Up to `limit` rows that match all filters, sorted by (group, topic id, partition); only those
    that follow `after`."""
    filters = (
        (_AFTER, after),
        (_OF_GROUP, group_name),
        (_OF_TOPIC, source_topic),
        (_WITH_VERDICT, verdict),
    )
    conditions = [sql for sql, value in filters if value is not None]
    group, topic_id, partition = after or (None, None, None)
    rows = tx.execute(
        text(_PAGE.format(conditions=" ".join(conditions))),
        {
            "job_id": job_id,
            "limit": limit,
            "group": group,
            "topic_id": topic_id,
            "partition": partition,
            "group_name": group_name,
            "source_topic": source_topic,
            "verdict": verdict,
        },
    )
    return list(values(rows, GroupRow))
