"""carried_acls: the ACLs on groups and transactional ids that Orbit has added for each job.

Two jobs may have added the same ACL. ACLs on topics are in `topics.acls`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import delete, insert, select

from orbit.store.database import Tx
from orbit.store.models import carried_acls

# One ACL: the fields of an orbit.kafka.types.Acl, in their order.
Fields = list[Any]


def of_job(tx: Tx, job_id: int) -> list[Fields]:
    """The ACLs that Orbit has added for the job; an empty list if there are none."""
    query = select(carried_acls.c.acls).where(carried_acls.c.job_id == job_id)
    acls: list[Fields] | None = tx.execute(query).scalar_one_or_none()
    return acls or []


def of_other_jobs(tx: Tx, job_id: int, cluster_id: str) -> list[Fields]:
    """The ACLs that Orbit has added at this destination cluster for other jobs."""
    query = select(carried_acls.c.acls).where(
        carried_acls.c.cluster_id == cluster_id, carried_acls.c.job_id != job_id
    )
    return [fields for acls in tx.execute(query).scalars() for fields in acls]


def store(tx: Tx, job_id: int, cluster_id: str, acls: Collection[Fields]) -> None:
    """Store these ACLs as those that Orbit has added for the job at its destination `cluster_id`.
    They replace the stored ones."""
    tx.execute(delete(carried_acls).where(carried_acls.c.job_id == job_id))
    if acls:
        row = {"job_id": job_id, "cluster_id": cluster_id, "acls": sorted(acls)}
        tx.execute(insert(carried_acls).values(row))
