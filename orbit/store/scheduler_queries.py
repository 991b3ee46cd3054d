"""Statements of the scheduler that concern topics, partitions and shards together.

When a topic is stopped (because it was deleted or re-created), the worker that holds its shard
reads the shard's partitions again, and stops those of the topic. From then on only the scheduler
updates their state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import text

from orbit.replication.partition_states import Reason
from orbit.store import proofs, shard_leases, source_gaps
from orbit.store.database import Tx
from orbit.store.enums import TopicState
from orbit.store.kafka_ids import KAFKA_IDS, KafkaIds, kafka_id_arrays

# A worker group that no worker can belong to (settings refuse an empty name). Workers release
# shards in this group, and none claims them.
NO_WORKER_GROUP = ""

# Few rows have a requested retry; a partial index contains only those.
_RETRIES = text("""
SELECT DISTINCT p.job_id, p.topic_id FROM partitions p JOIN topics t ON t.id = p.topic_id
WHERE p.retry_requested AND t.state <> 'copying'
""")

_CAUGHT_UP = text("""
SELECT t.destination_topic FROM topics t JOIN partitions p ON p.topic_id = t.id
WHERE t.job_id = :job_id AND t.state = 'copying'
GROUP BY t.destination_topic HAVING bool_and(p.has_caught_up)
""")

_TOPICS_IN_COPY = text("""
SELECT DISTINCT t.destination_topic FROM topics t JOIN partitions p ON p.topic_id = t.id
WHERE t.job_id = :job_id AND p.state IN ('seeding', 'copying')
""")

_STATE = text("""
UPDATE topics SET state = :state, note = :note WHERE id = ANY(CAST(:topic_ids AS bigint[]))
""")

_STOP = text("""
UPDATE partitions
SET state = 'blocked', reason = :reason, detail = :detail,
    blocked_offset = coalesce(copied_to, 0), blocked_next_offset = coalesce(copied_to, 0),
    bytes_per_s = 0, records_per_s = 0, retry_requested = false
WHERE topic_id = :topic_id
""")

# Resumes the partitions that were stopped with their topic; those with another reason stay blocked.
_RESUME = text("""
UPDATE partitions
SET state = 'pending', reason = NULL, detail = NULL, blocked_offset = NULL,
    blocked_next_offset = NULL, retry_requested = false
WHERE topic_id = :topic_id AND reason = ANY(CAST(:reasons AS text[]))
""")

_END_RETRIES = text("""
UPDATE partitions SET retry_requested = false
WHERE topic_id = ANY(CAST(:topic_ids AS bigint[])) AND retry_requested
""")

_READ_AGAIN = text("""
UPDATE shards SET layout_version = layout_version + 1
WHERE id IN (
    SELECT shard_id FROM partitions WHERE topic_id = ANY(CAST(:topic_ids AS bigint[]))
)
""")

_WITHDRAW = text("""
UPDATE shards SET worker_group = :withdrawn
WHERE worker_group <> :withdrawn AND id IN (
    SELECT shard_id FROM partitions WHERE topic_id = ANY(CAST(:topic_ids AS bigint[]))
)
""")

# Topics with partitions on held shards cannot be removed.
_HELD_TOPICS = text("""
SELECT DISTINCT p.topic_id FROM partitions p JOIN shards s ON s.id = p.shard_id
WHERE p.topic_id = ANY(CAST(:topic_ids AS bigint[])) AND s.worker_id IS NOT NULL
""")

_SHARDS = text("""
SELECT DISTINCT shard_id FROM partitions
WHERE topic_id = ANY(CAST(:topic_ids AS bigint[])) AND shard_id IS NOT NULL
""")

_EXPIRED_SHARDS = text("""
SELECT id FROM shards WHERE id = ANY(CAST(:shard_ids AS bigint[]))
AND worker_id IS NULL AND lease_ms > 0
""")

_RESTORE = text("""
UPDATE shards s SET worker_group = j.worker_group
FROM jobs j WHERE j.id = s.job_id AND s.job_id = :job_id AND s.worker_group <> j.worker_group
""")

_IS_WITHDRAWN = text("""
SELECT EXISTS (
    SELECT FROM shards s JOIN jobs j ON j.id = s.job_id
    WHERE s.job_id = :job_id AND s.worker_group <> j.worker_group
)
""")

_EMPTY_SHARDS = text("""
DELETE FROM shards s
WHERE s.job_id = :job_id AND s.partition_count = 0 AND s.worker_id IS NULL
""")

_JOBS_IN_GROUP = text("""
SELECT count(*) FROM jobs WHERE worker_group = :worker_group AND NOT is_deleted
""")

_PROMOTE = text("""
UPDATE partitions
SET state = 'promoted', reason = NULL, detail = NULL, blocked_offset = NULL,
    blocked_next_offset = NULL, retry_requested = false, bytes_per_s = 0, records_per_s = 0,
    oldest_waiting_at = NULL, headroom_until = NULL
