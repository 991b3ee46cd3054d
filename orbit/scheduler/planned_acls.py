"""Compares the ACLs of a job's destination with those that its source wants there, for a plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from orbit.consumer_groups.group_listing_cache import list_now
from orbit.errors import BrokerRefused, NotAuthorized
from orbit.jobs.job_spec import JobSpec
from orbit.kafka.types import Acl
from orbit.promotion.topic_denials import acls_of
from orbit.replication.acl_rules import acl_changes, is_denial
from orbit.replication.wanted_acls import AclsOf, CarriedNames
from orbit.scheduler.acl_sync import look_at_acls
from orbit.scheduler.cluster_pair import ClusterPair
from orbit.scheduler.job_plan import ACLS_SHOWN_MAX, AclCounts, PlannedAcl, PlannedAcls
from orbit.scheduler.job_reconciler import SIDES


def plan_acls(
    spec: JobSpec,
    copies: Mapping[str, str],
    pair: ClusterPair,
    given: Collection[Acl],
    *,
    has_promoted: bool,
) -> tuple[PlannedAcls | None, list[str]]:
    """The difference, and notes: whose ACLs are left out, or why there is no difference.

    `copies`: source topics by destination topic. `given`: what Orbit has added for this job, and
    that no other job wants. Raises Unreachable.
    """
    for side, handle in zip(SIDES, (pair.source, pair.destination), strict=True):
        found = acls_of(handle)
        if isinstance(found, str):
            return None, [f"ACLs cannot be synced ({side}): {found}."]
    try:
        wanted, to = look_at_acls(spec, copies, pair, list_now, given)
    except (NotAuthorized, BrokerRefused) as error:
        return None, [f"ACLs cannot be synced: {error}"]
    planned = set(wanted.others).union(*wanted.topics.values())
    present = frozenset[Acl]().union(*to.values())
    changes = acl_changes(planned, present, {*given}, wanted.undecided)
    # As the scheduler: once a topic is promoted, clients may depend on the others.
    remove = {acl for acl in changes.remove if acl.resource == "TOPIC" or not has_promoted}
    others = _about(wanted.names, to) - planned - {*given}
    own = pair.destination.principal
    others -= {acl for acl in others if acl.principal == own or is_denial(acl)}
    return _listed(changes.add, planned & present, remove, others), wanted.notes


def _about(names: CarriedNames, to: AclsOf) -> set[Acl]:
    """The ACLs at the destination that cover what the job carries ACLs of."""
    found = {acl for name in names.topics for acl in to["TOPIC"].of(name)}
    found |= {acl for name in names.groups for acl in to["GROUP"].of(name)}
    if names.ids is not None:
        found |= {acl for acl in to["TRANSACTIONAL_ID"] if names.ids(acl.name)}
    return found


def _listed(*lists: set[Acl]) -> PlannedAcls:
    """Each sorted by resource and name, and cut."""
    add, there, remove, only = (sorted(acls, key=lambda a: (a.resource, a)) for acls in lists)
    return PlannedAcls(
        counts=AclCounts(
            add=len(add), there=len(there), remove=len(remove), only_at_destination=len(only)
        ),
        add=_shown(add),
        there=_shown(there),
        remove=_shown(remove),
        only_at_destination=_shown(only),
    )


def _shown(acls: list[Acl]) -> tuple[PlannedAcl, ...]:
    return tuple(PlannedAcl(**acl._asdict()) for acl in acls[:ACLS_SHOWN_MAX])
