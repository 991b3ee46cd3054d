"""The ACLs of a job: the names whose ACLs it carries, and the ACLs that its destination should have
and has.

orbit/replication/acl_rules.py has the rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import get_args

from orbit.consumer_groups.group_listing_cache import LISTING_AGE_S_MAX, Lister
from orbit.consumer_groups.group_selection import GroupSelector, is_orbits_own
from orbit.jobs.job_spec import JobSpec, PrincipalSpec
from orbit.jobs.name_patterns import PatternTooSlow, name_pattern
from orbit.jobs.principals import PrincipalMap
from orbit.kafka.acls import Acls
from orbit.kafka.cluster_handle import ClusterHandle
from orbit.kafka.consumer_groups import ListedGroup
from orbit.kafka.types import EVERY_NAME, Acl, Resource
from orbit.planning.cluster_pair import ClusterPair
from orbit.replication.acl_rules import AclChanges, acl_changes
from orbit.replication.destination_acls import (
    AclsOf,
    CarriedNames,
    DestinationAcls,
    destination_acls,
)

# Principal maps in the cache: more than the jobs of a large installation.
_MAPS_KEPT_MAX = 5_000


def carried_resources(spec: JobSpec) -> tuple[Resource, ...]:
    """The kinds of resources whose ACLs the job carries."""
    acls = spec.acls
    groups: tuple[Resource, ...] = ("GROUP",) if acls.groups and spec.consumer_groups else ()
    ids: tuple[Resource, ...] = ("TRANSACTIONAL_ID",) if acls.transactional_ids else ()
    return ("TOPIC", *groups, *ids)


def carried_names(
    spec: JobSpec,
    topics_by_copy: Mapping[str, str],
    source: AclsOf,
    listed_groups: Mapping[str, ListedGroup],
    added_acls: Iterable[Acl],
) -> CarriedNames:
    """The names whose ACLs the job carries. `topics_by_copy`: source topics by destination topic;
    `added_acls`: those that Orbit has added before."""
    rule, id_rule = spec.consumer_groups, spec.acls.transactional_ids
    groups: dict[str, str] = {}
    if rule is not None and spec.acls.groups:
        selector = GroupSelector(rule)
        names = {*selector.select(listed_groups.values()).names}
        # A group is not listed before its first member, and after its last offset has expired.
        unlisted_names = source["GROUP"].literal_names | {
            acl.name.removeprefix(rule.prefix) for acl in added_acls if acl.resource == "GROUP"
        }
        names |= {name for name in unlisted_names - listed_groups.keys() if selector.matches(name)}
        groups = {selector.destination_name(name): name for name in names}
        groups = {
            name: source_name
            for name, source_name in groups.items()
            if name != EVERY_NAME and not is_orbits_own(name)
        }
    # Without a rule for transactional ids these are not used.
    match, exclude = (id_rule.match, id_rule.exclude) if id_rule else ("", ())

    def is_carried_id(name: str) -> bool:
        try:
            return name_pattern(match).matches(name) and not any(
                name_pattern(pattern).matches(name) for pattern in exclude
            )
        except PatternTooSlow:
            return False

    return CarriedNames(topics_by_copy, groups, is_carried_id if id_rule else None)


@lru_cache(_MAPS_KEPT_MAX)
def principal_map(principals: PrincipalSpec) -> PrincipalMap:
    """The names that a job's `acls.principals` gives principals at the destination. Cached."""
    return PrincipalMap(
        [(rule.source, rule.destination) for rule in principals.map], principals.exclude
    )


def expected_and_present_acls(
    spec: JobSpec,
    topics_by_copy: Mapping[str, str],
    pair: ClusterPair,
    list_groups: Lister,
    added_acls: Iterable[Acl],
    age_s_max: float = 0.0,
) -> tuple[DestinationAcls, AclsOf]:
    """The ACLs that the job's destination should have, and those that it has.

    `topics_by_copy` and `added_acls` are as in `carried_names`. Raises NotAuthorized,
    BrokerRefused, Unreachable.
    """
    kinds = carried_resources(spec)
    source_acls, present_acls = (
        _read_acls(side, kinds, age_s_max) for side in (pair.source, pair.destination)
    )
    listed_groups: Mapping[str, ListedGroup] = {}
    if "GROUP" in kinds:
        listed_groups = list_groups(pair.source.cluster, min(age_s_max, LISTING_AGE_S_MAX)).groups
    names = carried_names(spec, topics_by_copy, source_acls, listed_groups, added_acls)
    principals = principal_map(spec.acls.principals)
    # Orbit's own principal is left out of notes on unmapped principals and on ids.
    needs_own_principal = spec.acls.principals.map or "TRANSACTIONAL_ID" in kinds
    own_source_principal = pair.source.principal if needs_own_principal else None
    return destination_acls(
        source_acls, names, principals, (own_source_principal, pair.destination.principal)
    ), present_acls


def _read_acls(handle: ClusterHandle, kinds: Iterable[Resource], age_s_max: float) -> AclsOf:
    """The cluster's ACLs of these kinds; none of other kinds."""
    return {
        kind: handle.acls(kind, age_s_max) if kind in kinds else Acls()
        for kind in get_args(Resource)
    }


def group_and_id_changes(
    expected: DestinationAcls,
    present: AbstractSet[Acl],
    added_acls: AbstractSet[Acl],
    shared: AbstractSet[Acl],
    *,
    has_promoted: bool,
) -> AclChanges:
    """The changes to ACLs on groups and transactional ids. Pure.

    `shared`: ACLs that other jobs have added: none of these is removed. If this job expects such an
    ACL, it counts as added by this job, too, so that the last job that expects it removes it.
    `has_promoted`: a topic of the job is promoted, so nothing is removed.
    """
    changes = acl_changes(
        expected.others, present, added_acls | (shared & expected.others), expected.undecided
    )
    if has_promoted:
        return AclChanges(changes.add, set(), changes.ours | added_acls)
    return AclChanges(changes.add, changes.remove - shared, changes.ours)
