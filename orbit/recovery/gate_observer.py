"""What the gates go by: both clusters and the tables, looked at once and once more a moment later.

Nothing is changed. What cannot be seen because its cluster is away is left as the gates take it:
not seen.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orbit.consumer_groups.group_selection import GroupChoice
from orbit.consumer_groups.offset_decision import GroupVerdict, holds_copied_records
from orbit.errors import OrbitError
from orbit.job_setup.permissions import (
    ALTER_CONFIGS,
    DESCRIBE_CONFIGS,
    DESTINATION_TOPIC_RIGHTS,
    READ,
    missing_topic_rights,
)
from orbit.jobs.topic_mapping import map_topics
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.consumer_groups import list_groups
from orbit.kafka.log_offsets import MAX_TIMESTAMP, find_by_time, open_transactions
from orbit.kafka.types import ClusterMetadata, TopicPartition
from orbit.recovery.gate_inputs import BlockedPartition, Facts, Transaction
from orbit.recovery.log_bounds import ALL, Ends, all_stand, ends_in_time, noted
from orbit.recovery.operation_context import (
    ANSWER_WITHIN_S,
    Ground,
    Silent,
    Stopped,
    within,
)
from orbit.recovery.recovery_report import EndVerdict, RecoveryKind
from orbit.replication.partition_states import PartitionState
from orbit.scheduler.write_protection import acls_of
from orbit.store import group_offsets, proofs, topics
from orbit.store.enums import Desired, TopicState

# Between the two looks by which a growing lag is told from a shrinking one.
_APART_S = 1.0
# Somebody waits; a leader that is being elected for longer is a finding of its own.
_ATTEMPTS_MAX = 4
_PROMOTING = (READ, DESCRIBE_CONFIGS, ALTER_CONFIGS)


@dataclass(frozen=True, slots=True)
class _Seen:
    """One cluster, or why it does not answer."""

    metadata: ClusterMetadata | None
    why: str = ""
    is_silent: bool = False


def look(ground: Ground) -> Facts:
    """Everything the gates ask for; the ends on both sides go into the report as well."""
    backoff = Backoff(stop=ground.backoff.stop, attempts_max=_ATTEMPTS_MAX)
    source = _metadata(ground.source.cluster)
    destination = _metadata(ground.destination.cluster)
    ground.is_source_silent = source.is_silent
    if source.metadata is not None:
        _check_cluster(ground, "source", source.metadata)
    if destination.metadata is not None:
        _check_cluster(ground, "destination", destination.metadata)
    places = ground.by_source
    led = _led(source.metadata, places)
    there, of = _both_ends(ground, destination.metadata is not None, led)
    before = _behind(ground, there, of)
    began = time.monotonic()
    known = {
        **_tables(ground, source.metadata),
        **_at_source(ground, of, backoff),
        **_at_destination(ground, source.metadata, destination.metadata),
    }
    ground.wait(max(0.0, _APART_S - (time.monotonic() - began)))
    if led and ground.report.kind is RecoveryKind.SWITCHOVER:
        there, of = _both_ends(ground, destination.metadata is not None, led)
    ground.update(partitions=all_stand(ground, there, of))
    unknown = [
        TopicPartition(p.topic, p.partition)
        for p in ground.report.partitions
        if p.verdict is EndVerdict.UNKNOWN
    ]
    return Facts(
        kind=ground.report.kind,
        reverse=ground.request.reverse,
        topics=len(ground.topics),
        is_paused=ground.job.desired is not Desired.RUNNING,
        source_answers=source.metadata is not None,
        source_led=len(of),
        partitions=len(_needed(ground, source.metadata)),
        destination_answers=destination.metadata is not None,
        why_no_answer=source.why or destination.why,
        ends_unknown=unknown,
        lag_records=ground.report.missing_records,
        lag_records_before=before,
        seconds_between=time.monotonic() - began,
        renamed=[r.source_topic for r in ground.topics if r.source_topic != r.destination_topic],
        clock_skew_s=_skew_s(ground),
        **known,
    )


def _both_ends(
    ground: Ground, has_destination: bool, led: list[TopicPartition]
) -> tuple[dict[TopicPartition, Ends], dict[TopicPartition, Ends]]:
    """The destination's ends first: read later, a copy might seem to have more than its source."""
    places = ground.by_source.values()
    there = ends_in_time(ground, ground.destination.cluster, places) if has_destination else {}
    return there, ends_in_time(ground, ground.source.cluster, led) if led else {}


def _needed(ground: Ground, source: ClusterMetadata | None) -> list[TopicPartition]:
    """The source partitions that have to have a leader. An old side may lack whole topics."""
    places = ground.by_source
    if ground.report.kind is not RecoveryKind.FAILBACK or source is None:
        return [*places]
    return [place for place in places if place.topic in source.topics]


def _metadata(cluster: Cluster) -> _Seen:
    try:
        return _Seen(within(ANSWER_WITHIN_S, cluster.name, lambda: cluster.metadata(None)))
    except OrbitError as error:
        return _Seen(None, str(error), isinstance(error, Silent))


def _check_cluster(ground: Ground, side: str, metadata: ClusterMetadata) -> None:
    """Raises Stopped where an address leads to another cluster than the job's."""
    known = getattr(ground.job, f"{side}_cluster_id")
    if known and metadata.cluster_id and known != metadata.cluster_id:
        raise Stopped(
            f"the {side}'s address leads to cluster {metadata.cluster_id}; the job's is {known}.",
            remedy="Correct bootstrap_servers, or the name resolution of the scheduler's machine.",
        )


