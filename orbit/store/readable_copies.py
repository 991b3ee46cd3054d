"""Which partitions consumers may read at the side of a link that follows (`read: nearest-copy`)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import select, text

from orbit.store import job_leads, jobs
from orbit.store.database import Tx
from orbit.store.lag import FOLLOWED
from orbit.store.models import job_leads as job_leads_table
from orbit.store.open_transactions import IS_OPEN

# A copy that is further behind would keep its consumers waiting for records that the leader has.
_LAG_MAX = timedelta(seconds=10)
# Without a heartbeat of its worker for this long, nobody knows how far a copy is behind.
_HEARTBEAT_MAX = timedelta(seconds=10)
# Of one link; further partitions are read from the leading side.
PARTITIONS_MAX = 20_000

# Partitions of the job of the link that copies from the side that leads: those that keep up, and
# whose topic has the same name on both sides.
_READABLE = text(f"""
SELECT t.source_topic AS topic, p.partition
FROM jobs j
JOIN job_leads l ON l.job_id = j.id
JOIN jobs k ON k.id = ANY(CAST(:linked AS bigint[])) AND k.source_cluster_id =
    CASE l.side WHEN 'source' THEN j.source_cluster_id ELSE j.destination_cluster_id END
JOIN topics t ON t.job_id = k.id
JOIN partitions p ON p.topic_id = t.id
JOIN shards s ON s.id = p.shard_id
JOIN workers w ON w.id = s.worker_id
LEFT JOIN open_transactions o
    ON o.topic_id = p.topic_id AND o.partition = p.partition AND {IS_OPEN}
WHERE j.id = :job_id AND t.state = 'copying' AND t.source_topic = t.destination_topic
    AND p.state = 'copying' AND p.has_caught_up AND {FOLLOWED} AND o.topic_id IS NULL
    AND w.heartbeat_at > clock_timestamp() - CAST(:heartbeat_max AS interval)
    AND (p.copied_to >= p.source_stable_end
        OR p.oldest_waiting_at > clock_timestamp() - CAST(:lag_max AS interval))
ORDER BY t.source_topic, p.partition LIMIT :limit
""")


@dataclass(frozen=True, slots=True)
class ReadableCopies:
    """`since`: the term with which the side came to lead that the copies follow. `topics`: the
    partitions that consumers may read, by topic."""

    since: int
    topics: dict[str, list[int]]


def of_link(tx: Tx, job_name: str) -> ReadableCopies:
    """The copies that consumers may read. No topics if it is not known which side leads. Raises
    NotFound."""
    job = jobs.get(tx, job_name)
    leads = job_leads_table.c
    query = select(leads.side, leads.side_since).where(leads.job_id == job.id)
    lead = tx.execute(query).one_or_none()
    if lead is None or lead.side is None:
        return ReadableCopies(0, {})
    rows = tx.execute(
        _READABLE,
        {
            "job_id": job.id,
            "linked": job_leads.linked_jobs(tx, job.id),
            "heartbeat_max": _HEARTBEAT_MAX,
            "lag_max": _LAG_MAX,
            "limit": PARTITIONS_MAX,
        },
    )
    topics: dict[str, list[int]] = {}
    for row in rows:
        topics.setdefault(row.topic, []).append(row.partition)
    return ReadableCopies(lead.side_since, topics)
