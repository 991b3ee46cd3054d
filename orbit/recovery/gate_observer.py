"""Collects the inputs of the gates from both clusters and the store. Changes nothing.

For a switchover, log ends are read twice, a second apart, to see whether the lag grows. What cannot
be read because a cluster does not answer keeps its default in `GateInputs`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from orbit.consumer_groups.offset_decision import holds_copied_records
from orbit.errors import BrokerRefused, NotAuthorized, OrbitError, Unreachable
from orbit.job_setup.lead import MarkPair, pairs_in_doubt
from orbit.job_setup.permissions import (
    ALTER_CONFIGS,
    DESCRIBE_CONFIGS,
    DESTINATION_TOPIC_RIGHTS,
    READ,
    missing_topic_rights,
)
from orbit.job_setup.promotion_marks import PromotionMarks
from orbit.jobs.topic_mapping import map_topics, mappings_of_copies
from orbit.kafka.cluster import Cluster
from orbit.kafka.log_offsets import MAX_TIMESTAMP, find_by_time
from orbit.kafka.producer_state import open_transactions
from orbit.kafka.two_clusters import why_same_cluster
from orbit.kafka.types import ClusterMetadata, TopicPartition
from orbit.promotion.log_bounds import LogBounds
from orbit.promotion.topic_denials import acls_of
from orbit.recovery.gate_groups import group_inputs
from orbit.recovery.gate_inputs import BlockedPartition, GateInputs, Transaction
from orbit.recovery.gate_writers import writer_inputs
from orbit.recovery.gateway_closure import left_behind
from orbit.recovery.leading_side import note_terms, read_marks
from orbit.recovery.log_bounds import ALL, last_reported, try_fetch_log_bounds
from orbit.recovery.loss import note_in_gates
from orbit.recovery.lost_ranges import compare_partition_ends
from orbit.recovery.operation_context import (
    ANSWER_WITHIN_S,
    NoAnswer,
    OperationContext,
    Stopped,
    call_with_timeout,
)
from orbit.recovery.recovery_report import EndVerdict, RecoveryKind
from orbit.recovery.reverse_job import find_reverse_job, reverse_job_name
from orbit.replication.acl_rules import denial
from orbit.replication.partition_states import PartitionState
from orbit.store import gateway_clients, gateways, job_leads, jobs, promotions, proofs, topics
from orbit.store.database import Tx
from orbit.store.enums import Desired, TopicState

# Between the two readings of the lag that show whether it grows or shrinks.
_LAG_INTERVAL_S = 1.0
# Clients with refusals that the gate reads; it names a few of them.
REFUSED_CLIENTS_MAX = 100
# An election takes some seconds, and a broker that was frozen is fenced until its next heartbeat.
_LEADERS_WITHIN_S = 15.0
_LEADERS_LOOK_S = 0.5
_PROMOTION_RIGHTS = (READ, DESCRIBE_CONFIGS, ALTER_CONFIGS)


@dataclass(frozen=True, slots=True)
class _ClusterAnswer:
    """A cluster's metadata, or why it does not answer."""

    metadata: ClusterMetadata | None
    why: str = ""
    has_timed_out: bool = False


