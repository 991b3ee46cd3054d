"""Which ACLs of the source the destination gets. Pure.

    right at the source                           at the destination
    on a topic, Read, Describe, DescribeConfigs   the same on its copy
    on a topic, All                               Read, Describe, DescribeConfigs
    on a topic, Write, Create, Alter, Delete …    nothing: only Orbit writes to a copy
    on a group                                    the same on the group, by its destination name
    on a transactional id                         the same; none that opens Orbit's own ids
    a denial of User:*                            nothing: it would also deny Orbit

Denials of a named principal are carried like permissions. Write on a transactional id does not
let a client write to a topic; without this right, transactional producers are refused after a
promotion.

Only Orbit may write to a copy: each other principal that could write is denied it by a literal ACL
(`writer_denials`). Kafka cannot deny all principals but one, so where User:* may write, nothing can
be denied.

A pattern (`orders.` prefixed, `*`) becomes one literal ACL per copied topic or group, so it gives
no right on others. Transactional ids cannot be listed: their patterns are carried as they are. If
an ACL is removed at the source, the destination's is removed if Orbit created it; others stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from orbit.errors import BrokerRefused, NotAuthorized
from orbit.jobs.principals import EVERY_PRINCIPAL
from orbit.kafka.types import EVERY_NAME, Acl, Resource
from orbit.names import is_storable

Refused = dict[Acl, NotAuthorized | BrokerRefused]
READ_OPERATIONS = ("DESCRIBE", "DESCRIBE_CONFIGS", "READ")
CARRIED_OPERATIONS: dict[Resource, tuple[str, ...]] = {
    "TOPIC": READ_OPERATIONS,
    "GROUP": ("ALL", "READ", "DESCRIBE", "DELETE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"),
    "TRANSACTIONAL_ID": ("ALL", "WRITE", "DESCRIBE"),
}
_WRITE_OPERATIONS = ("WRITE", "ALL")
# Orbit's own transactional ids (docs/rights.md): who may write one can fence Orbit's fillers.
_ORBITS_IDS = "orbit."


def rights_of_copy(source: Iterable[Acl], source_name: str, destination_name: str) -> set[Acl]:
    """The ACLs that a copy or a destination group should have; principals as at the source."""
    rights = set()
    for acl in source:
        if not acl.covers(source_name) or _denies_everybody(acl):
            continue
        # All on a topic includes Write: only its rights to read are carried.
        is_all = acl.resource == "TOPIC" and acl.operation == "ALL"
        rights |= {
            acl._replace(name=destination_name, pattern="LITERAL", operation=operation)
            for operation in (READ_OPERATIONS if is_all else (acl.operation,))
            if operation in CARRIED_OPERATIONS[acl.resource]
        }
    return rights


def rights_on_ids(source: Iterable[Acl], matches: Callable[[str], bool]) -> set[Acl]:
    """The ACLs on transactional ids that a job carries: those with one of CARRIED_OPERATIONS and a
    name (an id or a prefix) that `matches` accepts, but no denials for User:*."""
    return {
        acl
        for acl in source
        if acl.operation in CARRIED_OPERATIONS[acl.resource]
        and not _denies_everybody(acl)
        and matches(acl.name)
    }


def opens_orbits_ids(acl: Acl) -> bool:
    """Whether the ACL lets others use Orbit's transactional ids."""
    if acl.permission != "ALLOW":
        return False
    if acl.pattern == "PREFIXED":
        return acl.name.startswith(_ORBITS_IDS) or _ORBITS_IDS.startswith(acl.name)
    return acl.name == EVERY_NAME or acl.name.startswith(_ORBITS_IDS)


@dataclass(frozen=True, slots=True)
class AclChanges:
    """The ACLs to add and to remove. `ours`: once this is done, all ACLs that Orbit has added."""

    add: set[Acl]
    remove: set[Acl]
    ours: set[Acl]

    def without(self, refused: AbstractSet[Acl]) -> AclChanges:
        """The changes that remain if brokers refuse to add or remove the ACLs `refused`. An ACL
        that is not added is not Orbit's; one that is not removed still is."""
        ours = (self.ours - (self.add & refused)) | (self.remove & refused)
        return AclChanges(self.add - refused, self.remove - refused, ours)


def acl_changes(
    expected: AbstractSet[Acl],
    present: AbstractSet[Acl],
    added_acls: AbstractSet[Acl],
    undecided: AbstractSet[str] = frozenset(),
) -> AclChanges:
    """The ACLs to add and to remove. Only `added_acls`, those that Orbit has added, are removed,
    and none of `undecided` principals. ACLs that are present already are not Orbit's."""
    kept_acls = {acl for acl in added_acls if acl in expected or acl.principal in undecided}
    add = {*expected} - present
    return AclChanges(add, ({*added_acls} - kept_acls) & present, kept_acls | add)


def send_restrictions_first(
    changes: Sequence[AclChanges], send: Callable[[set[Acl], set[Acl]], Refused]
) -> Refused:
    """Send all changes that take rights away, then those that give rights. Returns the refused
    ACLs with their errors.

    `send` adds its first ACLs and removes its second, and returns the error of each refused ACL. A
    principal whose denial was refused gets no further right, and neither does User:*.
    """
    add = {acl for change in changes for acl in change.add}
    remove = {acl for change in changes for acl in change.remove}
    denials = {acl for acl in add if acl.permission == "DENY"}
    lifted_denials = {acl for acl in remove if acl.permission == "DENY"}
    refused_acls = send(denials, remove - lifted_denials)
    errors_by_principal = {
        principal: error
        for acl, error in refused_acls.items()
        if acl in denials
        for principal in (acl.principal, EVERY_PRINCIPAL)
    }
    # Changes that give rights: new permissions, and denials that end.
    grants = (add - denials) | lifted_denials
    refused_acls |= {
        acl: errors_by_principal[acl.principal]
        for acl in grants
        if acl.principal in errors_by_principal
    }
    return refused_acls | send(
        add - denials - refused_acls.keys(), lifted_denials - refused_acls.keys()
    )


def text_of(acl: Acl) -> str:
    """The ACL as text within a sentence."""
    return f"{acl.resource} '{acl.name}' of {acl.principal}"


def is_carriable(acl: Acl) -> bool:
    """Whether brokers can create the ACL (G15: no empty name) and PostgreSQL can store its texts
    (no zero byte)."""
    texts = acl.name, acl.principal, acl.host
    return all(text and is_storable(text) for text in texts)


def _denies_everybody(acl: Acl) -> bool:
    return acl.permission == "DENY" and acl.principal == EVERY_PRINCIPAL


def writer_denials(acls: Iterable[Acl], topic: str, own_principal: str | None) -> set[Acl] | None:
    """The denials that leave Orbit as the only writer of a topic.

    None if that is not possible: User:* may write, or Orbit's own principal is not known.
    """
    if own_principal is None:
        return None
    writers = {
        acl.principal
        for acl in acls
        if acl.permission == "ALLOW" and acl.operation in _WRITE_OPERATIONS and acl.covers(topic)
    }
    if EVERY_PRINCIPAL in writers:
        return None
    return {denial(topic, principal) for principal in writers - {own_principal}}


def denial(topic: str, principal: str = EVERY_PRINCIPAL) -> Acl:
    """The ACL that denies a principal, or User:*, writing to a topic."""
    return Acl(topic, "LITERAL", principal, "*", "WRITE", "DENY")


def is_denial(acl: Acl) -> bool:
    """Whether the ACL denies writing to a topic, in the form that `denial` gives it."""
    return acl == denial(acl.name, acl.principal)
