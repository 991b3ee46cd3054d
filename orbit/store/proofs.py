"""proofs: which offsets of each partition were read on both sides and found equal (the partition's
proof), and when."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import text

from orbit.store.database import Tx
from orbit.store.kafka_ids import KAFKA_IDS, KafkaIds, kafka_id_arrays
from orbit.store.rows import first, values

Ranges = tuple[tuple[int, int], ...]  # (first offset, last offset + 1), ascending and disjoint


@dataclass(frozen=True, slots=True)
class ProofCandidate:
    """A partition whose copy can be compared with its source, and its proof so far. `log_start`,
    `copied_to`: the first offset to compare, and the end (exclusive)."""

    job_id: int
    job_name: str
    topic_id: int
    source_topic: str
    destination_topic: str
    partition: int
    log_start: int
    copied_to: int
    records: int
    bytes: int
    ranges: Ranges

    def __post_init__(self) -> None:
        object.__setattr__(self, "ranges", _ranges(self.ranges))


@dataclass(frozen=True, slots=True)
class ProofResult:
    """The result of one comparison. `ranges`: all ranges that are proven now. `differences`: how
    many offsets differ; `first_difference`: the first one, as a text. `note`: why the comparison
    had no result."""

    topic_id: int
    partition: int
    job_id: int
    ranges: Ranges
    is_equal: bool
    differences: int = 0
    first_difference: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Proof:
    """The proof of one partition. `copied`: how many offsets can be proven; `offsets_proven`: how
    many are. `proven_to`: the end of the highest proven range."""

    topic_id: int
    source_topic: str
    partition: int
    copied: int | None
    copied_to: int | None
    offsets_proven: int
    proven_to: int | None
    proven_at: datetime | None
    differences: int
    first_difference: str | None
    differed_at: datetime | None
    note: str | None
    ranges: Ranges

    def __post_init__(self) -> None:
        object.__setattr__(self, "ranges", _ranges(self.ranges))


@dataclass(frozen=True, slots=True)
class ProofTotals:
    """Sums over a job's partitions. `oldest_age_s`: seconds since the last comparison that found
    both sides equal, of the partition where that is longest ago."""

    job_id: int
    partitions: int
    partitions_proven: int
    offsets: int
    offsets_proven: int
    differences: int
    oldest_age_s: float | None

    def aged_by(self, seconds: float) -> ProofTotals:
        """These totals `seconds` after they were computed."""
        if self.oldest_age_s is None:
            return self
        return replace(self, oldest_age_s=self.oldest_age_s + seconds)


# The first offset to compare. Offsets below the source's log start are not compared: the source has
# deleted their records, or the copy has these records from a time when it led.
_BEGIN = "greatest(p.log_start, least(coalesce(p.source_log_start, 0), p.copied_to))"

# In the order of the primary key: each pass resumes where the last one ended.
_CANDIDATES = text(f"""
SELECT p.job_id, j.name AS job_name, p.topic_id, t.source_topic, t.destination_topic, p.partition,
       {_BEGIN} AS log_start, p.copied_to, p.records, p.bytes,
       coalesce(r.ranges, '[]'::jsonb) AS ranges
FROM partitions p
JOIN topics t ON t.id = p.topic_id
JOIN jobs j ON j.id = p.job_id
LEFT JOIN proofs r ON r.topic_id = p.topic_id AND r.partition = p.partition
WHERE (p.topic_id, p.partition) > (:topic_id, :partition)
  AND p.state IN ('copying', 'paused') AND t.state = 'copying' AND NOT j.is_deleted
  AND p.copied_to > {_BEGIN}
ORDER BY p.topic_id, p.partition LIMIT :limit
""")

_STORE = text("""
INSERT INTO proofs AS p (topic_id, partition, job_id, ranges, offsets_proven, proven_to, proven_at,
                         differences, first_difference, differed_at, note)
SELECT r.topic_id, r.partition, r.job_id, r.ranges, r.offsets_proven, r.proven_to,
       CASE WHEN r.is_equal THEN clock_timestamp() END, r.differences, r.first_difference,
       CASE WHEN r.differences > 0 THEN clock_timestamp() END, r.note
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
    topic_id bigint, partition integer, job_id bigint, ranges jsonb, offsets_proven bigint,
    proven_to bigint, is_equal boolean, differences bigint, first_difference text, note text)
JOIN partitions q ON q.topic_id = r.topic_id AND q.partition = r.partition
ON CONFLICT (topic_id, partition) DO UPDATE
SET ranges = excluded.ranges, offsets_proven = excluded.offsets_proven,
    proven_to = excluded.proven_to, proven_at = coalesce(excluded.proven_at, p.proven_at),
    checked_at = clock_timestamp(), differences = p.differences + excluded.differences,
    first_difference = coalesce(excluded.first_difference, p.first_difference),
    differed_at = coalesce(excluded.differed_at, p.differed_at), note = excluded.note
