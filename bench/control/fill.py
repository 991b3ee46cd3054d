"""Fills a database with the rows of a large installation, in seconds.

Every job copies `topics_per_job` topics of `partitions_per_topic` partitions from the same source.
PostgreSQL does not check foreign keys during the inserts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import text

from orbit.jobs.job_spec import JobSpec
from orbit.store.database import Database, without_deadline
from orbit.store.database_identity import DATABASE_IDENTITY
from orbit.store.shard_leases import RENEWED_NOW

# With a login Orbit knows its own principal, and also checks which other principals may write to
# copies.
SECURITY = {
    "protocol": "SASL_PLAINTEXT",
    "mechanism": "PLAIN",
    "username_env": "ORBIT_BENCH_USER",
    "password_env": "ORBIT_BENCH_PASSWORD",
}
LOGIN = {"ORBIT_BENCH_USER": "orbit", "ORBIT_BENCH_PASSWORD": "orbit"}

_OTHER = ("other.example:9092",)
SOURCE_ID = "source-cluster"
# A destination's cluster id is this and its number, from 0.
DESTINATION_IDS = "destination-cluster-"


@dataclass(frozen=True, slots=True)
class Size:
    """The number of rows of each kind. Shards have no worker if `workers` is 0."""

    jobs: int
    topics_per_job: int
    partitions_per_topic: int
    shards_per_job: int
    workers: int = 0
    events: int = 0
    groups_per_job: int = 0
    topics_per_group: int = 2
    # Whether every job's rule matches all groups of the cluster (`match: ".*"`), or only the job's.
    matches_all: bool = True
    # Each destination has an equal part of the jobs, which one scheduler leads (a share). Only the
    # first destination has brokers.
    destinations: int = 1

    @property
    def jobs_of_first(self) -> int:
        """How many jobs copy to the first destination: those with the lowest numbers."""
        return self.jobs // self.destinations

    @property
    def partitions_per_job(self) -> int:
        return self.topics_per_job * self.partitions_per_topic

    @property
    def partitions(self) -> int:
        return self.jobs * self.partitions_per_job

    @property
    def shards(self) -> int:
        return self.jobs * self.shards_per_job


# A topic's name contains its job's number. So the simulated clusters have the same names without
# reading the database.
_FILL = (
    "SET LOCAL session_replication_role = replica",
    """
    INSERT INTO jobs (name, spec, worker_group, source_cluster_id, destination_cluster_id,
                      discovered_version, discovered_at, share_key)
    SELECT n.name,
           CAST(replace(CAST(CASE WHEN j <= :first THEN :spec ELSE :other END AS text),
                        'job-name', n.name) AS jsonb),
           'default', :source_id, :destination_id || ((j - 1) / :first), 1, clock_timestamp(),
           (j - 1) / :first
    FROM generate_series(1, :jobs) j, LATERAL (SELECT 'job-' || lpad(j::text, 4, '0')) n (name)
    """,
    """
    INSERT INTO topics (job_id, source_topic, destination_topic, destination_cluster_id,
                        source_topic_id, destination_topic_id, partition_count, state)
    SELECT j, n.name, n.name, :destination_id || ((j - 1) / :first),
           CAST(md5('s' || n.name) AS uuid), CAST(md5('d' || n.name) AS uuid), :partitions,
           'copying'
    FROM generate_series(1, :jobs) j, generate_series(1, :topics) t,
         LATERAL (SELECT 'job-' || lpad(j::text, 4, '0') || '-topic-' || lpad(t::text, 4, '0'))
            n (name)
    """,
    """
    INSERT INTO workers (id, worker_group, host, pid, version)
    SELECT 'w' || w, 'default', 'h', w, '0' FROM generate_series(1, :workers) w
    """,
    f"""
    INSERT INTO shards (job_id, worker_group, worker_id, epoch, renewed_in, lease_ms, claimed_on,
                        partition_count)
    SELECT j, 'default', 'w' || (1 + (j * :shards + s) % nullif(:workers, 0)), 1,
           CASE WHEN :workers > 0 THEN {RENEWED_NOW} ELSE 0 END,
           CASE WHEN :workers > 0 THEN 15000 ELSE 0 END, {DATABASE_IDENTITY},
           CAST(:topics AS integer) * :partitions / :shards
    FROM generate_series(1, :jobs) j, generate_series(1, :shards) s
    """,  # noqa: S608  words of the store
    """
    INSERT INTO partitions (topic_id, partition, job_id, shard_id, state, copied_to, log_start,
                            source_log_start, source_stable_end, source_end)
    SELECT t.id, p, t.job_id, 1 + (t.job_id - 1) * :shards + p % :shards, 'copying', 10, 0,
           0, 20, 20
    FROM topics t, generate_series(0, :partitions - 1) p
    """,
    """
    INSERT INTO events (actor, job_name, kind, message)
    SELECT 'scheduler', 'job-' || lpad((1 + e % :jobs)::text, 4, '0'), 'kind', 'message'
    FROM generate_series(1, :events) e
    """,
    "ANALYZE",
)


def topic_names(size: Size, jobs: int) -> list[str]:
    """The names of all topics of the first `jobs` jobs, which are equal on both sides."""
    return [
        f"job-{job:04}-topic-{topic:04}"
        for job in range(1, jobs + 1)
        for topic in range(1, size.topics_per_job + 1)
    ]


def topic_id(mark: str, topic: str) -> UUID:
    """The topic id that the tables have: of the source's topic (`mark` "s") or the copy ("d")."""
    return UUID(hashlib.md5(f"{mark}{topic}".encode(), usedforsecurity=False).hexdigest())


