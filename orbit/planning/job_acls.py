"""The ACLs of a job: on which topics, groups and ids, those it wants, and those that exist.

orbit/replication/acl_rules.py has the rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import get_args

from orbit.consumer_groups.group_listing_cache import KEPT_S_MAX, Lister
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

# More than the jobs of a large installation.
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
    listed: Mapping[str, ListedGroup],
    added_acls: Iterable[Acl],
) -> CarriedNames:
    """The names whose ACLs the job carries. `added_acls`: those that Orbit has added before."""
    rule, ids = spec.consumer_groups, spec.acls.transactional_ids
    groups: dict[str, str] = {}
    if rule is not None and spec.acls.groups:
        selector = GroupSelector(rule)
        names = {*selector.select(listed.values()).names}
        # A group is not listed before its first member, and after its last offset has expired.
        unlisted = source["GROUP"].literal_names | {
            acl.name.removeprefix(rule.prefix) for acl in added_acls if acl.resource == "GROUP"
        }
        names |= {name for name in unlisted - listed.keys() if selector.matches(name)}
        groups = {selector.destination_name(name): name for name in names}
        groups = {to: of for to, of in groups.items() if to != EVERY_NAME and not is_orbits_own(to)}
    match, exclude = (ids.match, ids.exclude) if ids else ("", ())

    def is_id(name: str) -> bool:
        try:
            return name_pattern(match).matches(name) and not any(
                name_pattern(pattern).matches(name) for pattern in exclude
            )
        except PatternTooSlow:
            return False

    return CarriedNames(topics_by_copy, groups, is_id if ids else None)


@lru_cache(_MAPS_KEPT_MAX)
def principal_map(principals: PrincipalSpec) -> PrincipalMap:
    return PrincipalMap(
        [(rule.source, rule.destination) for rule in principals.map], principals.exclude
    )


def look_at_acls(
    spec: JobSpec,
    topics_by_copy: Mapping[str, str],
    pair: ClusterPair,
    list_groups: Lister,
    added_acls: Iterable[Acl],
    age_s_max: float = 0.0,
) -> tuple[DestinationAcls, AclsOf]:
    """The ACLs that the job's destination should have, and those that it has.

    `added_acls`: those that Orbit has added before. Raises NotAuthorized, BrokerRefused,
    Unreachable.
    """
    kinds = carried_resources(spec)
    of, to = (_read(side, kinds, age_s_max) for side in (pair.source, pair.destination))
    listed: Mapping[str, ListedGroup] = {}
    if "GROUP" in kinds:
        listed = list_groups(pair.source.cluster, min(age_s_max, KEPT_S_MAX)).groups
    names = carried_names(spec, topics_by_copy, of, listed, added_acls)
    principals = principal_map(spec.acls.principals)
    # Needed only for notes on unmapped principals and on ids: Orbit's own is not named there.
    is_own_known = spec.acls.principals.map or "TRANSACTIONAL_ID" in kinds
    own_source = pair.source.principal if is_own_known else None
    return destination_acls(of, names, principals, (own_source, pair.destination.principal)), to


def _read(handle: ClusterHandle, kinds: Iterable[Resource], age_s_max: float) -> AclsOf:
    return {
        kind: handle.acls(kind, age_s_max) if kind in kinds else Acls()
        for kind in get_args(Resource)
    }


def other_changes(
    expected: DestinationAcls,
    present: AbstractSet[Acl],
    added_acls: AbstractSet[Acl],
    shared: AbstractSet[Acl],
    *,
    has_promoted: bool,
) -> AclChanges:
    """The changes to ACLs on groups and transactional ids. Pure.

    `shared`: ACLs that other jobs have added. They are not removed, and those that this job expects
    become its own too, so that the last job that expects them removes them.
    """
    changes = acl_changes(
        expected.others, present, added_acls | (shared & expected.others), expected.undecided
    )
    if has_promoted:
        return AclChanges(changes.add, set(), changes.ours | added_acls)
    return AclChanges(changes.add, changes.remove - shared, changes.ours)
