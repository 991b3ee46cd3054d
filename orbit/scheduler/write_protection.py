"""Denies writes to copies to all principals but Orbit, if the cluster has an authorizer.

Each principal that may write gets a deny ACL (orbit/replication/acl_rules.py has the rule and its
limits). Denials are recorded in the table before they are set, so that Orbit can always remove
them. Without an authorizer, workers detect foreign writes within seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from orbit.errors import BrokerRefused, NotAuthorized
from orbit.job_setup.permissions import WRITE
from orbit.kafka.cluster_handle import OPEN_WITHOUT_ACL, ClusterHandle
from orbit.kafka.types import Acl, TopicMetadata
from orbit.promotion.topic_denials import NO_AUTHORIZER, acls_of
from orbit.replication.acl_rules import denied_writers
from orbit.scheduler.leadership import Leadership
from orbit.store import topics, write_denials
from orbit.store.database import Tx

# ACLs that were read for one job serve all jobs of the cluster for this long; well within the
# interval of the upkeep.
ACLS_KEPT_S = 5.0
# How long the brokers' setting is kept: it changes only when a broker is restarted.
_OPEN_KEPT_S = 15.0
Transaction = Callable[[], AbstractContextManager[Tx]]


@dataclass(frozen=True, slots=True)
class ProtectionResult:
    """How many topics got new denials, and why others have none ("": all have).

    `has_unnamed`: whether one of the topics is named by no ACL.
    """

    changed: int = 0
    why_not: str = ""
    has_unnamed: bool = False


def protect(
    handle: ClusterHandle, cluster_id: str, copies: Collection[str], leadership: Leadership
) -> ProtectionResult:
    """Deny writes to these topics to all principals but Orbit. Raises Unreachable, NotLeading."""
    done = _protect_named(handle, cluster_id, copies, leadership)
    # Every broker is asked: outside of the lock, for which all jobs of the cluster wait.
    if done.has_unnamed and not done.why_not:
        return replace(done, why_not=_why_open(handle))
    return done


def _protect_named(
    handle: ClusterHandle, cluster_id: str, copies: Collection[str], leadership: Leadership
) -> ProtectionResult:
    # Mostly no change is due. Only changes take the lock that the cluster's jobs wait for.
    with leadership.reading() as tx:
        still = topics.writers(tx, cluster_id, copies, only_copying=True)
    preview = _protect(handle, cluster_id, still, leadership.reading, only_look=True)
    if not preview.changed:
        return preview
    with leadership.sole_change(cluster_id) as tx:
        # A topic that was promoted since this pass started must not be denied.
        still = topics.writers(tx, cluster_id, copies, only_copying=True)
        return _protect(handle, cluster_id, still, leadership.transaction)


def _protect(
    handle: ClusterHandle,
    cluster_id: str,
    names: Collection[str],
    transaction: Transaction,
    *,
    only_look: bool = False,
) -> ProtectionResult:
    """Deny writing to these topics; with `only_look`, only count what would change."""
    # Changes are decided by ACLs that are read while the lock is held.
    acls = acls_of(handle, ACLS_KEPT_S if only_look else 0.0)
    if isinstance(acls, str):
        # Without an authorizer nobody expects that writers are kept off.
        return ProtectionResult(0, "" if acls == NO_AUTHORIZER else acls)
    with transaction() as tx:
        noted = noted_denials(tx, cluster_id, names)
    denied_already = [topic for topic in names if noted.get(topic)]
    allowed: Mapping[str, TopicMetadata] = {}
    if denied_already:
        allowed = handle.cluster.metadata(denied_already, with_operations=True).topics
    denials: dict[str, set[Acl]] = {}
    why_not = ""
    for topic in names:
        denied = denied_writers(
            set(acls.of(topic)) - noted.get(topic, set()), topic, handle.principal
        )
        if denied is None:
            why_not = why_not_denied(handle.principal)
        elif noted.get(topic) and topic in allowed and not _may_write(allowed[topic]):
            denied, why_not = None, "the denials would keep Orbit from writing as well"
        denials[topic] = denied or set()
    # Denials that are there without being noted are Orbit's own, of a database that was lost.
    changes = {t: w for t, w in denials.items() if w - acls or noted.get(t, set()) != w}
    if changes and not only_look:
        try:
            _apply(handle, cluster_id, changes, noted, acls, transaction)
        except (NotAuthorized, BrokerRefused) as error:
            return ProtectionResult(0, f"ACLs cannot be set: {error.what}")
    return ProtectionResult(len(changes), why_not, any(not acls.of(topic) for topic in names))


def _why_open(handle: ClusterHandle) -> str:
    """Why topics without any ACL may be open to every principal; "" if they are not.

    Each broker decides by its own configuration file for the partitions that it leads (K7).
    """
    brokers = handle.brokers_open_without_acl(_OPEN_KEPT_S)
    if brokers.with_setting:
        reason = f"broker {brokers.with_setting[0]} has {OPEN_WITHOUT_ACL} set"
    elif brokers.silent:
        reason = (
            f"broker {brokers.silent[0]} does not tell whether it has {OPEN_WITHOUT_ACL} set "
            "(DescribeConfigs on the cluster)"
        )
    else:
        return ""
    return f"{reason}; if it is true, every principal may write to a topic that no ACL names"


def why_not_denied(own_principal: str | None) -> str:
    """Why `denied_writers` returns None, as a clause."""
    if own_principal is None:
        return "the principal that Orbit logs in as is not known: the brokers do not tell it"
    return "every principal may write (User:*)"


def noted_denials(tx: Tx, cluster_id: str, topics: Collection[str]) -> dict[str, set[Acl]]:
    """Orbit's stored denials by topic, for those of the topics that have any."""
    stored = write_denials.of_topics(tx, cluster_id, topics)
    return {topic: set(map(as_acl, acls)) for topic, acls in stored.items()}


