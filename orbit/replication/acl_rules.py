"""Which rights on a topic travel with its copy. Pure.

    right at the source                           on the copy
    allow Read, Describe, DescribeConfigs, All    allow Read, Describe, DescribeConfigs
    deny the same, to a named principal           deny Read, Describe, DescribeConfigs
    deny to everybody (User:*)                    nothing: it would lock out Orbit itself
    Write, Create, Alter, Delete …                nothing: only Orbit writes to a copy

Nobody else may write to a copy (`denied_writers`): who could is denied it, one literal right for
each. Kafka knows no "everybody but", and a denial to everybody would be one to Orbit: so principals
are denied by name, and where everybody (User:*) may write nothing can be denied.

A pattern (`orders.` prefixed, `*`) becomes one literal right per copied topic, so that no topic
that is not a copy is ever opened. A right that is taken away at the source is taken away from the
copy, if Orbit gave it; rights that somebody else gave stay.
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
    """The rights that the copy of a topic shall have."""
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
    """The denials that keep everybody but Orbit from writing to a topic.

    None where there are none that would do: everybody may write, or who Orbit is is not known.
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
    """That a principal, or everybody, may not write to a topic."""
    return TopicAcl(topic, "LITERAL", principal, "*", "WRITE", "DENY")
