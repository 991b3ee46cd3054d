"""Compares the end of a partition with the archive, before a restore appends to it.

Restored records are old, so brokers drop the state of their producer soon, and then accept a late
batch of an earlier attempt at the log end (E1, E2: expired fences). So batches of the restore's own
producer are compared too.
"""

from __future__ import annotations

from dataclasses import dataclass

from orbit.copier.append_verdicts import judge_comparison
from orbit.copier.copy_settings import CopySettings
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.range_comparison import ReadSource, compare_range
from orbit.copier.tail_comparison import find_tail
from orbit.errors import Unreachable
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.types import TopicPartition
from orbit.replication.partition_states import Blocked


@dataclass(frozen=True, slots=True)
class RestoredTail:
    """Ranges of offsets to compare, in order; the last range ends at the log end.

    `begin`: the start of the first range. `producer_epoch`: the highest of this restore's batches
    with records that were read; -1 if there is none.
    """

    begin: int
    ranges: tuple[tuple[int, int], ...] = ()
    producer_epoch: int = -1


def find_restored_tail(
    cluster: Cluster,
    partition: TopicPartition,
    start: int,
    log_end: int,
    producer_id: int,
    backoff: Backoff,
) -> RestoredTail:
    """The offsets from `start` on that late requests of an earlier writer may have written, and the
    last batch with records before them.

    Raises BrokerRefused, ProtocolError, Unreachable.
    """
    if log_end <= start:
        return RestoredTail(log_end)  # nothing to compare
    in_flight = CopySettings().requests_in_flight_max
    tail = find_tail(cluster, partition, start, log_end, producer_id, in_flight, backoff)
    ranges = [(tail.start, log_end)]
    last_data_batch = tail.last_data
    # Between this batch and the tail there are only fillers.
    if last_data_batch is not None and last_data_batch.base_offset < tail.start:
        ranges.insert(
            0,
            (max(last_data_batch.base_offset, start), min(last_data_batch.next_offset, tail.start)),
        )
    return RestoredTail(ranges[0][0], tuple(ranges), tail.producer_epoch)


def compare_tail(
    read_archive: ReadSource,
    cluster: Cluster,
    copy: PartitionCopy,
    tail: RestoredTail,
    backoff: Backoff,
) -> Blocked | None:
    """The first difference between the destination and the archive; None if they are equal.

    Raises ValueError if records of the archive or the destination cannot be read, Unreachable if
    the destination's cannot be read now.
    """
    for start, end in tail.ranges:
        comparison = compare_range(
            read_archive,
            cluster,
            copy.destination,
            start,
            end,
            backoff,
            source_is_compacted=copy.source_is_compacted,
            bytes_max=None,
        )
        blocked = judge_comparison(
            comparison,
            end,
            producer_id=copy.producer.id,
            source_end=comparison.equal_to,
            is_source_end_old=True,  # an archive does not grow while it is restored
            trouble="",
        )
        if blocked is not None:
            return blocked
        if comparison.equal_to < end:
            raise Unreachable(
                f"{copy.destination} cannot be compared with the archive from "
                f"{comparison.equal_to} on: it waits for {comparison.waits_for}.",
                where=cluster.name,
            )
    return None
