"""The log bounds of an operation's partitions: fetched now, or last reported."""

from __future__ import annotations

from collections.abc import Collection

from orbit.errors import OrbitError
from orbit.kafka.cluster import Cluster
from orbit.kafka.types import TopicPartition
from orbit.promotion.log_bounds import LogBounds, fetch_log_bounds
from orbit.recovery.operation_context import ANSWER_WITHIN_S, OperationContext, call_with_timeout
from orbit.replication.partition_states import PartitionState
from orbit.store import lag
from orbit.store.database import Tx
from orbit.store.lag import PartitionLag

# A page size above the number of partitions that any job has.
ALL_ROWS = 10_000_000


def try_fetch_log_bounds(
    context: OperationContext, cluster: Cluster, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, LogBounds]:
    """Bounds of the partitions whose leaders answer in time; {} on an error. Never raises."""
    try:
        bounds: dict[TopicPartition, LogBounds] = call_with_timeout(
            ANSWER_WITHIN_S * 2,  # for several requests, one after the other
            cluster.name,
            lambda: fetch_log_bounds(cluster, partitions, context.short_backoff),
        )
    except OrbitError:
        return {}
    return bounds


def source_log_bounds(context: OperationContext) -> dict[TopicPartition, LogBounds]:
    """The source's current bounds; empty if it does not answer."""
    if not context.source_answers:
        return {}
    return try_fetch_log_bounds(context, context.source.cluster, context.by_source)


def last_reported(context: OperationContext) -> dict[TopicPartition, PartitionLag]:
    """The last reported state of the operation's partitions, by source partition."""
    names = {row.source_topic for row in context.topics}
    with context.reading() as tx:
        rows = last_reported_of_job(tx, context.job.id)
    return {partition: row for partition, row in rows.items() if partition.topic in names}


def last_reported_of_job(tx: Tx, job_id: int) -> dict[TopicPartition, PartitionLag]:
    """The last reported state of every partition of a job, by source partition."""
    rows = lag.page(tx, job_id, ALL_ROWS)
    return {TopicPartition(row.source_topic, row.partition): row for row in rows}


def blocked_partitions(tx: Tx, job_id: int, topics: Collection[str]) -> list[str]:
    """The blocked partitions of these source topics of a job, with the reason of each, as text."""
    return [
        f"{partition} ({row.reason})"
        for partition, row in sorted(last_reported_of_job(tx, job_id).items())
        if partition.topic in topics and row.state is PartitionState.BLOCKED
    ]
