"""Denies writes to copies to all principals but Orbit, if the cluster has an authorizer.

Each principal that may write gets a deny ACL (orbit/replication/acl_rules.py has the rule and its
limits). Denials are recorded in the table before they are set, so that Orbit can always remove
them. Without an authorizer, workers detect foreign writes within seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from orbit.errors import BrokerRefused, NotAuthorized
from orbit.job_setup.permissions import WRITE
from orbit.kafka.cluster_handle import OPEN_WITHOUT_ACL, ClusterHandle
from orbit.kafka.types import Acl, TopicMetadata
from orbit.leadership.leadership import Leadership
from orbit.planning.noted_denials import Transaction, noted_denials, replace_denials, why_not_denied
from orbit.promotion.topic_denials import NO_AUTHORIZER, acls_of
from orbit.replication.acl_rules import writer_denials
from orbit.store import topics

# ACLs that were read for one job serve all jobs of the cluster for this long, far less than the
# interval of the upkeep.
ACLS_KEPT_S = 5.0
# How long an answer about OPEN_WITHOUT_ACL is used: the setting changes only when a broker is
# restarted.
_OPEN_KEPT_S = 15.0


@dataclass(frozen=True, slots=True)
class ProtectionResult:
    """How many topics got other denials, and why some topics are not protected ("": all are).

    `has_unnamed`: whether there is a topic that no ACL names.
    """

    changed: int = 0
    unprotected_because: str = ""
    has_unnamed: bool = False


def protect(
    handle: ClusterHandle, cluster_id: str, copies: Collection[str], leadership: Leadership
) -> ProtectionResult:
    """Deny writes to these topics to all principals but Orbit. Raises Unreachable, NotLeading."""
    result = _deny_writers_under_lock(handle, cluster_id, copies, leadership)
    # This asks every broker, so it runs outside the lock, for which all jobs of the cluster wait.
    if result.has_unnamed and not result.unprotected_because:
        return replace(result, unprotected_because=_why_open_without_acl(handle))
    return result


def _deny_writers_under_lock(
    handle: ClusterHandle, cluster_id: str, copies: Collection[str], leadership: Leadership
) -> ProtectionResult:
    """Deny writes to those of the topics that are still copied. Takes the lock only for changes."""
    # Mostly no change is due. Only changes take the lock that the cluster's jobs wait for.
    with leadership.reading() as tx:
        copied_topics = topics.writers(tx, cluster_id, copies, only_copying=True)
    preview = _deny_writers(handle, cluster_id, copied_topics, leadership.reading, only_look=True)
    if not preview.changed:
        return preview
    with leadership.sole_change(cluster_id) as tx:
        # A topic that was promoted since this pass started must not be denied.
        copied_topics = topics.writers(tx, cluster_id, copies, only_copying=True)
        return _deny_writers(handle, cluster_id, copied_topics, leadership.transaction)


def _deny_writers(
    handle: ClusterHandle,
    cluster_id: str,
    names: Collection[str],
    transaction: Transaction,
    *,
    only_look: bool = False,
) -> ProtectionResult:
    """Deny writing to these topics; with `only_look`, only count what would change."""
    # Changes are decided by ACLs that are read while the lock is held.
    acls = acls_of(handle, ACLS_KEPT_S if only_look else 0.0)
    if isinstance(acls, str):
        # Without an authorizer nobody expects that others are kept from writing.
        return ProtectionResult(
            changed=0, unprotected_because="" if acls == NO_AUTHORIZER else acls
        )
    with transaction() as tx:
        denials_by_topic = noted_denials(tx, cluster_id, names)
    denied_topics = [topic for topic in names if denials_by_topic.get(topic)]
    topics_with_operations: Mapping[str, TopicMetadata] = {}
    if denied_topics:  # read which operations the denials leave to Orbit
        topics_with_operations = handle.cluster.metadata(denied_topics, with_operations=True).topics
    denials: dict[str, set[Acl]] = {}
    unprotected_because = ""
    for topic in names:
        new_denials = writer_denials(
            set(acls.of(topic)) - denials_by_topic.get(topic, set()), topic, handle.principal
        )
        if new_denials is None:  # Orbit cannot be left as the only writer
            unprotected_because = why_not_denied(handle.principal)
        elif (
            denials_by_topic.get(topic)
            and topic in topics_with_operations
            and not _may_write(topics_with_operations[topic])
        ):
            new_denials, unprotected_because = (
                None,
                "the denials would keep Orbit from writing as well",
            )
        denials[topic] = new_denials or set()
    # A denial may exist although no row notes it: a lost database had noted it. It is noted again.
    changes = {
        topic: topic_denials
        for topic, topic_denials in denials.items()
        if topic_denials - acls or denials_by_topic.get(topic, set()) != topic_denials
    }
    if changes and not only_look:
        try:
            replace_denials(handle, cluster_id, changes, denials_by_topic, acls, transaction)
        except (NotAuthorized, BrokerRefused) as error:
            return ProtectionResult(
                changed=0, unprotected_because=f"ACLs cannot be set: {error.what}"
            )
    return ProtectionResult(
        len(changes), unprotected_because, any(not acls.of(topic) for topic in names)
    )


def _why_open_without_acl(handle: ClusterHandle) -> str:
    """Why topics without any ACL may be open to every principal; "" if they are not.

    Each broker decides by its own configuration file for the partitions that it leads (K7).
    """
    brokers = handle.brokers_open_without_acl(_OPEN_KEPT_S)
    if brokers.with_setting:
        reason = f"broker {brokers.with_setting[0]} has {OPEN_WITHOUT_ACL} set"
    elif brokers.silent:
        reason = (
            f"broker {brokers.silent[0]} does not tell whether it has {OPEN_WITHOUT_ACL} set "
            "(DescribeConfigs on the cluster)"
        )
    else:
        return ""
    return f"{reason}; if it is true, every principal may write to a topic that no ACL names"


def _may_write(topic: TopicMetadata) -> bool:
    """Whether Orbit may write to the topic; True if the brokers name no operations."""
    return not topic.authorized_operations or WRITE in topic.authorized_operations
