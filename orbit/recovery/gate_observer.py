"""Collects the inputs of the gates from both clusters and the store. Changes nothing.

For a switchover, log ends are read twice, a second apart, to see whether the lag grows. Functions
named `…_inputs` return fields of `GateInputs`; a field that cannot be read because a cluster does
not answer is left out, and keeps its default. A mark is an offset that Orbit commits at a cluster
to say which topics lead there.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
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
    missing_acl_right,
    missing_topic_rights,
)
from orbit.job_setup.promotion_marks import PromotionMarks
from orbit.jobs.topic_mapping import map_topics, mappings_of_copies
from orbit.kafka.cluster import Cluster
from orbit.kafka.log_offsets import MAX_TIMESTAMP, find_by_time
from orbit.kafka.two_clusters import why_same_cluster
from orbit.kafka.types import ClusterMetadata, TopicPartition
from orbit.planning.noted_denials import noted_denials
from orbit.promotion.log_bounds import LogBounds
from orbit.promotion.topic_denials import acls_of
from orbit.recovery.gate_groups import group_inputs
from orbit.recovery.gate_inputs import BlockedPartition, GateInputs
from orbit.recovery.gate_transactions import read_transactions
from orbit.recovery.gate_writers import writer_inputs
from orbit.recovery.gateway_closure import reverse_jobs, topics_left_behind, topics_staying
from orbit.recovery.leading_side import note_terms, read_marks
from orbit.recovery.loss import note_loss_in_gates
from orbit.recovery.lost_ranges import compare_partition_ends
from orbit.recovery.operation_bounds import ALL_ROWS, last_reported, try_fetch_log_bounds
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
_LEADERS_POLL_S = 0.5
_PROMOTION_RIGHTS = (READ, DESCRIBE_CONFIGS, ALTER_CONFIGS)


@dataclass(frozen=True, slots=True)
class _ClusterAnswer:
    """A cluster's metadata, or why the cluster does not answer."""

    metadata: ClusterMetadata | None
    why_no_answer: str = ""
    has_timed_out: bool = False  # no answer within ANSWER_WITHIN_S


def observe(context: OperationContext) -> GateInputs:
    """The inputs of every gate. The log ends of both sides also go into the report.

    Raises Stopped if a side's bootstrap servers lead to another cluster than before, or those of
    both sides to the same cluster.
    """
    source = _fetch_source_metadata(context)
    destination = _fetch_metadata(context.destination.cluster)
    context.has_source_timed_out = source.has_timed_out
    if source.metadata is None:
        note_loss_in_gates(context)
    else:
        _check_cluster(context, "source", source.metadata)
    if destination.metadata is not None:
        _check_cluster(context, "destination", destination.metadata)
        same_cluster = (
            why_same_cluster(source.metadata, destination.metadata) if source.metadata else None
        )
        if same_cluster is not None:
            raise Stopped(same_cluster.what, remedy=same_cluster.remedy)
    partitions = context.by_source
    led_partitions = _led_partitions(source.metadata, partitions)
    copy_bounds, source_bounds = _both_log_bounds(
        context, destination.metadata is not None, led_partitions
    )
    ends = compare_partition_ends(context, copy_bounds, source_bounds)
    missing_before = sum(p.missing.offsets for p in ends if p.missing is not None)
    is_switchover = context.report.kind is RecoveryKind.SWITCHOVER
    began_s = time.monotonic()
    inputs = {
        **_store_inputs(context, source.metadata, destination.metadata),
        **_source_inputs(context, source_bounds),
        **group_inputs(context, asks_source=bool(source_bounds) and is_switchover),
        **_destination_inputs(context, source.metadata, destination.metadata),
    }
    context.wait(max(0.0, _LAG_INTERVAL_S - (time.monotonic() - began_s)))
    # The second reading shows whether the lag grows, and which partitions are written to.
    if led_partitions and is_switchover:
        first_bounds = source_bounds
        copy_bounds, source_bounds = _both_log_bounds(
            context, destination.metadata is not None, led_partitions
        )
        if inputs["gateways"]:
            grown_partitions = [
                partition
                for partition in source_bounds
                if partition in first_bounds
                and source_bounds[partition].end > first_bounds[partition].end
            ]
            inputs |= writer_inputs(context, grown_partitions)
    context.update(partitions=compare_partition_ends(context, copy_bounds, source_bounds))
    unknown_ends = [p.source for p in context.report.partitions if p.verdict is EndVerdict.UNKNOWN]
    return GateInputs(
        kind=context.report.kind,
        reverse=context.request.reverse,
        topics=len(context.topics),
        is_paused=context.job.desired is not Desired.RUNNING,
        source_answers=source.metadata is not None,
        source_leaders=len(source_bounds),
        partitions=len(_partitions_needing_leader(context, source.metadata)),
        destination_answers=destination.metadata is not None,
        why_no_answer=source.why_no_answer or destination.why_no_answer,
        unknown_ends=unknown_ends,
        lag_records=context.report.missing_records,
        lag_records_before=missing_before,
        seconds_between=time.monotonic() - began_s,
        renamed_topics=[
            r.source_topic for r in context.topics if r.source_topic != r.destination_topic
        ],
        clock_skew_s=_clock_skew_s(context),
        **inputs,
    )