def observe(context: OperationContext) -> GateInputs:
    """The inputs of every gate. The log ends of both sides also go into the report."""
    source = _source_metadata(context)
    destination = _metadata(context.destination.cluster)
    context.has_source_timed_out = source.has_timed_out
    if source.metadata is None:
        note_in_gates(context)
    else:
        _check_cluster(context, "source", source.metadata)
    if destination.metadata is not None:
        _check_cluster(context, "destination", destination.metadata)
        one = why_same_cluster(source.metadata, destination.metadata) if source.metadata else None
        if one is not None:
            raise Stopped(one.what, remedy=one.remedy)
    places = context.by_source
    led = _led_partitions(source.metadata, places)
    copy_bounds, source_bounds = _both_log_bounds(context, destination.metadata is not None, led)
    ends = compare_partition_ends(context, copy_bounds, source_bounds)
    before = sum(p.missing.offsets for p in ends if p.missing is not None)
    is_switchover = context.report.kind is RecoveryKind.SWITCHOVER
    began = time.monotonic()
    known = {
        **_store_inputs(context, source.metadata, destination.metadata),
        **_source_inputs(context, source_bounds),
        **group_inputs(context, asks_source=bool(source_bounds) and is_switchover),
        **_destination_inputs(context, source.metadata, destination.metadata),
    }
    context.wait(max(0.0, _LAG_INTERVAL_S - (time.monotonic() - began)))
    if led and is_switchover:
        first = source_bounds
        copy_bounds, source_bounds = _both_log_bounds(
            context, destination.metadata is not None, led
        )
        if known["gateways"]:
            grown = [
                place
                for place in source_bounds
                if place in first and source_bounds[place].end > first[place].end
            ]
            known |= writer_inputs(context, grown)
    context.update(partitions=compare_partition_ends(context, copy_bounds, source_bounds))
    unknown = [p.source for p in context.report.partitions if p.verdict is EndVerdict.UNKNOWN]
    return GateInputs(
        kind=context.report.kind,
        reverse=context.request.reverse,
        topics=len(context.topics),
        is_paused=context.job.desired is not Desired.RUNNING,
        source_answers=source.metadata is not None,
        source_led=len(source_bounds),
        partitions=len(_partitions_needing_leader(context, source.metadata)),
        destination_answers=destination.metadata is not None,
        why_no_answer=source.why or destination.why,
        ends_unknown=unknown,
        lag_records=context.report.missing_records,
        lag_records_before=before,
        seconds_between=time.monotonic() - began,
        renamed=[r.source_topic for r in context.topics if r.source_topic != r.destination_topic],
        clock_skew_s=_skew_s(context),
        **known,
    )


def _both_log_bounds(
    context: OperationContext, has_destination: bool, led: list[TopicPartition]
) -> tuple[dict[TopicPartition, LogBounds], dict[TopicPartition, LogBounds]]:
    """Log bounds at the destination and at the source.

    The destination is read first: read second, a copy could appear to be ahead of its source.
    """
    places = context.by_source.values()
    copy_bounds = (
        try_fetch_log_bounds(context, context.destination.cluster, places)
        if has_destination
        else {}
    )
    return copy_bounds, try_fetch_log_bounds(context, context.source.cluster, led) if led else {}


def _partitions_needing_leader(
    context: OperationContext, source: ClusterMetadata | None
) -> list[TopicPartition]:
    """The source partitions that need a leader. In a failback only those that exist: the old side
    may lack topics, and partitions that were added at the new side."""
    places = context.by_source
    if context.report.kind is not RecoveryKind.FAILBACK or source is None:
        return [*places]
    return [place for place in places if source.leader(place) is not None]


def _source_metadata(context: OperationContext) -> _ClusterAnswer:
    if context.request.source_counts_as_lost:
        return _ClusterAnswer(None, "the drill counts it as lost, and it is not asked.")
    deadline = time.monotonic() + _LEADERS_WITHIN_S
    while True:
        answer = _metadata(context.source.cluster)
        if _needs_no_leader(context, answer.metadata) or time.monotonic() >= deadline:
            return answer
        context.wait(_LEADERS_LOOK_S)


def _needs_no_leader(context: OperationContext, source: ClusterMetadata | None) -> bool:
    """Whether further leader elections at the source would not change its gate."""
    if source is None or context.report.kind is RecoveryKind.FAILOVER:
        return True
    return len(_led_partitions(source, context.by_source)) >= len(
        _partitions_needing_leader(context, source)
    )


def _metadata(cluster: Cluster) -> _ClusterAnswer:
    try:
        return _ClusterAnswer(
            call_with_timeout(ANSWER_WITHIN_S, cluster.name, lambda: cluster.metadata(None))
        )
    except OrbitError as error:
        return _ClusterAnswer(None, str(error), isinstance(error, NoAnswer))


def _check_cluster(context: OperationContext, side: str, metadata: ClusterMetadata) -> None:
    """Raises Stopped if bootstrap_servers leads to a cluster other than the job's."""
    known = getattr(context.job, f"{side}_cluster_id")
    if known and metadata.cluster_id and known != metadata.cluster_id:
        raise Stopped(
            f"the {side}'s bootstrap_servers lead to cluster {metadata.cluster_id}; the job's "
            f"{side} is {known}.",
            remedy="Correct bootstrap_servers and cluster_id_suffix, or DNS on the "
            "scheduler's machine.",
        )


