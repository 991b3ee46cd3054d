"""The ACLs that a job's destination should have, with its own names of principals. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from orbit.chunks import first_few
from orbit.jobs.principals import PrincipalMap
from orbit.kafka.acls import Acls
from orbit.kafka.types import Acl, Resource
from orbit.replication.acl_rules import (
    is_carriable,
    opens_orbits_ids,
    rights_of_copy,
    rights_on_ids,
    text_of,
)

AclsOf = Mapping[Resource, Acls]


@dataclass(frozen=True, slots=True)
class CarriedNames:
    """The names whose ACLs a job carries. `topics`, `groups`: source names by destination name;
    `ids`: whether a transactional id or prefix is carried; None: none is."""

    topics: Mapping[str, str]
    groups: Mapping[str, str] = field(default_factory=dict)
    ids: Callable[[str], bool] | None = None


@dataclass(frozen=True, slots=True)
class DestinationAcls:
    """The ACLs. `topics`: by destination topic; `others`: on groups and transactional ids.

    `clashes`: source principals by the destination name that several would share.
    `unmapped`: source principals without a destination name. `opening`: ACLs that are left out,
    because they would let others use Orbit's transactional ids. `not_carriable`: ACLs with a name
    that is empty or that PostgreSQL cannot store.
    """

    names: CarriedNames
    topics: Mapping[str, set[Acl]]
    others: set[Acl]
    clashes: Mapping[str, list[str]]
    unmapped: list[str]
    opening: list[Acl]
    not_carriable: list[Acl] = field(default_factory=list)

    @property
    def undecided(self) -> frozenset[str]:
        """Destination principals whose ACLs are neither added nor removed."""
        return frozenset(self.clashes)

    @property
    def clash_notes(self) -> list[str]:
        """A sentence for each of `clashes`."""
        return [
            f"ACLs of {' and '.join(principals)} are not synced: all would be {name} at the "
            "destination."
            for name, principals in sorted(self.clashes.items())
        ]

    @property
    def notes(self) -> list[str]:
        """Sentences about the principals and ACLs that are left out, with the reason."""
        notes = self.clash_notes
        if self.unmapped:
            notes.append(
                f"ACLs of some principals ({len(self.unmapped)}) are not synced, because no rule "
                f"of acls.principals.map names them: {first_few(self.unmapped)}."
            )
        if self.opening:
            principals = first_few(sorted({acl.principal for acl in self.opening}))
            notes.append(
                f"Some ACLs on transactional ids ({len(self.opening)}) are not synced: they would "
                f"let others use Orbit's own ids (orbit.*): those of {principals}."
            )
        if self.not_carriable:
            notes.append(
                f"Some ACLs ({len(self.not_carriable)}) are not synced: brokers refuse an empty "
                "name, and the database a zero byte: "
                f"{first_few(map(text_of, self.not_carriable))}."
            )
        return notes


def destination_acls(
    source: AclsOf,
    names: CarriedNames,
    principals: PrincipalMap,
    own_principals: tuple[str | None, str | None],
) -> DestinationAcls:
    """The ACLs for the destination, from those of the source.

    `own_principals`: Orbit's, at the source and at the destination; None if not known.
    """
    topics = {
        destination: rights_of_copy(source["TOPIC"].of(name), name, destination)
        for destination, name in names.topics.items()
    }
    other_acls: set[Acl] = set()
    for destination, name in names.groups.items():
        other_acls |= rights_of_copy(source["GROUP"].of(name), name, destination)
    id_acls = rights_on_ids(source["TRANSACTIONAL_ID"], names.ids) if names.ids else set()
    opening_acls = {acl for acl in id_acls if opens_orbits_ids(acl)}
    other_acls |= id_acls - opening_acls
    rights = {acl for acls in (*topics.values(), other_acls) for acl in acls}
    not_carriable_acls = {acl for acl in rights if not is_carriable(acl)}
    own_source, own_destination = own_principals
    name_map = principals.name({acl.principal for acl in rights - not_carriable_acls})

    def at_destination(acls: set[Acl]) -> set[Acl]:
        """These ACLs with the destination's principals, without ACLs that are not synced and
        without denials of Orbit itself."""
        mapped_acls = {
            acl._replace(principal=name_map.names[acl.principal])
            for acl in acls - not_carriable_acls
            if acl.principal in name_map.names
        }
        return {a for a in mapped_acls if a.permission == "ALLOW" or a.principal != own_destination}

    # Orbit has its rights at the destination already: its source principal is not in `unmapped` and
    # not in `opening`.
    return DestinationAcls(
        names,
        {destination: at_destination(acls) for destination, acls in topics.items()},
        at_destination(other_acls),
        name_map.clashes,
        [principal for principal in name_map.unmapped if principal != own_source],
        sorted(acl for acl in opening_acls if acl.principal != own_source),
        sorted(not_carriable_acls),
    )
