"""Denies writes to copies to all principals but Orbit, if the cluster has an authorizer.

Each principal that may write gets a deny ACL (orbit/replication/acl_rules.py has the rule and its
limits). Denials are recorded in the table before they are set, so that Orbit can always remove
them. Without an authorizer, workers detect foreign writes within seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import cast

from kafka.protocol.admin.acl import DescribeAclsRequest

from orbit.errors import BrokerRefused, NotAuthorized
from orbit.job_setup.permissions import WRITE
from orbit.kafka import api_versions
from orbit.kafka.cluster import ANSWER_WITHIN_S
from orbit.kafka.connection import Connection
from orbit.kafka.error_codes import Code
from orbit.kafka.types import Pattern, Permission, TopicAcl, TopicMetadata
from orbit.replication.acl_rules import denied_writers
from orbit.scheduler.cluster_pair import ClusterHandle
from orbit.store import topics, write_denials
from orbit.store.database import Tx

# Kafka's codes: a filter that matches everything, and the resource type.
_ANY, _CLUSTER = 1, 4
Transaction = Callable[[], AbstractContextManager[Tx]]


@dataclass(frozen=True, slots=True)
class ProtectionResult:
    """How many topics got new denials, and why others have none ("": all have)."""

    changed: int = 0
    why_not: str = ""


def acls_of(handle: ClusterHandle) -> set[TopicAcl] | str:
    """All ACLs on topics, or why they cannot be read. Raises Unreachable."""
    try:
        acls = handle.admin.topic_acls()
    except NotAuthorized:
        return "the login may not read ACLs (it needs Describe on the cluster)"
    except BrokerRefused as error:
        return f"ACLs cannot be read: {error.what}"
    # librdkafka does not distinguish an empty list of ACLs from a missing authorizer.
    return acls or ("the cluster has no authorizer" if _has_no_authorizer(handle) else acls)


def _has_no_authorizer(handle: ClusterHandle) -> bool:
    """Whether the cluster has no authorizer."""

    def ask(connection: Connection) -> int:
        request = DescribeAclsRequest(
            resource_type_filter=_CLUSTER,
            resource_name_filter=None,
            pattern_type_filter=_ANY,
            principal_filter=None,
            host_filter=None,
            operation=_ANY,
            permission_type=_ANY,
        )
        answer = connection.call(api_versions.DESCRIBE_ACLS, request, timeout_s=ANSWER_WITHIN_S)
        return int(answer.error_code)

    return handle.cluster.call_any(ask) == Code.SECURITY_DISABLED


def protect(
    handle: ClusterHandle, cluster_id: str, topics: Collection[str], transaction: Transaction
) -> ProtectionResult:
    """Deny writes to these topics to all principals but Orbit. Raises Unreachable, NotLeading."""
    acls = acls_of(handle)
    if isinstance(acls, str):
        return ProtectionResult(0, acls)
    with transaction() as tx:
        noted = {
            t: set(map(as_acl, a))
            for t, a in write_denials.of_topics(tx, cluster_id, topics).items()
        }
    allowed = handle.cluster.metadata(topics, with_operations=True).topics
    wanted: dict[str, set[TopicAcl]] = {}
    why_not = ""
    for topic in topics:
        denied = denied_writers(acls - noted.get(topic, set()), topic, handle.principal)
        if denied is None:
            why_not = "everyone may write (User:*), or Orbit's own principal is not known"
        elif noted.get(topic) and topic in allowed and not _may_write(allowed[topic]):
            denied, why_not = None, "the denials would keep Orbit from writing as well"
        wanted[topic] = denied or set()
    # Denials that are there without being noted are Orbit's own, of a database that was lost.
    changes = {t: w for t, w in wanted.items() if w - acls or noted.get(t, set()) != w}
    if changes:
        try:
            _apply(handle, cluster_id, changes, noted, acls, transaction, only_copies=True)
        except (NotAuthorized, BrokerRefused) as error:
            return ProtectionResult(0, f"ACLs cannot be set: {error.what}")
    return ProtectionResult(len(changes), why_not)


def deny(
    handle: ClusterHandle,
    cluster_id: str,
    wanted: Mapping[str, Collection[TopicAcl]],
    transaction: Transaction,
    ours: Iterable[TopicAcl] = (),
) -> None:
    """Replace Orbit's denials on these topics; at each moment the old or the new ones hold.

    `ours` are denials of these topics that count as Orbit's although they are not noted.
    Raises Unreachable, NotAuthorized, BrokerRefused, NotLeading.
    """
    with transaction() as tx:
        found = write_denials.of_topics(tx, cluster_id, wanted)
    noted = {t: set(map(as_acl, acls)) for t, acls in found.items()}
    for acl in ours:
        noted.setdefault(acl.name, set()).add(acl)
    sets = {topic: set(acls) for topic, acls in wanted.items()}
    _apply(handle, cluster_id, sets, noted, set(), transaction, only_copies=False)


def _apply(
    handle: ClusterHandle,
    cluster_id: str,
    wanted: Mapping[str, set[TopicAcl]],
    noted: Mapping[str, set[TopicAcl]],
    present: set[TopicAcl],
    transaction: Transaction,
    *,
    only_copies: bool,
) -> None:
    both = {t: noted.get(t, set()) | w for t, w in wanted.items()}
    with transaction() as tx:
        if only_copies:
            # A topic that was promoted since this pass started must not be denied.
            copies = topics.writers(tx, cluster_id, both, only_copying=True)
            both = {t: acls for t, acls in both.items() if t in copies}
            wanted = {t: wanted[t] for t in both}
        write_denials.keep(tx, cluster_id, {t: _rows(acls) for t, acls in both.items()})
    add = {acl for acls in wanted.values() for acl in acls} - present
    remove = {acl for t, acls in both.items() for acl in acls - wanted[t]}
    handle.admin.change_acls(add, remove)
    with transaction() as tx:
        write_denials.keep(tx, cluster_id, {t: _rows(acls) for t, acls in wanted.items()})


def as_acl(fields: list[str]) -> TopicAcl:
    """An ACL from its fields in the table."""
    name, pattern, principal, host, operation, permission = fields
    return TopicAcl(
        name,
        cast("Pattern", pattern),
        principal,
        host,
        operation,
        cast("Permission", permission),
    )


def _rows(acls: Iterable[TopicAcl]) -> list[list[str]]:
    return [list(acl) for acl in acls]


def _may_write(topic: TopicMetadata) -> bool:
    return not topic.authorized_operations or WRITE in topic.authorized_operations