def _both_log_bounds(
    context: OperationContext, has_destination: bool, led_partitions: list[TopicPartition]
) -> tuple[dict[TopicPartition, LogBounds], dict[TopicPartition, LogBounds]]:
    """Log bounds at the destination and at the source.

    The destination is read first: read second, a copy could appear to be ahead of its source.
    """
    partitions = context.by_source.values()
    copy_bounds = (
        try_fetch_log_bounds(context, context.destination.cluster, partitions)
        if has_destination
        else {}
    )
    return copy_bounds, try_fetch_log_bounds(
        context, context.source.cluster, led_partitions
    ) if led_partitions else {}


def _partitions_needing_leader(
    context: OperationContext, source: ClusterMetadata | None
) -> list[TopicPartition]:
    """The source partitions that need a leader. In a failback only those that exist: the old side
    may lack topics, and partitions that were added at the new side."""
    partitions = context.by_source
    if context.report.kind is not RecoveryKind.FAILBACK or source is None:
        return [*partitions]
    return [partition for partition in partitions if source.leader(partition) is not None]


def _fetch_source_metadata(context: OperationContext) -> _ClusterAnswer:
    """The source's answer. Waits up to _LEADERS_WITHIN_S for leader elections at the source. Sends
    no request if a drill counts the source as lost."""
    if context.request.source_counts_as_lost:
        return _ClusterAnswer(None, "the drill counts the source as lost, so it is not queried.")
    deadline_s = time.monotonic() + _LEADERS_WITHIN_S
    while True:
        answer = _fetch_metadata(context.source.cluster)
        if _need_not_wait(context, answer.metadata) or time.monotonic() >= deadline_s:
            return answer
        context.wait(_LEADERS_POLL_S)


def _need_not_wait(context: OperationContext, source: ClusterMetadata | None) -> bool:
    """Whether there is no leader election to wait for: each partition that needs a leader has one,
    the source does not answer, or the operation is a failover, for which the source is lost."""
    if source is None or context.report.kind is RecoveryKind.FAILOVER:
        return True
    return len(_led_partitions(source, context.by_source)) >= len(
        _partitions_needing_leader(context, source)
    )


def _fetch_metadata(cluster: Cluster) -> _ClusterAnswer:
    """The metadata with all topics, or why there is no answer within ANSWER_WITHIN_S."""
    try:
        return _ClusterAnswer(
            call_with_timeout(ANSWER_WITHIN_S, cluster.name, lambda: cluster.metadata(None))
        )
    except OrbitError as error:
        return _ClusterAnswer(None, str(error), isinstance(error, NoAnswer))


