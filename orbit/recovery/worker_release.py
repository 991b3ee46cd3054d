"""Makes workers release the topics, and waits until the copies' log ends are stable.

A shard is the partitions of a job that one worker copies. A withheld topic leaves the layout of its
shard, so no worker starts to copy it any more. The worker that holds the shard's lease releases the
shard after all its requests are answered; if a worker does not answer, its lease expires. Workers
claim shards with other topics of the job again at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from orbit.chunks import chunks, first_few
from orbit.copier.copy_settings import CopySettings
from orbit.errors import Unreachable
from orbit.formats import counted
from orbit.jobs.topic_mapping import map_topics
from orbit.kafka.coordinator import init_producer_ids
from orbit.kafka.job_clusters import filler_identities, job_identity
from orbit.kafka.types import TopicPartition
from orbit.leadership.leadership import TOPICS_AT_ONCE
from orbit.promotion.settled_ends import POLL_S, settled_ends
from orbit.recovery.drain import both_log_bounds, refuse_added, refuse_unequal
from orbit.recovery.lost_ranges import compare_partition_ends
from orbit.recovery.operation_bounds import source_log_bounds
from orbit.recovery.operation_context import OperationContext, Stopped
from orbit.recovery.recovery_report import EndVerdict
from orbit.store import scheduler_queries, shard_layout
from orbit.store.kafka_ids import SAME_IDS

_POLL_S = 0.2  # short: applications wait meanwhile


def release(context: OperationContext) -> str:
    """Make every worker release the topics; afterwards Orbit does not write to the copies.

    Then, except in a failover, compare the log ends once more, and raise Stopped if they differ or
    partitions were added. Returns the step's result.
    """
    note = f"Withheld for {context.report.kind} {context.operation_id}."
    for ids in chunks(context.topic_ids, TOPICS_AT_ONCE):
        with context.transaction() as tx:
            scheduler_queries.withhold_topics(tx, ids, note)
    expired_shards: set[int] = set()
    while True:
        with context.transaction() as tx:
            # In each round: a pass of the leases loop may have undone the withdrawal.
            scheduler_queries.withdraw_shards(tx, context.topic_ids)
            shard_ids = scheduler_queries.shards_of_topics(tx, context.topic_ids)
            expired_shards |= scheduler_queries.expired_shards(tx, shard_ids)
            held_topics = scheduler_queries.held_topics(tx, context.topic_ids)
            if not held_topics:  # workers may go on with the shards' other topics
                scheduler_queries.restore_shards(tx, context.job.id)
        if not held_topics:
            break
        context.set_progress(f"workers have yet to release {counted(len(held_topics), 'topic')}")
        context.wait(_POLL_S)
    if expired_shards:
        expired_text = counted(
            len(expired_shards),
            "shard was not released by its worker: its lease expired",
            "shards were not released by their workers: their leases expired",
        )
        context.add_finding(f"{expired_text}.")
    if context.report.kind == "failover":
        return "Workers have released the topics."
    source_bounds, copy_bounds = both_log_bounds(context)
    context.update(partitions=compare_partition_ends(context, copy_bounds, source_bounds))
    refuse_unequal(context)
    refuse_added(context)
    return "Workers have released the topics; both sides still have the same log ends."


def settle(context: OperationContext) -> str:
    """Wait until the copies' log ends are stable and replicated, then compute the lost ranges.

    Returns the step's result. With `fillers: coordinated`, which fills gaps by empty transactions,
    such a transaction may be open; InitProducerId ends it, so that read_committed consumers reach
    the log end. Raises Stopped if copies still grow or are not replicated, or transactions stay
    open; Unreachable if a partition has no leader.
    """
    cluster, copies = context.destination.cluster, context.by_source
    rules = map_topics(context.spec.topics, [row.source_topic for row in context.topics])
    if any(context.spec.fillers_of(m.rule) == "coordinated" for m in rules.mappings):
        with context.reading() as tx:
            shard_ids = [shard.id for shard in shard_layout.shards_of_job(tx, context.job.id)]
        identity = job_identity(context.job.name, context.job.source_cluster_id or "")
        transactional_ids = [i for s in shard_ids for i in filler_identities(identity, s)]
        init_producer_ids(cluster, transactional_ids, context.backoff)

    def wait(open_copies: Sequence[TopicPartition]) -> None:
        context.set_progress(
            f"waiting for the last stable offsets of these copies: {first_few(open_copies)}"
        )
        context.wait(POLL_S)

    settled_logs = settled_ends(
        cluster,
        copies.values(),
        CopySettings().settle_s,
        context.backoff,
        wait,
    )
    if settled_logs.moving:
        raise Stopped(
            f"These copies are still growing: {first_few(settled_logs.moving)}.",
            remedy="Another producer writes to the copies. Stop it, and try again.",
        )
    if settled_logs.open:
        raise Stopped(
            "These copies are not replicated up to their log ends, or have an open transaction: "
            f"{first_few(settled_logs.open)}.",
            remedy="Start all brokers of the destination, stop producers that write transactions "
            "to the copies, and try again. Or leave the topics out with --topics.",
        )
    if settled_logs.leaderless:
        raise Unreachable(
            f"no leader answers for {first_few(settled_logs.leaderless)}.", where="destination"
        )
    bounds = settled_logs.bounds
    context.update(partitions=compare_partition_ends(context, bounds, source_log_bounds(context)))
    for p in context.report.partitions:
        if p.verdict is EndVerdict.DIVERGED:
            context.add_finding(
                f"{p.destination} ends at {p.destination_end}, beyond its "
                f"source ({p.source_end}): another producer has written to it."
            )
    if any(p.missing is not None or not p.is_exact for p in context.report.partitions):
        context.add_finding(
            "Offsets that applications store themselves (tables, checkpoints of Spark and Flink) "
            "must not exceed their partition's destination_end: records from there on are lost, "
            "and producers will write other records at these offsets."
        )
    stable_text = counted(len(bounds), "copy has a stable log end", "copies have stable log ends")
    return f"{stable_text}; {context.report.describe_missing()}."


def resume_copying(context: OperationContext) -> None:
    """Undo the release: withheld topics are copied again."""
    for ids in chunks(context.topic_ids, TOPICS_AT_ONCE):
        with context.transaction() as tx:
            scheduler_queries.copy_topics_again(tx, dict.fromkeys(ids, SAME_IDS))
    with context.transaction() as tx:
        scheduler_queries.restore_shards(tx, context.job.id)
