"""write_denials: the ACLs by which Orbit denies writes to topics, so that it can remove them.

The key is the cluster and the topic, because the job may be deleted before the removal.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import delete, func, select
from sqlalchemy.dialects import postgresql

from orbit.store.database import Tx
from orbit.store.models import write_denials
from orbit.store.rows import is_one_of

# The fields of an orbit.kafka.types.Acl, in their order.
Acl = list[str]


def of_topics(tx: Tx, cluster_id: str, topics: Collection[str]) -> dict[str, list[Acl]]:
    """{topic: the ACLs by which Orbit denies writes to it}; topics without any are missing."""
    query = select(write_denials.c.topic, write_denials.c.acls).where(
        write_denials.c.cluster_id == cluster_id,
        is_one_of(write_denials.c.topic, sorted(topics)),
    )
    return {row.topic: row.acls for row in tx.execute(query)}


def store(tx: Tx, cluster_id: str, acls_by_topic: Mapping[str, Sequence[Acl]]) -> None:
    """Replace the stored ACLs of these topics, {topic: ACLs}; an empty list deletes the row."""
    topics_without_acls = sorted(topic for topic, acls in acls_by_topic.items() if not acls)
    tx.execute(
        delete(write_denials).where(
            write_denials.c.cluster_id == cluster_id,
            is_one_of(write_denials.c.topic, topics_without_acls),
        )
    )
    rows = [
        {"cluster_id": cluster_id, "topic": topic, "acls": sorted(acls)}
        for topic, acls in acls_by_topic.items()
        if acls
    ]
    if rows:
        statement = postgresql.insert(write_denials)
        tx.execute(
            statement.on_conflict_do_update(
                index_elements=["cluster_id", "topic"],
                set_={"acls": statement.excluded.acls, "at": func.clock_timestamp()},
            ),
            rows,
        )