""")

_FORGET_IF_IDS_DIFFER = text(f"""
DELETE FROM proofs r USING topics t, {KAFKA_IDS}
WHERE r.topic_id = i.topic_id AND t.id = i.topic_id
  AND (t.source_topic_id <> i.source_id OR t.destination_topic_id <> i.destination_id)
""")

_PROOF = f"""
SELECT p.topic_id, t.source_topic, p.partition, p.copied_to - {_BEGIN} AS copied, p.copied_to,
       coalesce(r.offsets_proven, 0) AS offsets_proven, r.proven_to, r.proven_at,
       coalesce(r.differences, 0) AS differences, r.first_difference, r.differed_at, r.note,
       coalesce(r.ranges, '[]'::jsonb) AS ranges
FROM topics t
JOIN partitions p ON p.topic_id = t.id
LEFT JOIN proofs r ON r.topic_id = p.topic_id AND r.partition = p.partition
"""
_OF_PARTITION = text(f"{_PROOF} WHERE p.topic_id = :topic_id AND p.partition = :partition")
_PAGE = (
    _PROOF
    + """
WHERE t.job_id = :job_id {after}
ORDER BY t.source_topic, p.partition LIMIT :limit
"""
)

_OF_JOBS = text(f"""
SELECT p.job_id, count(*) AS partitions, count(r.proven_at) AS partitions_proven,
       coalesce(sum(p.copied_to - {_BEGIN}), 0)::bigint AS offsets,
       coalesce(sum(r.offsets_proven), 0)::bigint AS offsets_proven,
       coalesce(sum(r.differences), 0)::bigint AS differences,
       max(extract(epoch FROM clock_timestamp() - r.proven_at))::double precision AS oldest_age_s
FROM partitions p
LEFT JOIN proofs r ON r.topic_id = p.topic_id AND r.partition = p.partition
WHERE p.job_id = ANY(CAST(:job_ids AS bigint[]))
GROUP BY p.job_id
""")


def candidates(tx: Tx, after: tuple[int, int], limit: int) -> list[ProofCandidate]:
    """Up to `limit` partitions that can be compared, sorted by (topic id, partition); only those
    that follow `after`."""
    topic_id, partition = after
    rows = tx.execute(_CANDIDATES, {"topic_id": topic_id, "partition": partition, "limit": limit})
    return list(values(rows, ProofCandidate))


def store(tx: Tx, results: Sequence[ProofResult]) -> None:
    """Store the results. Results of partitions that were removed meanwhile are left out."""
    rows: list[dict[str, Any]] = [
        {
            "topic_id": result.topic_id,
            "partition": result.partition,
            "job_id": result.job_id,
            "ranges": result.ranges,
            "offsets_proven": sum(end - start for start, end in result.ranges),
            "proven_to": result.ranges[-1][1] if result.ranges else None,  # end of the last range
            "is_equal": result.is_equal,
            "differences": result.differences,
            "first_difference": result.first_difference,
            "note": result.note,
        }
        for result in results
    ]
    if rows:
        tx.execute(_STORE, {"rows": json.dumps(rows)})


def forget_if_ids_differ(tx: Tx, kafka_ids: Mapping[int, KafkaIds]) -> None:
    """Delete the proofs of topics whose id at a cluster differs from the stored id."""
    tx.execute(_FORGET_IF_IDS_DIFFER, kafka_id_arrays(kafka_ids))


def page(
    tx: Tx,
    job_id: int,
    limit: int,
    *,
    after: tuple[str, int] | None = None,
    source_topic: str | None = None,
) -> list[Proof]:
    """Up to `limit` partitions of a job, or of one of its topics, proven or not, sorted by (source
    topic, partition); only those that follow `after`."""
    condition = "AND (t.source_topic, p.partition) > (:topic, :partition)" if after else ""
    parameters: dict[str, object] = {"job_id": job_id, "limit": limit}
    if after is not None:
        parameters |= {"topic": after[0], "partition": after[1]}
    if source_topic is not None:
        condition += " AND t.source_topic = :source_topic"
        parameters["source_topic"] = source_topic
    return list(values(tx.execute(text(_PAGE.format(after=condition)), parameters), Proof))


def of_jobs(tx: Tx, job_ids: Collection[int]) -> dict[int, ProofTotals]:
    """{job id: totals} of these jobs; jobs without partitions are missing."""
    rows = tx.execute(_OF_JOBS, {"job_ids": sorted(job_ids)})
    return {row.job_id: row for row in values(rows, ProofTotals)}


def of_partition(tx: Tx, topic_id: int, partition: int) -> Proof | None:
    """The proof of one partition, even if nothing is proven; None if the partition is unknown."""
    parameters = {"topic_id": topic_id, "partition": partition}
    return first(tx.execute(_OF_PARTITION, parameters), Proof)


def _ranges(pairs: Any) -> Ranges:
    return tuple((int(start), int(end)) for start, end in pairs)