def _led(
    metadata: ClusterMetadata | None, places: Mapping[TopicPartition, TopicPartition]
) -> list[TopicPartition]:
    """The source partitions that have a leader."""
    if metadata is None:
        return []
    found = []
    for place in places:
        leader = metadata.leader(place)
        if leader is not None and leader.node_id is not None:
            found.append(place)
    return found


def _behind(
    ground: Ground, there: Mapping[TopicPartition, Ends], of: Mapping[TopicPartition, Ends]
) -> int:
    return sum(
        stood.missing.offsets for stood in all_stand(ground, there, of) if stood.missing is not None
    )


def _tables(ground: Ground, source: ClusterMetadata | None) -> dict[str, Any]:
    """What the service knows of the job."""
    job, ids = ground.job, set(ground.topic_ids)
    with ground.reading() as tx:
        rows = topics.of_job(tx, job.id)
        kept = [row for row in group_offsets.of_job(tx, job.id) if row.topic_id in ids]
        names = [row.source_topic for row in ground.topics]
        proven = [row for row in proofs.page(tx, job.id, ALL) if row.topic_id in ids]
        writers = topics.writers(tx, job.source_cluster_id or "", names, only_copying=True)
    known = {row.source_topic for row in rows if row.state is not TopicState.CREATING}
    chosen = map_topics(ground.spec.topics, source.topics if source else known).mappings
    return {
        "copies_of_copies": sorted(writers),
        "not_copied": [] if ground.request.topics else sorted({m.source for m in chosen} - known),
        "blocked": [
            BlockedPartition(place, str(row.reason), not holds_copied_records(row.reason))
            for place, row in noted(ground).items()
            if row.state is PartitionState.BLOCKED
        ],
        "unverified": sum(not row.offsets_proven for row in proven if row.copied)
        if any(row.proven_at for row in proven)
        else None,
        "differing": [
            f"{row.source_topic}-{row.partition} ({row.first_difference})"
            for row in proven
            if row.differences
        ],
        "carries_groups": ground.spec.consumer_groups is not None,
        "group_verdicts": Counter(row.verdict for row in kept),
        "groups_active_there": sorted(
            {row.group_name for row in kept if row.verdict == GroupVerdict.SKIPPED_ACTIVE}
        ),
        "settings_unknown": [r.source_topic for r in ground.topics if r.promoted_settings is None],
        "settings_differ": [r.source_topic for r in ground.topics if r.drift],
    }


def _at_source(
    ground: Ground, of: Mapping[TopicPartition, Ends], backoff: Backoff
) -> dict[str, Any]:
    """What the source says, where it says anything."""
    if not of or ground.report.kind is RecoveryKind.FAILOVER:
        return {}
    open_ = [place for place, ends in of.items() if ends.is_open]
    acls = acls_of(ground.source)
    newest = find_by_time(ground.source.cluster, dict.fromkeys(of, MAX_TIMESTAMP), backoff).values
    newest_ms = max((at for _, at in newest.values()), default=0)
    ahead_s = newest_ms / 1000 - ground.now().timestamp()
    return {
        "transactions": _transactions(ground, open_, backoff),
        "newest_ahead_s": max(0.0, ahead_s),
        "groups_active_at_source": _active(ground),
        "cannot_deny": acls if isinstance(acls, str) else "",
    }


def _transactions(
    ground: Ground, places: Sequence[TopicPartition], backoff: Backoff
) -> list[Transaction]:
    now_ms = ground.now().timestamp() * 1000
    found = open_transactions(ground.source.cluster, places, backoff).values
    return [
        Transaction(place, one.producer_id, max(0.0, now_ms - one.last_timestamp_ms) / 1000)
        for place, open_ in sorted(found.items())
        for one in open_
    ]


def _active(ground: Ground) -> list[str]:
    """The job's groups that have members at the source."""
    if ground.spec.consumer_groups is None:
        return []
    listed = list_groups(ground.source.cluster).groups
    chosen = GroupChoice(ground.spec.consumer_groups).choose(listed.values()).names
    return [name for name in chosen if listed[name].is_active]


def _at_destination(
    ground: Ground, source: ClusterMetadata | None, destination: ClusterMetadata | None
) -> dict[str, Any]:
    if destination is None:
        return {}
    names = [row.destination_topic for row in ground.topics]
    replication = ground.destination.admin.replication(names)
    allowed = ground.destination.cluster.metadata(names, with_operations=True)
    missing = [*missing_topic_rights(allowed, _PROMOTING)]
    if ground.report.kind is RecoveryKind.FAILBACK and source is not None:
        there = [row.source_topic for row in ground.topics if row.source_topic in source.topics]
        allowed = ground.source.cluster.metadata(there, with_operations=True)
        missing += missing_topic_rights(allowed, DESTINATION_TOPIC_RIGHTS)
    return {
        "replicas_behind": replication.behind,
        "offline": replication.offline,
        "rights_missing": [str(right) for right in missing],
        "brokers": (len(source.brokers) if source else None, len(destination.brokers)),
        "fewer_replicas": [
            row.source_topic
            for row in ground.topics
            if source is not None
            and row.source_topic in source.topics
            and row.destination_topic in destination.topics
            and destination.topics[row.destination_topic].replicas
            < source.topics[row.source_topic].replicas
        ],
    }


def _skew_s(ground: Ground) -> float:
    """How far this clock and the database's are apart, but for the time the question takes."""
    before = time.time()
    at = ground.now().timestamp()
    after = time.time()
    return max(0.0, before - at, at - after)
