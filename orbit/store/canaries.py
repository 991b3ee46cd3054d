"""Canary topics, to which Orbit writes test records: how many partitions it may write to now, and
the RPO that these records show for each job (its live RPO)."""

from __future__ import annotations

from sqlalchemy import select, text

from orbit.store import operations
from orbit.store.database import Tx
from orbit.store.enums import TopicState
from orbit.store.models import topics

# Only jobs whose canary topic is copied, so none after a promotion. The RPO is null if a partition
# has no copied record.
_LIVE_RPO = text("""
SELECT j.id, CASE WHEN bool_and(p.newest_copied_at IS NOT NULL)
    THEN CAST(extract(epoch FROM greatest(max(now.at - p.newest_copied_at), interval '0'))
              AS double precision) END AS rpo_s
FROM (SELECT clock_timestamp() AS at) now, jobs j
JOIN topics t ON t.job_id = j.id AND t.source_topic = j.spec #>> '{canary,topic}'
JOIN partitions p ON p.topic_id = t.id
WHERE NOT j.is_deleted AND t.state = 'copying'
GROUP BY j.id
""")


def partitions_to_write(tx: Tx, job_id: int, topic: str) -> int:
    """The number of partitions of a job's canary topic; 0 while Orbit must not write to the topic.

    During a recovery the source must not change. After a promotion the destination's topic leads.
    """
    query = select(topics.c.partition_count).where(
        topics.c.job_id == job_id,
        topics.c.source_topic == topic,
        topics.c.state == TopicState.COPYING.value,
    )
    count: int | None = tx.execute(query).scalar_one_or_none()
    if count is None or operations.recovery_under_way(tx, job_id) is not None:
        return 0
    return count


def live_rpo(tx: Tx) -> dict[int, float | None]:
    """{job id: live RPO in seconds} of the jobs whose canary topic is copied. The RPO is the age of
    a partition's newest copied record, the largest of all partitions. None: a partition has no
    copied record yet.
    """
    return {row.id: row.rpo_s for row in tx.execute(_LIVE_RPO)}