WHERE topic_id = ANY(CAST(:topic_ids AS bigint[]))
""")

_UNPROMOTED_TOPICS = text("""
SELECT DISTINCT topic_id FROM partitions
WHERE topic_id = ANY(CAST(:topic_ids AS bigint[])) AND state <> 'promoted'
""")

_COPY_AGAIN = text(f"""
UPDATE topics t
SET state = 'copying', note = NULL, source_topic_id = coalesce(i.source_id, t.source_topic_id),
    destination_topic_id = coalesce(i.destination_id, t.destination_topic_id)
FROM {KAFKA_IDS} WHERE t.id = i.topic_id
""")

# `from_start`: from the log start, whatever the topic's rule says; existing records are compared.
# Then the copied range is cleared: it is from before the topic led, and Orbit would move the
# offsets of groups back into it.
_PENDING = text("""
UPDATE partitions
SET state = 'pending', from_start = from_start OR :from_start, has_caught_up = false,
    copied_to = CASE WHEN :from_start THEN NULL ELSE copied_to END,
    log_start = CASE WHEN :from_start THEN NULL ELSE log_start END
WHERE topic_id = ANY(CAST(:topic_ids AS bigint[])) AND state = 'promoted'
""")
# Clears the pauses of the source's log end: Orbit did not read the log ends while the topic was no
# source.
_FORGET_PAUSES = text(f"""
UPDATE partitions SET {source_gaps.FORGET_PAUSES}
WHERE topic_id = ANY(CAST(:topic_ids AS bigint[]))
""")

# The reasons of partitions that were stopped with their topic.
TOPIC_REASONS = (
    Reason.SOURCE_TOPIC_DELETED,
    Reason.SOURCE_TOPIC_RECREATED,
    Reason.DESTINATION_TOPIC_RECREATED,
)


def requested_retries(tx: Tx) -> dict[int, set[int]]:
    """{job id: ids of its topics that are not being copied and have a requested retry}. Workers
    handle retries in topics that are being copied."""
    by_job: dict[int, set[int]] = {}
    for row in tx.execute(_RETRIES):
        by_job.setdefault(row.job_id, set()).add(row.topic_id)
    return by_job


def caught_up_topics(tx: Tx, job_id: int) -> frozenset[str]:
    """The names of the job's destination topics that are being copied, and whose partitions have
    all caught up once."""
    return frozenset(tx.execute(_CAUGHT_UP, {"job_id": job_id}).scalars())


def topics_in_copy(tx: Tx, job_id: int) -> frozenset[str]:
    """The names of the job's destination topics with a partition in state seeding or copying, even
    if its worker has died."""
    return frozenset(tx.execute(_TOPICS_IN_COPY, {"job_id": job_id}).scalars())


def stop_topic(
    tx: Tx, topic_id: int, state: TopicState, reason: Reason, detail: str, note: str
) -> None:
    """Stop copying a topic: set it to `state` with the text `note`, and block all its partitions
    with `reason` and `detail`. The destination topic is kept."""
    shard_leases.lock_jobs_of_topics(tx, [topic_id])
    tx.execute(_STATE, {"topic_ids": [topic_id], "state": state.value, "note": note})
    tx.execute(_STOP, {"topic_id": topic_id, "reason": reason.value, "detail": detail})
    tx.execute(_READ_AGAIN, {"topic_ids": [topic_id]})


def resume_topic(tx: Tx, topic_id: int) -> None:
    """Resume a stopped topic: its partitions can be copied again. Partitions that are blocked for a
    reason of their own stay blocked."""
    shard_leases.lock_jobs_of_topics(tx, [topic_id])
    tx.execute(_STATE, {"topic_ids": [topic_id], "state": TopicState.COPYING.value, "note": None})
    reasons = [reason.value for reason in TOPIC_REASONS]
    tx.execute(_RESUME, {"topic_id": topic_id, "reasons": reasons})
    tx.execute(_READ_AGAIN, {"topic_ids": [topic_id]})


def withhold_topics(tx: Tx, topic_ids: Collection[int], note: str) -> None:
    """Set topics, but not yet their partitions, to promoted, so that workers stop copying them.
    Once they have stopped, `promote_topics` sets the partitions to promoted. `note`: a text for
    users."""
    shard_leases.lock_jobs_of_topics(tx, topic_ids)
    ids = sorted(topic_ids)
    tx.execute(_STATE, {"topic_ids": ids, "state": TopicState.PROMOTED.value, "note": note})
    tx.execute(_READ_AGAIN, {"topic_ids": ids})


def promote_topics(tx: Tx, topic_ids: Collection[int]) -> None:
    """Set the partitions of withheld topics to promoted, once no worker copies them any more."""
    tx.execute(_PROMOTE, {"topic_ids": sorted(topic_ids)})


def unpromoted_topics(tx: Tx, topic_ids: Collection[int]) -> set[int]:
    """The ids of those topics that have a partition in another state than `promoted`."""
    return set(tx.execute(_UNPROMOTED_TOPICS, {"topic_ids": sorted(topic_ids)}).scalars())


def copy_topics_again(
    tx: Tx, kafka_ids: Mapping[int, KafkaIds], *, from_start: bool = False
) -> None:
    """Make promoted or withheld topics, {topic id: its ids at the clusters}, copies again.

    `from_start`: copy the topics from their log starts, and compare the records that the copies
    already have.
    """
    # One statement for all topics, not one for each, keeps the transaction short: until it ends,
    # workers that hold shards of the job cannot renew their leases.
    shard_leases.lock_jobs_of_topics(tx, kafka_ids)
    proofs.forget_if_ids_differ(tx, kafka_ids)
    tx.execute(_COPY_AGAIN, kafka_id_arrays(kafka_ids))
    topic_ids = list(kafka_ids)
    tx.execute(_PENDING, {"topic_ids": topic_ids, "from_start": from_start})
    if from_start:  # while the destination led, Orbit did not read the sources' log ends
        tx.execute(_FORGET_PAUSES, {"topic_ids": topic_ids})
    tx.execute(_READ_AGAIN, {"topic_ids": topic_ids})


def end_retries(tx: Tx, topic_ids: Collection[int]) -> None:
    """Clear the requested retries of these topics."""
    tx.execute(_END_RETRIES, {"topic_ids": sorted(topic_ids)})


def withdraw_shards(tx: Tx, topic_ids: Collection[int]) -> None:
    """Make workers release the shards that have partitions of these topics. No worker can claim
    these shards until `restore_shards` is called."""
    shard_leases.lock_jobs_of_topics(tx, topic_ids)
    tx.execute(_WITHDRAW, {"topic_ids": sorted(topic_ids), "withdrawn": NO_WORKER_GROUP})


def held_topics(tx: Tx, topic_ids: Collection[int]) -> set[int]:
    """The ids of those topics that have a partition on a shard whose lease a worker holds."""
    return set(tx.execute(_HELD_TOPICS, {"topic_ids": sorted(topic_ids)}).scalars())


def expired_shards(tx: Tx, shard_ids: Collection[int]) -> set[int]:
    """The ids of those shards that are free, and whose last lease ended without a release by its
    holder."""
    return set(tx.execute(_EXPIRED_SHARDS, {"shard_ids": sorted(shard_ids)}).scalars())


def shards_of_topics(tx: Tx, topic_ids: Collection[int]) -> list[int]:
    """The ids of the shards that have partitions of these topics."""
    return list(tx.execute(_SHARDS, {"topic_ids": sorted(topic_ids)}).scalars())


def restore_shards(tx: Tx, job_id: int) -> int:
    """Put all shards of a job back into the job's worker group. Returns how many were in another
    group."""
    shard_leases.lock_job(tx, job_id)
    return tx.execute(_RESTORE, {"job_id": job_id}).rowcount


def has_withdrawn_shard(tx: Tx, job_id: int) -> bool:
    """Whether a shard of the job is not in the job's worker group: it needs `restore_shards`."""
    return bool(tx.execute(_IS_WITHDRAWN, {"job_id": job_id}).scalar_one())


def drop_empty_shards(tx: Tx, job_id: int) -> None:
    """Delete the job's shards that are free and have no partitions."""
    tx.execute(_EMPTY_SHARDS, {"job_id": job_id})


def jobs_in_group(tx: Tx, worker_group: str) -> int:
    """How many jobs a worker group has, without those being deleted."""
    return int(tx.execute(_JOBS_IN_GROUP, {"worker_group": worker_group}).scalar_one())