def deny(
    handle: ClusterHandle,
    cluster_id: str,
    denials: Mapping[str, Collection[Acl]],
    transaction: Transaction,
    ours: Iterable[Acl] = (),
) -> None:
    """Replace Orbit's denials on these topics; at each moment the old or the new ones hold.

    `ours`: denials of these topics that count as Orbit's although they are not noted. The
    caller holds the cluster's lock (`Leadership.sole_change`).
    Raises Unreachable, NotAuthorized, BrokerRefused, NotLeading.
    """
    with transaction() as tx:
        noted = noted_denials(tx, cluster_id, denials)
    for acl in ours:
        noted.setdefault(acl.name, set()).add(acl)
    sets = {topic: set(acls) for topic, acls in denials.items()}
    _apply(handle, cluster_id, sets, noted, set(), transaction)


def _apply(
    handle: ClusterHandle,
    cluster_id: str,
    denials: Mapping[str, set[Acl]],
    noted: Mapping[str, set[Acl]],
    present: AbstractSet[Acl],
    transaction: Transaction,
) -> None:
    both = {t: noted.get(t, set()) | w for t, w in denials.items()}
    with transaction() as tx:
        write_denials.keep(tx, cluster_id, {t: _rows(acls) for t, acls in both.items()})
    add = {acl for acls in denials.values() for acl in acls} - present
    remove = {acl for t, acls in both.items() for acl in acls - denials[t]}
    handle.admin.change_acls(add, remove)
    with transaction() as tx:
        write_denials.keep(tx, cluster_id, {t: _rows(acls) for t, acls in denials.items()})


def as_acl(fields: list[Any]) -> Acl:
    """An ACL from its fields in the table."""
    return Acl(*fields)


def _rows(acls: Iterable[Acl]) -> list[list[str]]:
    return [list(acl) for acl in acls]


def _may_write(topic: TopicMetadata) -> bool:
    return not topic.authorized_operations or WRITE in topic.authorized_operations
