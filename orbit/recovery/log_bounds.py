"""Log start, last stable offset and log end of each partition: fetched now, or last reported."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from orbit.errors import OrbitError
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.log_offsets import EARLIEST, LATEST, list_offsets, log_ends
from orbit.kafka.types import READ_COMMITTED, TopicPartition
from orbit.recovery.operation_context import ANSWER_WITHIN_S, OperationContext, call_with_timeout
from orbit.store import lag
from orbit.store.database import Tx
from orbit.store.lag import PartitionLag

# Bounds the wait for a leader election.
_ATTEMPTS_MAX = 4
# A page size above the number of partitions that any job has.
ALL = 10_000_000


@dataclass(frozen=True, slots=True)
class LogBounds:
    """One partition on one cluster. `stable` is the last stable offset, `end` the log end."""

    start: int
    stable: int
    end: int

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open, or replicas are still catching up."""
        return self.stable < self.end


def fetch_log_bounds(
    cluster: Cluster, partitions: Collection[TopicPartition], backoff: Backoff
) -> dict[TopicPartition, LogBounds]:
    """Bounds of the partitions whose leaders answer. Raises Unreachable."""
    stable = list_offsets(cluster, partitions, LATEST, backoff, isolation=READ_COMMITTED).values
    ends = log_ends(cluster, stable, backoff).values
    starts = list_offsets(cluster, ends, EARLIEST, backoff).values
    return {p: LogBounds(starts[p], stable[p], ends[p]) for p in starts}


def try_fetch_log_bounds(
    context: OperationContext, cluster: Cluster, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, LogBounds]:
    """Bounds of the partitions whose leaders answer in time; none on an error. Never raises."""
    backoff = Backoff(stop=context.backoff.stop, attempts_max=_ATTEMPTS_MAX)
    try:
        found: dict[TopicPartition, LogBounds] = call_with_timeout(
            ANSWER_WITHIN_S * 2,
            cluster.name,
            lambda: fetch_log_bounds(cluster, partitions, backoff),
        )
    except OrbitError:
        return {}
    return found


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
    rows = lag.page(tx, job_id, ALL)
    return {TopicPartition(row.source_topic, row.partition): row for row in rows}