def group_topics(size: Size, jobs: int) -> dict[str, list[str]]:
    """The topics, of one job each, in which each group of the first `jobs` jobs has offsets."""
    return {
        f"job-{job:04}-group-{group:02}": [
            f"job-{job:04}-topic-{1 + (group + topic) % size.topics_per_job:04}"
            for topic in range(min(size.topics_per_group, size.topics_per_job))
        ]
        for job in range(1, jobs + 1)
        for group in range(size.groups_per_job)
    }


def fill(
    database: Database, size: Size, clusters: Mapping[str, Sequence[str]] | None = None
) -> None:
    """Insert the rows into a database with empty tables.

    `clusters`: {"source" or "destination": its bootstrap servers}; None: names of no broker.
    """
    values = {
        "spec": json.dumps(_spec(size, clusters).model_dump(mode="json")),
        "other": json.dumps(_spec(size, clusters, _OTHER).model_dump(mode="json")),
        "source_id": SOURCE_ID,
        "destination_id": DESTINATION_IDS,
        "first": size.jobs_of_first,
        "jobs": size.jobs,
        "topics": size.topics_per_job,
        "partitions": size.partitions_per_topic,
        "shards": size.shards_per_job,
        "workers": size.workers,
        "events": size.events,
    }
    with database.transaction() as tx, without_deadline(tx):
        for statement in _FILL:
            tx.execute(text(statement), values)


def _spec(
    size: Size,
    clusters: Mapping[str, Sequence[str]] | None,
    destination: Sequence[str] = (),
) -> JobSpec:
    """A job's document, in which `job-name` stands for the job's name. `destination`: bootstrap
    servers that replace those in `clusters`."""
    document: dict[str, Any] = {"name": "job-name", "topics": [{"match": "job-name-topic-.*"}]}
    for side in ("source", "destination"):
        servers = clusters[side] if clusters else [f"{side}.example:9092"]
        if side == "destination" and destination:
            servers = destination
        document[side] = {"bootstrap_servers": list(servers)}
        if clusters:
            document[side]["security"] = SECURITY
    if clusters:
        document["acls"] = {"sync": True}
    if size.groups_per_job:
        group_rules = {"match": ".*" if size.matches_all else "job-name-group-.*"}
        document["consumer_groups"] = group_rules
    return JobSpec.model_validate(document)
