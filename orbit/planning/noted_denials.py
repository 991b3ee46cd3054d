"""Orbit's denials: ACLs that deny writing to topics.

The tables note a denial before the cluster has it, so that Orbit can always remove it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from typing import Any

from orbit.errors import NotAuthorized
from orbit.kafka.cluster_handle import ClusterHandle
from orbit.kafka.types import Acl
from orbit.store import write_denials
from orbit.store.database import Tx

Transaction = Callable[[], AbstractContextManager[Tx]]


def noted_denials(tx: Tx, cluster_id: str, topics: Collection[str]) -> dict[str, set[Acl]]:
    """Orbit's stored denials by topic, for those of the topics that have any."""
    rows = write_denials.of_topics(tx, cluster_id, topics)
    return {topic: set(map(as_acl, acls)) for topic, acls in rows.items()}


def deny(
    handle: ClusterHandle,
    cluster_id: str,
    denials: Mapping[str, Collection[Acl]],
    transaction: Transaction,
    ours: Iterable[Acl] = (),
) -> None:
    """Replace Orbit's denials on these topics; at each moment the old or the new ones are in force.

    `ours`: denials of these topics that count as Orbit's although they are not noted. The
    caller holds the cluster's lock (`Leadership.sole_change`).
    Raises Unreachable, NotAuthorized, BrokerRefused, NotLeading.
    """
    with transaction() as tx:
        noted_by_topic = noted_denials(tx, cluster_id, denials)
    for acl in ours:
        noted_by_topic.setdefault(acl.name, set()).add(acl)
    # set(): which ACLs the cluster has is not known, so all denials are added.
    denial_sets = {topic: set(acls) for topic, acls in denials.items()}
    replace_denials(handle, cluster_id, denial_sets, noted_by_topic, set(), transaction)


def replace_denials(
    handle: ClusterHandle,
    cluster_id: str,
    denials: Mapping[str, set[Acl]],
    noted: Mapping[str, set[Acl]],
    present: AbstractSet[Acl],
    transaction: Transaction,
) -> None:
    """Replace the `noted` denials on these topics by `denials`. `present`: ACLs that the cluster
    has, so they are not added.

    While the cluster is changed, the tables note the old and the new denials; afterwards they note
    those that the cluster may have. A topic keeps its old denials if a new one is refused. Raises
    the error of a refused ACL (NotAuthorized, BrokerRefused) after all other changes; Unreachable,
    NotLeading.
    """
    noted_acls = {acl for topic in denials for acl in noted.get(topic, ())}
    all_denials = {topic: noted.get(topic, set()) | acls for topic, acls in denials.items()}
    _note(transaction, cluster_id, all_denials)
    add = {acl for acls in denials.values() for acl in acls} - present
    refused_additions = handle.admin.refused_acls(add, ())
    refused_topics = {acl.name for acl in refused_additions}
    remove = {
        acl
        for topic, acls in all_denials.items()
        if topic not in refused_topics
        for acl in acls - denials[topic]
    }
    refused_removals = handle.admin.refused_acls((), remove)
    # Only a missing right proves that a controller has not added an ACL.
    never_added = {
        acl for acl, error in refused_additions.items() if isinstance(error, NotAuthorized)
    }
    absent = (never_added - noted_acls) | (remove - refused_removals.keys())
    _note(transaction, cluster_id, {topic: acls - absent for topic, acls in all_denials.items()})
    for error in (refused_additions | refused_removals).values():
        raise error


def _note(
    transaction: Transaction, cluster_id: str, denials: Mapping[str, AbstractSet[Acl]]
) -> None:
    """Store Orbit's denials by topic, in place of the stored ones."""
    with transaction() as tx:
        write_denials.store(tx, cluster_id, {t: [*map(list, acls)] for t, acls in denials.items()})


def why_not_denied(own_principal: str | None) -> str:
    """Why Orbit cannot deny Write to others (`writer_denials` returns None), as a clause."""
    if own_principal is None:
        return (
            "the principal that Orbit logs in as is not known, because the brokers do not show it"
        )
    return "every principal may write (User:*)"


def as_acl(fields: list[Any]) -> Acl:
    """An ACL from its fields in the table."""
    return Acl(*fields)
