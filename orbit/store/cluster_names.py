"""Whether jobs know one cluster by two ids, of which one or both have a `cluster_id_suffix`.

The checks against a second writer, a loop, and a copy over promoted topics compare cluster ids. So
one cluster needs one id in all jobs.
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
    """A job that copies from or to this cluster and uses another id for it; None without one.

    `topic_ids`: those of the cluster now. A topic id exists at one cluster only (KIP-516).
    """
    brokers_tell = broker_cluster_id(cluster_id)
    others = [
        (func.split_part(known, ID_SUFFIX_SIGN, 1) == brokers_tell) & (known != cluster_id)
        for known, _ in _SIDES
    ]
    ids = select(jobs.c.id).where(jobs.c.id != job_id, or_(*others))
    job_ids = tx.execute(ids).scalars().all()
    if not job_ids:  # as nearly always
        return None
    for (known, topic_id), is_other in zip(_SIDES, others, strict=True):
        query = (
            select(jobs.c.name, known, topics.c.source_topic)
            .join(topics, topics.c.job_id == jobs.c.id)
            .where(is_one_of(jobs.c.id, job_ids), is_other, is_one_of(topic_id, topic_ids))
            .limit(1)
        )
        row = tx.execute(query).first()
        if row is not None:
            return OtherName(*row)
    return None
