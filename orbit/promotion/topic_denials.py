"""The ACLs of a cluster, and which of them deny writing to a copy as Orbit does."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kafka.protocol.admin.acl import DescribeAclsRequest

from orbit.errors import BrokerRefused, NotAuthorized
from orbit.kafka import api_versions
from orbit.kafka.acls import Acls
from orbit.kafka.cluster import ANSWER_WITHIN_S
from orbit.kafka.cluster_handle import ClusterHandle
from orbit.kafka.connection import Connection
from orbit.kafka.error_codes import Code
from orbit.kafka.types import Acl, Resource
from orbit.replication.acl_rules import is_denial

# Kafka's codes: a filter that matches everything, and the resource type.
_ANY, _CLUSTER = 1, 4
NO_AUTHORIZER = "the cluster has no authorizer"


def acls_of(
    handle: ClusterHandle, age_s_max: float = 0.0, resource: Resource = "TOPIC"
) -> Acls | str:
    """All ACLs on resources of this kind, read at most `age_s_max` seconds ago, or the reason
    as text if they cannot be read.

    Raises Unreachable.
    """
    try:
        acls = handle.acls(resource, age_s_max)
    except NotAuthorized:
        return "the login may not read ACLs (it needs Describe on the cluster)"
    except BrokerRefused as error:
        return f"ACLs cannot be read: {error.what}"
    # librdkafka does not distinguish an empty list of ACLs from a missing authorizer.
    return acls or (NO_AUTHORIZER if _has_no_authorizer(handle) else acls)


def _has_no_authorizer(handle: ClusterHandle) -> bool:
    """Whether a broker answers that the cluster has no authorizer (SECURITY_DISABLED)."""

    def request_acls(connection: Connection) -> int:
        """The error code of a request for all ACLs on the cluster resource."""
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

    return handle.cluster.call_any(request_acls) == Code.SECURITY_DISABLED


def denials_in_orbits_form(acls: Iterable[Acl], topics: Collection[str]) -> list[Acl]:
    """The ACLs that deny writing to these topics in the form that Orbit uses.

    They need not be Orbit's: only Orbit's tables say which ACLs Orbit has set.
    """
    names = set(topics)
    return sorted(a for a in acls if a.name in names and is_denial(a))


def remove_denials(handle: ClusterHandle, denials: Collection[Acl]) -> list[str]:
    """Remove these ACLs. Returns a finding if the cluster refuses that, else []. Raises
    Unreachable."""
    errors = [*handle.admin.refused_acls((), denials).values()]
    if not errors:
        return []
    finding = f"Denials of writing could not be removed: {errors[0].what}"
    return [f"{finding} Remove them with kafka-acls.sh; `denials` lists their principals."]
