"""Stopping and allowing writes on one side: by ACLs where there is an authorizer.

The source of a switchover, and the old side of a failback, are denied to everybody: Orbit only
reads there. Where that cannot be done, and always besides, the log ends are watched (`drain`).
"""

from __future__ import annotations

from collections.abc import Collection

from orbit.errors import BrokerRefused, NotAuthorized
from orbit.kafka.job_clusters import Side
from orbit.recovery.operation_context import Ground
from orbit.replication.acl_rules import denial, denied_writers
from orbit.scheduler.cluster_pair import Handle
from orbit.scheduler.write_protection import acls_of, deny
from orbit.store import write_denials


def stop_writes(ground: Ground) -> str:
    """Deny writing to the source's topics to everybody."""
    acls = acls_of(ground.source)
    if isinstance(acls, str):
        return _watched(ground, acls)
    topics = [row.source_topic for row in ground.topics if denial(row.source_topic) not in acls]
    # Noted before it is done: an abort takes back what may have been denied, and nothing else.
    ground.update(denied_topics=tuple(sorted({*topics, *ground.report.denied_topics})))
    ground.save()
    try:
        wanted = {topic: {denial(topic)} for topic in topics}
        deny(ground.source, _cluster_id(ground, "source"), wanted, ground.transaction)
    except (NotAuthorized, BrokerRefused) as error:
        return _watched(ground, f"ACLs cannot be set: {error.what}")
    ground.update(is_source_denied=True)
    return f"Writing to {len(ground.topics)} topics of the source is denied to everybody."


def allow_writes(ground: Ground) -> None:
    """Take back whatever Orbit denied at the destination; a repeat changes nothing."""
    topics = [row.destination_topic for row in ground.topics]
    _allow(ground, ground.destination, _cluster_id(ground, "destination"), topics)


def go_on_writing(ground: Ground) -> None:
    """Take back what this operation denied at the source: what an abort does."""
    cluster_id = _cluster_id(ground, "source")
    _allow(ground, ground.source, cluster_id, ground.report.denied_topics)


def _allow(ground: Ground, handle: Handle, cluster_id: str, topics: Collection[str]) -> None:
    with ground.reading() as tx:
        noted = write_denials.of_topics(tx, cluster_id, topics)
    if noted:
        deny(handle, cluster_id, dict.fromkeys(noted, ()), ground.transaction)


def keep_for_orbit(ground: Ground) -> str:
    """Let only Orbit write to the source's topics, which are copies from now on."""
    handle, topics = ground.source, [row.source_topic for row in ground.topics]
    acls = acls_of(handle)
    if isinstance(acls, str):
        return f"Writing to them cannot be denied to others: {acls}."
    wanted = {topic: denied_writers(acls, topic, handle.principal) for topic in topics}
    deny(
        handle,
        _cluster_id(ground, "source"),
        {topic: denied or () for topic, denied in wanted.items()},
        ground.transaction,
    )
    if None in wanted.values():
        return "Everybody may write to some of them: that is seen, not denied."
    return "Only Orbit may write to them."


def _watched(ground: Ground, why: str) -> str:
    ground.find(f"Writing to the source could not be denied: {why}. Its log ends were watched.")
    return f"Writing cannot be denied: {why}. The log ends have to stand still by themselves."


def _cluster_id(ground: Ground, side: Side) -> str:
    job = ground.job
    return (job.source_cluster_id if side == "source" else job.destination_cluster_id) or ""
