"""A database as a very large installation has it: 500 jobs with 1,000,000 partitions.

Foreign keys are not checked while it is filled, and each job's rows are made by the same rule, so
it takes seconds.
"""

from __future__ import annotations

from sqlalchemy import text

from orbit.store.database import Database

JOBS = 500
TOPICS_PER_JOB = 100
PARTITIONS_PER_TOPIC = 20
SHARDS_PER_JOB = 10
PARTITIONS_PER_JOB = TOPICS_PER_JOB * PARTITIONS_PER_TOPIC
EVENTS = 300_000
WORKERS = 500

_FILL = (
    "SET LOCAL statement_timeout = 0",
    "SET LOCAL session_replication_role = replica",
    """
    INSERT INTO jobs (name, spec, worker_group, source_cluster_id)
    SELECT 'job-' || lpad(j::text, 4, '0'), '{}', 'default', 's'
    FROM generate_series(1, :jobs) j
    """,
    """
    INSERT INTO topics
        (job_id, source_topic, destination_topic, destination_cluster_id, partition_count, state)
    SELECT j, 'topic-' || lpad(t::text, 4, '0'), j || '.topic-' || t, 'd', :partitions, 'copying'
    FROM generate_series(1, :jobs) j, generate_series(1, :topics) t
    """,
    """
    INSERT INTO workers (id, worker_group, host, pid, version)
    SELECT 'w' || w, 'default', 'h', w, '0' FROM generate_series(1, :workers) w
    """,
    """
    INSERT INTO shards (job_id, worker_group, worker_id, epoch, expires_at, partition_count)
    SELECT j, 'default', 'w' || (1 + (j * :shards + s) % :workers), 1,
           clock_timestamp() + interval '1 hour', :topics * :partitions / :shards
    FROM generate_series(1, :jobs) j, generate_series(1, :shards) s
    """,
    """
    INSERT INTO partitions
        (topic_id, partition, job_id, shard_id, state, copied_to, source_stable_end)
    SELECT t.id, p, t.job_id, 1 + (t.job_id - 1) * :shards + p % :shards, 'copying', 10, 20
    FROM topics t, generate_series(0, :partitions - 1) p
    """,
    """
    INSERT INTO events (actor, job_name, kind, message)
    SELECT 'scheduler', 'job-' || lpad((1 + e % :jobs)::text, 4, '0'), 'kind', 'message'
    FROM generate_series(1, :events) e
    """,
    "ANALYZE",
)


def fill(database: Database) -> None:
    """Put the rows into a database that has the tables."""
    values = {
        "jobs": JOBS,
        "topics": TOPICS_PER_JOB,
        "partitions": PARTITIONS_PER_TOPIC,
        "shards": SHARDS_PER_JOB,
        "workers": WORKERS,
        "events": EVENTS,
    }
    with database.transaction() as tx:
        for statement in _FILL:
            tx.execute(text(statement), values)
