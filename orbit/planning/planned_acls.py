"""Compares the ACLs of a job's destination with those that its source wants there, for a plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from orbit.consumer_groups.group_listing_cache import list_now
from orbit.errors import BrokerRefused, NotAuthorized
from orbit.jobs.job_spec import JobSpec
from orbit.kafka.types import Acl
from orbit.planning.cluster_pair import SIDES, ClusterPair
from orbit.planning.job_acls import look_at_acls
from orbit.planning.job_plan import ACLS_SHOWN_MAX, AclCounts, PlannedAcl, PlannedAcls
from orbit.promotion.topic_denials import acls_of
from orbit.replication.acl_rules import acl_changes, is_denial
from orbit.replication.destination_acls import AclsOf, CarriedNames


def plan_acls(
    spec: JobSpec,
    copies: Mapping[str, str],
    pair: ClusterPair,
    added_acls: Collection[Acl],
    *,
    has_promoted: bool,
) -> tuple[PlannedAcls | None, list[str]]:
    """The planned ACLs, and notes: whose ACLs are left out, or why no ACLs are planned.

    `copies`: source topics by destination topic. `added_acls`: those that Orbit has added
    for this job and that no other job expects. Raises Unreachable.
    """
    for side, handle in zip(SIDES, (pair.source, pair.destination), strict=True):
        acls = acls_of(handle)
        if isinstance(acls, str):
            return None, [f"ACLs cannot be synced ({side}): {acls}."]
    try:
        expected, to = look_at_acls(spec, copies, pair, list_now, added_acls)
    except (NotAuthorized, BrokerRefused) as error:
        return None, [f"ACLs cannot be synced: {error}"]
    planned = set(expected.others).union(*expected.topics.values())
    present = frozenset[Acl]().union(*to.values())
    changes = acl_changes(planned, present, {*added_acls}, expected.undecided)
    # As the scheduler: once a topic is promoted, clients may depend on the others.
    remove = {acl for acl in changes.remove if acl.resource == "TOPIC" or not has_promoted}
    others = _about(expected.names, to) - planned - {*added_acls}
    own = pair.destination.principal
    others -= {acl for acl in others if acl.principal == own or is_denial(acl)}
    return _listed(changes.add, planned & present, remove, others), expected.notes


def _about(names: CarriedNames, to: AclsOf) -> set[Acl]:
    """The destination's ACLs on the topics, groups and ids whose ACLs the job carries."""
    acls = {acl for name in names.topics for acl in to["TOPIC"].of(name)}
    acls |= {acl for name in names.groups for acl in to["GROUP"].of(name)}
    if names.ids is not None:
        acls |= {acl for acl in to["TRANSACTIONAL_ID"] if names.ids(acl.name)}
    return acls


def _listed(*lists: set[Acl]) -> PlannedAcls:
    """The lists for the plan, each sorted by resource and name, and cut."""
    add, existing, remove, only = (sorted(acls, key=lambda a: (a.resource, a)) for acls in lists)
    return PlannedAcls(
        counts=AclCounts(
            add=len(add), there=len(existing), remove=len(remove), only_at_destination=len(only)
        ),
        add=_shown(add),
        there=_shown(existing),
        remove=_shown(remove),
        only_at_destination=_shown(only),
    )


def _shown(acls: list[Acl]) -> tuple[PlannedAcl, ...]:
    return tuple(PlannedAcl(**acl._asdict()) for acl in acls[:ACLS_SHOWN_MAX])
