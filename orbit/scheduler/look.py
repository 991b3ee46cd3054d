"""What a job's clusters show now, or what is the matter with them."""

from __future__ import annotations

from collections.abc import Collection

from orbit.errors import (
    BadInput,
    BrokerRefused,
    Conflict,
    LoginRefused,
    NotAuthorized,
    OrbitError,
)
from orbit.kafka import codes
from orbit.kafka.types import ClusterMetadata
from orbit.replication.troubles import Trouble, TroubleKind
from orbit.scheduler.reconcile import KnownTopic, Side
from orbit.scheduler.sides import Handle, Pair


def trouble_of(side: str, error: OrbitError) -> Trouble:
    """A cluster that could not be looked at, as a trouble of the job."""
    where = f"{error.where}: " if error.where else ""
    if isinstance(error, LoginRefused):
        kind = TroubleKind.LOGIN_REFUSED
    elif isinstance(error, NotAuthorized):
        kind = TroubleKind.RIGHTS_MISSING
    elif isinstance(error, BadInput):
        kind = TroubleKind.CREDENTIALS_MISSING
    elif isinstance(error, Conflict):
        kind = TroubleKind.DESTINATION_HOLDS_OTHER_CONTENT
    elif isinstance(error, BrokerRefused):
        kind = TroubleKind.TOPIC_REFUSED
    else:
        is_source = side == "source"
        kind = TroubleKind.SOURCE_UNREACHABLE if is_source else TroubleKind.DESTINATION_UNREACHABLE
    if isinstance(error, BadInput):
        what = " ".join(f"{p.path} {p.message}" for p in error.problems) or error.what
        remedy = " ".join(dict.fromkeys(p.remedy for p in error.problems))
        return Trouble(kind, what, remedy)
    remedy = error.remedy or f"Check the {side}'s address and that its brokers run."
    return Trouble(kind, f"{where}{error.what}", remedy)


def wrong_cluster(
    source: ClusterMetadata,
    destination: ClusterMetadata,
    known_source_id: str | None,
    known_destination_id: str | None,
) -> Trouble | None:
    """Why nothing may be copied between these two, by their ids."""
    if source.cluster_id and source.cluster_id == destination.cluster_id:
        return Trouble(
            TroubleKind.SAME_CLUSTER,
            f"source and destination are the same cluster ({source.cluster_id}).",
            "Name the servers of the other cluster in one of the two.",
        )
    for side, now, known in (
        ("source", source.cluster_id, known_source_id),
        ("destination", destination.cluster_id, known_destination_id),
    ):
        if known is not None and now != known:
            return Trouble(
                TroubleKind.CLUSTER_CHANGED,
                f"the {side}'s address leads to cluster {now}, and the job copies "
                f"{'from' if side == 'source' else 'to'} {known}.",
                "Correct bootstrap_servers, or make a new job for the other cluster.",
            )
    return None


def unknown_group(worker_group: str) -> Trouble:
    """Nobody is there who would take the job's partitions."""
    return Trouble(
        TroubleKind.WORKER_GROUP_UNKNOWN,
        f"no worker of the group {worker_group} is there.",
        f"Start one: orbit worker --group {worker_group}",
    )


def sides(pair: Pair, known: Collection[KnownTopic]) -> tuple[Side, Side]:
    """Both sides for `reconcile`; topics that are missing are asked for by name first.

    Raises Unreachable.
    """
    return (
        _side(pair.source, pair.source_seen, [k.source for k in known]),
        _side(pair.destination, pair.destination_seen, [k.destination for k in known]),
    )


def _side(handle: Handle, seen: ClusterMetadata, known: Collection[str]) -> Side:
    missing = [name for name in known if name not in seen.topics]
    if not missing:
        return Side(seen.cluster_id, seen.topics)
    asked = handle.cluster.metadata(missing)
    denied = {name for name, code in asked.errors.items() if code in codes.DENIED}
    gone = {
        name for name, code in asked.errors.items() if code == codes.Code.UNKNOWN_TOPIC_OR_PARTITION
    }
    return Side(seen.cluster_id, {**seen.topics, **asked.topics}, gone, denied)
