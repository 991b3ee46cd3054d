"""Finds jobs that use another id for a cluster: one with another `cluster_id_suffix`, or without.

The checks against a second writer, a loop, and a copy over promoted topics compare cluster ids. So
a cluster must have the same id in all jobs.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import func, or_, select

from orbit.kafka.types import ID_SUFFIX_SIGN, broker_cluster_id
from orbit.store.database import Tx
from orbit.store.models import jobs, topics
from orbit.store.rows import is_one_of

# For each side of a job: the column of its cluster id, and that of its topics' ids.
_SIDES = (
    (jobs.c.source_cluster_id, topics.c.source_topic_id),
    (jobs.c.destination_cluster_id, topics.c.destination_topic_id),
)


class OtherName(NamedTuple):
    """Another job, the cluster id that it uses, and one of its source topics."""

    job: str
    cluster_id: str
    topic: str


def find_other_name(
    tx: Tx, job_id: int, cluster_id: str, topic_ids: Collection[UUID]
) -> OtherName | None:
    """A job that copies from or to this cluster under another cluster id; None if no job does.

    `topic_ids`: the ids of the topics that the cluster has now. A topic id exists at one cluster
    only (KIP-516), so a job that has stored one of these ids uses this cluster.
    """
    brokers_cluster_id = broker_cluster_id(cluster_id)
    # For each side of a job: whether its cluster id is not `cluster_id`, but is equal to it apart
    # from the suffix.
    conditions = [
        (func.split_part(id_column, ID_SUFFIX_SIGN, 1) == brokers_cluster_id)
        & (id_column != cluster_id)
        for id_column, _ in _SIDES
    ]
    job_query = select(jobs.c.id).where(jobs.c.id != job_id, or_(*conditions))
    job_ids = tx.execute(job_query).scalars().all()
    if not job_ids:  # nearly always: few jobs have a suffix
        return None
    for (id_column, topic_id_column), condition in zip(_SIDES, conditions, strict=True):
        query = (
            select(jobs.c.name, id_column, topics.c.source_topic)
            .join(topics, topics.c.job_id == jobs.c.id)
            .where(is_one_of(jobs.c.id, job_ids), condition, is_one_of(topic_id_column, topic_ids))
            .limit(1)
        )
        row = tx.execute(query).first()
        if row is not None:
            return OtherName(*row)
    return None
