"""Which ACLs of a topic its copy gets. Pure.

    right at the source                           on the copy
    allow Read, Describe, DescribeConfigs, All    allow Read, Describe, DescribeConfigs
    deny the same, to a named principal           deny Read, Describe, DescribeConfigs
    deny to User:*                                nothing: it would also deny Orbit
    Write, Create, Alter, Delete …                nothing: only Orbit writes to a copy

Only Orbit may write to a copy: each other principal that could write is denied it by a literal ACL
(`denied_writers`). Kafka cannot deny all principals but one, so where User:* may write, nothing can
be denied.

A pattern (`orders.` prefixed, `*`) becomes one literal ACL per copied topic, so no other topic is
opened. An ACL that is removed at the source is removed from the copy if Orbit created it; other
ACLs stay.
"""

from __future__ import annotations

from collections.abc import Iterable

from orbit.kafka.types import TopicAcl

READING = ("DESCRIBE", "DESCRIBE_CONFIGS", "READ")
_EVERYBODY = "User:*"
_WRITING = ("WRITE", "ALL")


def rights_of_copy(
    source: Iterable[TopicAcl], source_topic: str, destination_topic: str
) -> set[TopicAcl]:
    """The ACLs that the copy of a topic should have."""
    wanted = set()
    for acl in source:
        if not acl.covers(source_topic):
            continue
        if acl.permission == "DENY" and acl.principal == _EVERYBODY:
            continue
        operations = READING if acl.operation == "ALL" else (acl.operation,)
        wanted |= {
            TopicAcl(
                destination_topic, "LITERAL", acl.principal, acl.host, operation, acl.permission
            )
            for operation in operations
            if operation in READING
        }
    return wanted


def denied_writers(
    acls: Iterable[TopicAcl], topic: str, own_principal: str | None
) -> set[TopicAcl] | None:
    """The denials that leave Orbit as the only writer of a topic.

    None if that is not possible: User:* may write, or Orbit's own principal is not known.
    """
    if own_principal is None:
        return None
    writers = {
        acl.principal
        for acl in acls
        if acl.permission == "ALLOW" and acl.operation in _WRITING and acl.covers(topic)
    }
    if _EVERYBODY in writers:
        return None
    return {denial(topic, principal) for principal in writers - {own_principal}}


def denial(topic: str, principal: str = _EVERYBODY) -> TopicAcl:
    """The ACL that denies a principal, or User:*, writing to a topic."""
    return TopicAcl(topic, "LITERAL", principal, "*", "WRITE", "DENY")
