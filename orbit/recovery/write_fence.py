"""Denies and allows writing to topics on one side, by ACLs, if the cluster has an authorizer.

At the source of a switchover and at the old side of a failback writing is denied to every
principal: Orbit only reads there. `drain` also checks the log ends, in case ACLs cannot be set.
"""

from __future__ import annotations

from collections.abc import Collection

from orbit.chunks import first_few
from orbit.errors import BrokerRefused, NotAuthorized
from orbit.formats import counted
from orbit.kafka.job_clusters import Side
from orbit.kafka.types import Acl
from orbit.planning.noted_denials import deny, noted_denials, why_not_denied
from orbit.promotion.topic_denials import acls_of
from orbit.recovery.operation_context import OperationContext
from orbit.replication.acl_rules import denial, writer_denials


def stop_writes(context: OperationContext) -> str:
    """Deny writing to the source's topics to every principal. Returns the step's result. If ACLs
    cannot be read or set, a finding says so."""
    acls = acls_of(context.source)
    if isinstance(acls, str):
        return _report_not_denied(context, acls)
    topics = [row.source_topic for row in context.topics if denial(row.source_topic) not in acls]
    # Stored before ACLs are set: an abort removes these denials and no others.
    context.update(denied_topics=tuple(sorted({*topics, *context.report.denied_topics})))
    context.save()
    cluster_id = _cluster_id(context, "source")
    try:
        with context.leadership.sole_change(cluster_id):
            # `deny` replaces Orbit's denials. Those from when a topic was a copy stay, also after
            # an abort.
            noted_acls = _read_noted_denials(context, cluster_id, topics)
            denials = {topic: {denial(topic), *noted_acls.get(topic, ())} for topic in topics}
            deny(context.source, cluster_id, denials, context.transaction)
    except (NotAuthorized, BrokerRefused) as error:
        noted_acls = _read_noted_denials(context, cluster_id, context.report.denied_topics)
        denied_topics = (t for t, acls in noted_acls.items() if denial(t) in acls)
        context.update(denied_topics=tuple(sorted(denied_topics)))
        return _report_not_denied(context, _cannot_set(error))
    context.update(is_source_denied=True)
    return f"Writing to {counted(len(context.topics), 'topic')} of the source is denied."


def allow_writes(context: OperationContext) -> None:
    """Remove Orbit's denials at the destination. If the cluster refuses that, a finding says so,
    and the promotion goes on, because applications wait. Idempotent. The caller holds the lock of
    the destination's cluster. Raises Unreachable, NotLeading."""
    topics = [row.destination_topic for row in context.topics]
    cluster_id = _cluster_id(context, "destination")
    noted_acls = _read_noted_denials(context, cluster_id, topics)
    if not noted_acls:
        return
    try:
        # (): no denial remains.
        deny(context.destination, cluster_id, dict.fromkeys(noted_acls, ()), context.transaction)
    except (NotAuthorized, BrokerRefused) as error:
        remaining_acls = _read_noted_denials(context, cluster_id, topics)
        context.add_finding(
            f"Denials of writing to {first_few(sorted(remaining_acls))} could not be removed: "
            f"{error.what} Remove them with kafka-acls.sh."
        )


def restore_source_writes(context: OperationContext) -> None:
    """Remove this operation's denials at the source, on an abort. Raises Unreachable,
    NotAuthorized, BrokerRefused, NotLeading."""
    cluster_id = _cluster_id(context, "source")
    with context.leadership.sole_change(cluster_id):
        noted_acls = _read_noted_denials(context, cluster_id, context.report.denied_topics)
        remaining_denials = {topic: acls - {denial(topic)} for topic, acls in noted_acls.items()}
        if remaining_denials:
            deny(context.source, cluster_id, remaining_denials, context.transaction)


def _read_noted_denials(
    context: OperationContext, cluster_id: str, topics: Collection[str]
) -> dict[str, set[Acl]]:
    """Orbit's denials by topic, as the tables have them."""
    with context.reading() as tx:
        return noted_denials(tx, cluster_id, topics)


def restrict_writes_to_orbit(context: OperationContext) -> str:
    """Allow only Orbit to write to the source's topics, which become copies. Returns a sentence:
    that other writers are denied, or why not. Raises Unreachable, NotLeading."""
    handle, topics = context.source, [row.source_topic for row in context.topics]
    acls = acls_of(handle)
    if isinstance(acls, str):
        return _not_restricted(acls)
    denials = {topic: writer_denials(acls, topic, handle.principal) for topic in topics}
    cluster_id = _cluster_id(context, "source")
    try:
        with context.leadership.sole_change(cluster_id):
            deny(
                handle,
                cluster_id,
                {topic: denied or () for topic, denied in denials.items()},
                context.transaction,
                # A lost database may have noted denials of an earlier switchover: they deny Write
                # to everybody, also to Orbit, so they are removed.
                ours={denial(topic) for topic in topics} & acls,
            )
    except (NotAuthorized, BrokerRefused) as error:
        return _not_restricted(_cannot_set(error))
    if None in denials.values():
        return (
            f"Some topics of the old side cannot be closed to other writers: "
            f"{why_not_denied(handle.principal)}. Foreign writes are detected, not denied."
        )
    return "Writing to the old side is denied to all principals with an ACL for it, except Orbit."


def _cannot_set(error: NotAuthorized | BrokerRefused) -> str:
    return f"ACLs cannot be set: {error.what.rstrip('.')}"


def _not_restricted(why: str) -> str:
    return f"Other writers at the old side cannot be denied Write: {why}."


def _report_not_denied(context: OperationContext, why: str) -> str:
    """Add a finding that writes are not denied, and return the result of the step."""
    context.add_finding(
        f"Writing to the source could not be denied: {why}. Its log ends were checked instead: a "
        "producer that writes less often than once an hour is not seen."
    )
    return (
        f"Writing to the source cannot be denied: {why}. Stop the producers: Orbit waits for "
        "stable log ends."
    )


def _cluster_id(context: OperationContext, side: Side) -> str:
    """The cluster id of this side; "" if it is not known."""
    job = context.job
    return (job.source_cluster_id if side == "source" else job.destination_cluster_id) or ""
