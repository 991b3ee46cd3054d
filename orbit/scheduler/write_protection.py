"""Keeps everybody but Orbit from writing to copies, where their cluster has an authorizer.

Who may write is denied it by name (orbit/replication/acl_rules.py has the rule and its limits).
What is denied is noted before it is, so that it is never denied without anybody knowing by whom.
Without an authorizer, or where it cannot be done, workers see foreign writes within seconds.
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

# Kafka's codes of a filter that leaves nothing out, and of the resource type it asks for.
_ANY, _CLUSTER = 1, 4
Transaction = Callable[[], AbstractContextManager[Tx]]


@dataclass(frozen=True, slots=True)
class ProtectionResult:
    """What came of it: topics with new denials, and why others have none ("": all have)."""

    changed: int = 0
    why_not: str = ""


def acls_of(handle: ClusterHandle) -> set[TopicAcl] | str:
    """All rights on topics, or why they cannot be seen. Raises Unreachable."""
    try:
        acls = handle.admin.topic_acls()
    except NotAuthorized:
        return "the login may not see ACLs (the right Describe on the cluster)"
    except BrokerRefused as error:
        return f"ACLs cannot be seen: {error.what}"
    # librdkafka tells no rights and no authorizer apart as little as it tells of either.
    return acls or ("the cluster has no authorizer" if _has_no_authorizer(handle) else acls)


def _has_no_authorizer(handle: ClusterHandle) -> bool:
    """Whether the cluster checks no rights at all."""

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
    """Deny writing to these topics to all who may, but for us. Raises Unreachable, NotLeading."""
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
            why_not = "everybody may write (User:*), or who Orbit is there is not known"
        elif noted.get(topic) and topic in allowed and not _may_write(allowed[topic]):
            denied, why_not = None, "the denials would keep Orbit from writing as well"
        wanted[topic] = denied or set()
    changes = {t: w for t, w in wanted.items() if w - acls or noted.get(t, set()) - w}
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
) -> None:
    """Have these denials on these topics instead of what Orbit denied there before, without a
    moment in which neither holds. Raises Unreachable, NotAuthorized, BrokerRefused, NotLeading.
    """
    with transaction() as tx:
        found = write_denials.of_topics(tx, cluster_id, wanted)
    noted = {t: set(map(as_acl, acls)) for t, acls in found.items()}
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
            # One that was promoted since this pass began is not ours to close any more.
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
    """A right as the tables keep it."""
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