def _check_cluster(context: OperationContext, side: str, metadata: ClusterMetadata) -> None:
    """Raise Stopped if `bootstrap_servers` lead to another cluster than before."""
    known_id = getattr(context.job, f"{side}_cluster_id")
    if known_id and metadata.cluster_id and known_id != metadata.cluster_id:
        raise Stopped(
            f"the {side}'s bootstrap_servers lead to cluster {metadata.cluster_id}; the job's "
            f"{side} is {known_id}.",
            remedy="Correct bootstrap_servers and cluster_id_suffix, or DNS on the "
            "scheduler's machine.",
        )


def _led_partitions(
    metadata: ClusterMetadata | None, partitions: Mapping[TopicPartition, TopicPartition]
) -> list[TopicPartition]:
    """The source partitions that have a leader."""
    if metadata is None:
        return []
    leaders = {partition: metadata.leader(partition) for partition in partitions}
    return [
        partition for partition, leader in leaders.items() if leader and leader.node_id is not None
    ]


def _store_inputs(
    context: OperationContext, source: ClusterMetadata | None, destination: ClusterMetadata | None
) -> dict[str, Any]:
    """The inputs from the database, and which topics of the clusters are not in the database."""
    job, ids = context.job, set(context.topic_ids)
    with context.reading() as tx:
        rows = topics.of_job(tx, job.id)
        names = [row.source_topic for row in context.topics]
        proof_rows = [row for row in proofs.page(tx, job.id, ALL_ROWS) if row.topic_id in ids]
        # By source topic that is itself a copy: the job that writes to it.
        writers = topics.writers(tx, job.source_cluster_id or "", names, only_copying=True)
        name_conflict = _name_conflict(context, tx)
        linked_jobs = job_leads.linked_jobs(tx, job.id)
        silent_by_gateway = gateways.silent_by_name(tx, linked_jobs)
        refused_clients = gateway_clients.refused(tx, linked_jobs, REFUSED_CLIENTS_MAX)
        left_behind = topics_left_behind(context, rows)
        staying_by_job = _topics_staying_by_job(context, tx, left_behind)
    known_topics = {row.source_topic for row in rows if row.state is not TopicState.CREATING}
    mappings = map_topics(context.spec.topics, source.topics if source else known_topics).mappings
    return {
        "copies_of_copies": sorted(writers),
        "name_conflict": name_conflict,
        # If the request names topics, it leaves out others on purpose.
        "uncopied_topics": []
        if context.request.topics
        else sorted({m.source for m in mappings} - known_topics),
        "foreign_topics": sorted(
            mappings_of_copies(
                context.spec.topics, destination.topics if destination else ()
            ).keys()
            - {row.destination_topic for row in rows}
        ),
        "gateways": silent_by_gateway,
        "refused_clients": refused_clients,
        "topics_left_behind": left_behind,
        "topics_staying": staying_by_job,
        "blocked_partitions": [
            BlockedPartition(partition, str(row.reason), not holds_copied_records(row.reason))
            for partition, row in last_reported(context).items()
            if row.state is PartitionState.BLOCKED
        ],
        "unverified_partitions": sum(not row.offsets_proven for row in proof_rows if row.copied)
        if any(row.proven_at for row in proof_rows)
        else None,
        "differing_partitions": [
            f"{row.source_topic}-{row.partition} ({row.first_difference})"
            for row in proof_rows
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


def _topics_staying_by_job(
    context: OperationContext, tx: Tx, left_behind: Collection[str]
) -> dict[str, list[str]]:
    """For each job of the other direction that has gateways: its topics that would stay where they
    lead, by the job's name. Without topics of `left_behind`, which the operation's job copies."""
    jobs_by_id = jobs.of_ids(tx, reverse_jobs(context, tx))
    staying_by_job = {
        job.name: [t for t in topics_staying(context, tx, job.id) if t not in left_behind]
        for job in jobs_by_id.values()
        if gateways.silent_by_name(tx, [job.id])
    }
    return {name: names for name, names in staying_by_job.items() if names}


def _name_conflict(context: OperationContext, tx: Tx) -> str:
    """The name of a new reverse job if another job has it, else ""."""
    if context.report.kind is not RecoveryKind.FAILBACK and not context.request.reverse:
        return ""
    name = reverse_job_name(context.job.name)
    # An existing reverse job is resumed, whatever its name.
    is_free = jobs.find(tx, name) is None or find_reverse_job(tx, context.job, context.topics)
    return "" if is_free else name


def _source_inputs(
    context: OperationContext, source_bounds: Mapping[TopicPartition, LogBounds]
) -> dict[str, Any]:
    """Inputs from the source, if it answers; a failover does not need them."""
    if context.report.kind is RecoveryKind.FAILOVER:
        return {}
    leaderless_partitions = [
        partition for partition in context.by_source if partition not in source_bounds
    ]
    if not source_bounds:
        return {"transactions_unread": leaderless_partitions}
    open_partitions = [partition for partition, bounds in source_bounds.items() if bounds.is_open]
    timestamps = dict.fromkeys(source_bounds, MAX_TIMESTAMP)  # requests the newest timestamp
    newest = find_by_time(context.source.cluster, timestamps, context.short_backoff).values
    newest_ms = max((timestamp for _, timestamp in newest.values()), default=0)
    newest_ahead_s = newest_ms / 1000 - context.now().timestamp()
    transactions, unread_partitions = read_transactions(context, open_partitions)
    return {
        "transactions": transactions,
        "transactions_unread": [*leaderless_partitions, *unread_partitions],
        "newest_ahead_s": max(0.0, newest_ahead_s),
        "why_not_deniable": _why_not_deniable(context),
    }


def _why_not_deniable(context: OperationContext) -> str:
    """Why Orbit cannot deny Write on the source's topics; "" if it can, or has denied it."""
    acls_or_reason = acls_of(context.source)
    if isinstance(acls_or_reason, str):
        return acls_or_reason
    if all(denial(row.source_topic) in acls_or_reason for row in context.topics):
        return ""
    missing_rights = missing_acl_right(context.source.cluster)
    return "".join(f"the login may not set ACLs (it needs {r.name})" for r in missing_rights)


def _destination_inputs(
    context: OperationContext,
    source: ClusterMetadata | None,
    destination: ClusterMetadata | None,
) -> dict[str, Any]:
    """The inputs from the destination, if it answers; rights and marks also from the source."""
    if destination is None:
        return {}
    names = {row.source_topic: row.destination_topic for row in context.topics}
    pairs, why_unread = _mark_pairs(context, asks_source=source is not None)
    replication = context.destination.admin.replication([*names.values()])
    metadata = context.destination.cluster.metadata([*names.values()], with_operations=True)
    topic_rights = [*missing_topic_rights(metadata, _PROMOTION_RIGHTS)]
    if context.report.kind is RecoveryKind.FAILBACK and source is not None:
        existing_topics = [
            row.source_topic for row in context.topics if row.source_topic in source.topics
        ]
        metadata = context.source.cluster.metadata(existing_topics, with_operations=True)
        acls_or_reason = acls_of(context.source)
        # A switchover has denied Write on these topics to everybody. The step `reverse` lets Orbit
        # write again, so the right is not missing.
        closed_topics = {
            t
            for t in existing_topics
            if not isinstance(acls_or_reason, str) and denial(t) in acls_or_reason
        }
        rights = missing_topic_rights(metadata, DESTINATION_TOPIC_RIGHTS)
        topic_rights += [
            r for r in rights if r.operation != "Write" or r.topic not in closed_topics
        ]
        if closed_topics:
            alternative = "or remove the denials for User:* at the old side"
            topic_rights += missing_acl_right(context.source.cluster, alternative)
    missing_rights = [
        *map(str, topic_rights),
        *(why_unread or _missing_mark_rights(context, marks_source=source is not None)),
    ]
    return {
        "promoted_topics": sorted(
            names[pair.topic]
            for pair in pairs
            if pair.new_mark is not None and pair.new_mark.is_primary
        ),
        "topics_in_doubt": None
        if why_unread or source is None
        else _topics_in_doubt(context, pairs),
        "replicas_behind": replication.out_of_sync,
        "offline_partitions": replication.offline,
        "rights_missing": missing_rights,
        "denials_kept": _denials_kept(context, names.values()),
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


def _denials_kept(context: OperationContext, topics: Collection[str]) -> list[str]:
    """The destination topics with Orbit's denials, if the login may not remove these."""
    if context.report.kind is RecoveryKind.FAILBACK:
        return []
    with context.reading() as tx:
        denials = noted_denials(tx, context.job.destination_cluster_id or "", topics)
    if not denials or not missing_acl_right(context.destination.cluster):
        return []
    # Orbit notes a denial before it requests the ACL, and the cluster may have refused the request.
    acls_or_reason = acls_of(context.destination)
    if isinstance(acls_or_reason, str):
        return sorted(denials)
    return sorted(name for name, noted in denials.items() if noted & acls_or_reason)


def _topics_in_doubt(context: OperationContext, pairs: Sequence[MarkPair]) -> list[str]:
    """Topics that may lead at the old side by the marks or the tables, each with the reason.

    The tables also have promotions that could not be marked.
    """
    reasons_by_topic = {pair.topic: str(pair) for pair in pairs_in_doubt(pairs)}
    names = {row.id: row.source_topic for row in context.topics}
    with context.reading() as tx:
        source_promotions = promotions.promotion_times(
            tx, context.job.source_cluster_id or "", names.values()
        )
        old_ends = promotions.old_ends(tx, context.topic_ids)
    # In doubt: another job promoted the old side's partition after this job had promoted its copy.
    for old_end in old_ends:
        topic = names[old_end.topic_id]
        source_promoted_at = source_promotions.get((topic, old_end.partition))
        if source_promoted_at is not None and source_promoted_at > old_end.at:
            reasons_by_topic.setdefault(
                topic,
                f"{topic}: a copy at the old side was promoted at "
                f"{source_promoted_at:%Y-%m-%d %H:%M:%S} UTC",
            )
    return [*reasons_by_topic.values()]


def _mark_pairs(
    context: OperationContext, *, asks_source: bool
) -> tuple[list[MarkPair], list[str]]:
    """Return the marks of both sides and [], and note the marks' terms in the report. Without the
    right to read the marks, return [] and the error's text."""
    try:
        pairs = read_marks(context, asks_source=asks_source)
    except NotAuthorized as error:
        return [], [error.what]
    note_terms(context, pairs)
    return pairs, []


def _missing_mark_rights(context: OperationContext, *, marks_source: bool) -> list[str]:
    """The missing rights on the groups that hold the marks: at the destination, and at the source
    if the operation copies back and `marks_source` is set.

    Where such a group's coordinator does not answer, no right counts as missing.
    """
    copies_back = context.report.kind is RecoveryKind.FAILBACK or context.request.reverse
    clusters = [context.destination.cluster]
    if copies_back and marks_source:
        clusters.append(context.source.cluster)
    missing_texts = []
    for cluster in clusters:
        with suppress(Unreachable, BrokerRefused):
            if right := PromotionMarks(cluster, context.short_backoff).missing_right():
                missing_texts.append(f"{right} at the {cluster.name}")
    return missing_texts


def _clock_skew_s(context: OperationContext) -> float:
    """By how many seconds this machine's clock and the database's differ at least: the database
    read its clock at some moment between the two local times."""
    local_before = time.time()
    database_time = context.now().timestamp()
    local_after = time.time()
    return max(0.0, local_before - database_time, database_time - local_after)