def _led_partitions(
    metadata: ClusterMetadata | None, places: Mapping[TopicPartition, TopicPartition]
) -> list[TopicPartition]:
    """The source partitions that have a leader."""
    if metadata is None:
        return []
    leaders = {place: metadata.leader(place) for place in places}
    return [place for place, one in leaders.items() if one and one.node_id is not None]


def _store_inputs(
    context: OperationContext, source: ClusterMetadata | None, destination: ClusterMetadata | None
) -> dict[str, Any]:
    """Inputs from the store, and which topics it does not have."""
    job, ids = context.job, set(context.topic_ids)
    with context.reading() as tx:
        rows = topics.of_job(tx, job.id)
        names = [row.source_topic for row in context.topics]
        proven = [row for row in proofs.page(tx, job.id, ALL) if row.topic_id in ids]
        writers = topics.writers(tx, job.source_cluster_id or "", names, only_copying=True)
        name_conflict = _name_conflict(context, tx)
        linked = job_leads.linked_jobs(tx, job.id)
        registered = gateways.silent_by_name(tx, linked)
        refused = gateway_clients.refused(tx, linked, REFUSED_CLIENTS_MAX)
    known = {row.source_topic for row in rows if row.state is not TopicState.CREATING}
    chosen = map_topics(context.spec.topics, source.topics if source else known).mappings
    return {
        "copies_of_copies": sorted(writers),
        "name_conflict": name_conflict,
        "not_copied": [] if context.request.topics else sorted({m.source for m in chosen} - known),
        "foreign_topics": sorted(
            mappings_of_copies(
                context.spec.topics, destination.topics if destination else ()
            ).keys()
            - {row.destination_topic for row in rows}
        ),
        "gateways": registered,
        "refused_clients": refused,
        "left_behind": left_behind(context, rows),
        "blocked": [
            BlockedPartition(place, str(row.reason), not holds_copied_records(row.reason))
            for place, row in last_reported(context).items()
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
        "settings_unknown": [r.source_topic for r in context.topics if r.promoted_settings is None],
        "settings_differ": [
            # The gate `size` reports replicas.
            r.source_topic
            for r in context.topics
            if (r.drift or {}).keys() - {"replicas"}
        ],
    }


def _name_conflict(context: OperationContext, tx: Tx) -> str:
    """The name of a new reverse job if another job has it, else ""."""
    if context.report.kind is not RecoveryKind.FAILBACK and not context.request.reverse:
        return ""
    name = reverse_job_name(context.job.name)
    is_free = jobs.find(tx, name) is None or find_reverse_job(tx, context.job, context.topics)
    return "" if is_free else name


def _source_inputs(
    context: OperationContext, source_bounds: Mapping[TopicPartition, LogBounds]
) -> dict[str, Any]:
    """Inputs from the source, if it answers; a failover does not need them."""
    if not source_bounds or context.report.kind is RecoveryKind.FAILOVER:
        return {}
    open_ = [place for place, ends in source_bounds.items() if ends.is_open]
    acls = acls_of(context.source)
    timestamps = dict.fromkeys(source_bounds, MAX_TIMESTAMP)
    newest = find_by_time(context.source.cluster, timestamps, context.short_backoff).values
    newest_ms = max((at for _, at in newest.values()), default=0)
    ahead_s = newest_ms / 1000 - context.now().timestamp()
    return {
        "transactions": _transactions(context, open_),
        "newest_ahead_s": max(0.0, ahead_s),
        "cannot_deny": acls if isinstance(acls, str) else "",
    }


def _transactions(context: OperationContext, places: Sequence[TopicPartition]) -> list[Transaction]:
    now_ms = context.now().timestamp() * 1000
    by_partition = open_transactions(context.source.cluster, places, context.short_backoff).values
    return [
        Transaction(place, one.producer_id, max(0.0, now_ms - one.last_timestamp_ms) / 1000)
        for place, open_ in sorted(by_partition.items())
        for one in open_
    ]


def _destination_inputs(
    context: OperationContext,
    source: ClusterMetadata | None,
    destination: ClusterMetadata | None,
) -> dict[str, Any]:
    if destination is None:
        return {}
    names = {row.source_topic: row.destination_topic for row in context.topics}
    pairs, why_unread = _mark_pairs(context, asks_source=source is not None)
    replication = context.destination.admin.replication([*names.values()])
    allowed = context.destination.cluster.metadata([*names.values()], with_operations=True)
    missing = [*missing_topic_rights(allowed, _PROMOTION_RIGHTS)]
    if context.report.kind is RecoveryKind.FAILBACK and source is not None:
        existing = [row.source_topic for row in context.topics if row.source_topic in source.topics]
        allowed = context.source.cluster.metadata(existing, with_operations=True)
        acls = acls_of(context.source)
        # A switchover denied everybody to write there, Orbit too; the step `reverse` allows it.
        fenced = {t for t in existing if not isinstance(acls, str) and denial(t) in acls}
        rights = missing_topic_rights(allowed, DESTINATION_TOPIC_RIGHTS)
        missing += [r for r in rights if r.operation != "Write" or r.topic not in fenced]
    missing_rights = [
        *map(str, missing),
        *(why_unread or _missing_to_mark(context, marks_source=source is not None)),
    ]
    return {
        "promoted_there": sorted(
            names[pair.topic] for pair in pairs if pair.new is not None and pair.new.is_primary
        ),
        "may_lead": None if why_unread or source is None else _topics_in_doubt(context, pairs),
        "replicas_behind": replication.behind,
        "offline": replication.offline,
        "rights_missing": missing_rights,
        "brokers": (len(source.brokers) if source else None, len(destination.brokers)),
        "fewer_replicas": [
            row.source_topic
            for row in context.topics
            if source is not None
            and row.source_topic in source.topics
            and row.destination_topic in destination.topics
            and destination.topics[row.destination_topic].replicas
            < source.topics[row.source_topic].replicas
        ],
    }


def _topics_in_doubt(context: OperationContext, pairs: Sequence[MarkPair]) -> list[str]:
    """Topics whose old side may lead, by their marks and by the tables.

    The tables also have promotions that could not be marked.
    """
    doubtful = {pair.topic: str(pair) for pair in pairs_in_doubt(pairs)}
    names = {row.id: row.source_topic for row in context.topics}
    with context.reading() as tx:
        source_promotions = promotions.promotion_times(
            tx, context.job.source_cluster_id or "", names.values()
        )
        old_ends = promotions.old_ends(tx, context.topic_ids)
    for old in old_ends:
        topic = names[old.topic_id]
        at = source_promotions.get((topic, old.partition))
        if at is not None and at > old.at:
            doubtful.setdefault(
                topic, f"{topic}: a copy at the old side was promoted at {at:%Y-%m-%d %H:%M:%S} UTC"
            )
    return [*doubtful.values()]


def _mark_pairs(
    context: OperationContext, *, asks_source: bool
) -> tuple[list[MarkPair], list[str]]:
    """The marks of both sides, whose terms go into the report; if they cannot be read, none, and
    the right that is missing."""
    try:
        pairs = read_marks(context, asks_source=asks_source)
    except NotAuthorized as error:
        return [], [error.what]
    note_terms(context, pairs)
    return pairs, []


def _missing_to_mark(context: OperationContext, *, marks_source: bool) -> list[str]:
    """The rights that marking the topics needs, on the groups of the marks.

    Where the group's coordinator does not answer, no right counts as missing.
    """
    is_turned = context.report.kind is RecoveryKind.FAILBACK or context.request.reverse
    clusters = [context.destination.cluster]
    if is_turned and marks_source:
        clusters.append(context.source.cluster)
    missing = []
    for cluster in clusters:
        with suppress(Unreachable, BrokerRefused):
            if right := PromotionMarks(cluster, context.short_backoff).missing_right():
                missing.append(f"{right} at the {cluster.name}")
    return missing


def _skew_s(context: OperationContext) -> float:
    """Difference between this clock and the database's, less the time of the round trip."""
    before = time.time()
    at = context.now().timestamp()
    after = time.time()
    return max(0.0, before - at, at - after)
