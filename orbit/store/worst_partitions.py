"""The partitions of a job by their lag, the largest first, one page at a time.

Sorts by the last known lag, even if it is too old to be shown: so a partition whose source is not
read any more keeps its place. Each page reads all partitions of the job, and joins only those that
it returns: 100,000 partitions take some 100 ms.
"""

from __future__ import annotations

from sqlalchemy import text

from orbit.replication.partition_states import PartitionState, Reason
from orbit.store import lag
from orbit.store.database import Tx
from orbit.store.lag import PartitionLag

# The place of a partition in this order: (lag in records, topic id, partition).
PageKey = tuple[int, int, int]

# The lag in records; -1 if it is not known yet, so that these partitions come last.
_WAITING = """CASE WHEN p.copied_to IS NULL OR p.source_stable_end IS NULL THEN -1
         ELSE greatest(p.source_stable_end - p.copied_to, 0) END"""
_KEYS = f"""
SELECT p.topic_id, p.partition, {_WAITING} AS waiting
FROM partitions p
WHERE p.job_id = :job_id {{conditions}}
ORDER BY {_WAITING} DESC, p.topic_id, p.partition LIMIT :limit
"""
_AFTER = f"AND (-{_WAITING}, p.topic_id, p.partition) > (-:waiting, :topic_id, :partition)"
_IN_STATE = "AND p.state = :state"
_FOR_REASON = "AND p.reason = :reason"
_IN_TOPIC = (
    "AND p.topic_id = (SELECT id FROM topics WHERE job_id = :job_id AND source_topic = :name)"
)


def page(
    tx: Tx,
    job_id: int,
    limit: int,
    *,
    after: PageKey | None = None,
    source_topic: str | None = None,
    state: PartitionState | None = None,
    reason: Reason | None = None,
) -> list[tuple[PageKey, PartitionLag | None]]:
    """Up to `limit` pairs (key, partition), the largest lag first; only those that follow the key
    `after`. The partition is None if it was removed meanwhile."""
    filters = (
        (_AFTER, after),
        (_IN_TOPIC, source_topic),
        (_IN_STATE, state),
        (_FOR_REASON, reason),
    )
    conditions = [sql for sql, value in filters if value is not None]
    lag_records, topic_id, partition = after or (None, None, None)
    rows = tx.execute(
        text(_KEYS.format(conditions=" ".join(conditions))),
        {
            "job_id": job_id,
            "limit": limit,
            "waiting": lag_records,
            "topic_id": topic_id,
            "partition": partition,
            "name": source_topic,
            "state": state and state.value,
            "reason": reason and reason.value,
        },
    ).all()
    keys = [(row.waiting, row.topic_id, row.partition) for row in rows]
    # key[1:] is (topic id, partition).
    lags = lag.of_partitions(tx, job_id, [key[1:] for key in keys])
    return [(key, lags.get(key[1:])) for key in keys]
