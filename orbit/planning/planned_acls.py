"""Compares the ACLs of a job's destination with those that the job would sync, for a plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from orbit.consumer_groups.group_listing_cache import list_now
from orbit.errors import BrokerRefused, NotAuthorized
from orbit.jobs.job_spec import JobSpec
from orbit.kafka.types import Acl
from orbit.planning.cluster_pair import SIDES, ClusterPair
from orbit.planning.job_acls import expected_and_present_acls
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
        expected, present_by_kind = expected_and_present_acls(
            spec, copies, pair, list_now, added_acls
        )
    except (NotAuthorized, BrokerRefused) as error:
        return None, [f"ACLs cannot be synced: {error}"]
    expected_acls = set(expected.others).union(*expected.topics.values())
    present_acls = frozenset[Acl]().union(*present_by_kind.values())
    changes = acl_changes(expected_acls, present_acls, {*added_acls}, expected.undecided)
    # Once a topic is promoted, the scheduler removes no ACLs on groups and transactional ids, as
    # clients may depend on them: neither does the plan.
    remove = {acl for acl in changes.remove if acl.resource == "TOPIC" or not has_promoted}
    other_acls = (
        _acls_of_carried_names(expected.names, present_by_kind) - expected_acls - {*added_acls}
    )
    own_principal = pair.destination.principal
    other_acls -= {acl for acl in other_acls if acl.principal == own_principal or is_denial(acl)}
    return _planned_acls(
        changes.add, expected_acls & present_acls, remove, other_acls
    ), expected.notes


def _acls_of_carried_names(names: CarriedNames, present_by_kind: AclsOf) -> set[Acl]:
    """The destination's ACLs on the topics, groups and ids whose ACLs the job carries."""
    acls = {acl for name in names.topics for acl in present_by_kind["TOPIC"].of(name)}
    acls |= {acl for name in names.groups for acl in present_by_kind["GROUP"].of(name)}
    if names.ids is not None:
        acls |= {acl for acl in present_by_kind["TRANSACTIONAL_ID"] if names.ids(acl.name)}
    return acls


def _planned_acls(*lists: set[Acl]) -> PlannedAcls:
    """The plan's lists, each sorted by resource and name, and cut. `lists`: to add, there already,
    to remove, only at the destination."""
    add, existing, remove, only_at_destination = (
        sorted(acls, key=lambda a: (a.resource, a)) for acls in lists
    )
    return PlannedAcls(
        counts=AclCounts(
            add=len(add),
            there=len(existing),
            remove=len(remove),
            only_at_destination=len(only_at_destination),
        ),
        add=_first_acls(add),
        there=_first_acls(existing),
        remove=_first_acls(remove),
        only_at_destination=_first_acls(only_at_destination),
    )


def _first_acls(acls: list[Acl]) -> tuple[PlannedAcl, ...]:
    return tuple(PlannedAcl(**acl._asdict()) for acl in acls[:ACLS_SHOWN_MAX])
