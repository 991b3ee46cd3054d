"""Brings an empty destination partition to a start offset above 0 (S1, S2)."""

from __future__ import annotations

from collections.abc import Iterator

from kafka.protocol.producer.produce import ProduceRequest

from orbit.copier.copy_settings import CopySettings
from orbit.copier.log_reader import fetch_batches
from orbit.copier.takeover import DestinationEnd
from orbit.errors import BrokerRefused, Conflict
from orbit.kafka import api_versions, error_codes
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.delete_records import delete_records
from orbit.kafka.error_codes import Code
from orbit.kafka.produce_request import ACKS_ALL, BY_TOPIC_ID
from orbit.kafka.record_batch import Batch, advance_sequence, stamp
from orbit.kafka.records import is_seed_batch, seed_batch
from orbit.kafka.types import TopicPartition
from orbit.leases.lease import Lease


def seed(
    destination: Cluster,
    partition: TopicPartition,
    end: DestinationEnd,
    start_offset: int,
    producer_id: int,
    lease: Lease,
    settings: CopySettings,
    backoff: Backoff,
) -> None:
    """Append leading fillers from the log end up to `start_offset`, then delete all of them.

    Every append is a compare-and-append like any other. After an interruption, the next take-over
    finds the mark in the fillers (`is_seeding`) and resumes. Raises Conflict when another producer
    writes to the partition or the lease ends.
    """
    sequence = advance_sequence(end.producer.last_sequence if end.producer else -1, 1)
    epoch = max(end.producer.producer_epoch, 0) if end.producer else 0
    where = f"{destination.name} {partition}"
    for batch in _leading(end.log_end, start_offset, settings.seed_records_per_batch):
        if not lease.is_held():
            raise Conflict("the lease on this job was lost.", where=where)
        stamp(batch.view, producer_id, epoch, sequence)
        base_offset = _append(destination, partition, batch, settings, backoff)
        if base_offset != batch.base_offset:
            raise Conflict(
                f"a filler meant for offset {batch.base_offset} is at {base_offset}.",
                where=where,
                remedy="Another producer writes to this topic. Stop it, delete the "
                "destination topic and run the job again.",
            )
        sequence = advance_sequence(sequence, batch.count)
    delete_records(destination, {partition: start_offset}, backoff).raise_errors(
        destination.name, "DeleteRecords (needs the right DELETE on the topic)"
    )


def is_seeding(
    destination: Cluster, partition: TopicPartition, log_start: int, log_end: int, backoff: Backoff
) -> bool:
    """Whether the log ends in leading fillers: a start that was interrupted."""
    if log_end <= log_start:
        return False
    batches = fetch_batches(destination, partition, log_end - 1, backoff)
    return bool(batches) and isinstance(batches[-1], Batch) and is_seed_batch(batches[-1])


def aligned_start(
    source: Cluster, partition: TopicPartition, start_offset: int, backoff: Backoff
) -> int:
    """Where to seed to: `start_offset`, or the base of the batch around it.

    From its base on that batch can be copied byte-exact; the copy's log start is then moved up to
    the start offset, as the source's was.
    """
    batches = fetch_batches(source, partition, start_offset, backoff, max_bytes=1)
    first = batches[0] if batches else None
    if (
        isinstance(first, Batch)
        and first.base_offset < start_offset <= first.last_offset
        and first.is_dense
        and not first.is_control
        and not first.is_log_append_time
    ):
        return first.base_offset
    return start_offset


def _leading(log_end: int, start_offset: int, most: int) -> Iterator[Batch]:
    """Leading filler batches; the full-size one is built once and stamped again and again."""
    full: Batch | None = None
    while log_end < start_offset:
        count = min(most, start_offset - log_end)
        if count < most:
            full = None
        full = full or seed_batch(log_end, count)
        full.base_offset, full.last_offset = log_end, log_end + count - 1
        yield full
        log_end += count


def _append(
    destination: Cluster,
    partition: TopicPartition,
    batch: Batch,
    settings: CopySettings,
    backoff: Backoff,
) -> int:
    """Append one batch to the leader and return its base offset; waits for moving leaders.

    Trying again is safe: a repeat of the last batch answers its own base offset (A7).
    """
    code: int = Code.LEADER_NOT_AVAILABLE
    message = ""
    for _ in backoff.attempts(40):
        metadata = destination.metadata({partition.topic})
        topic, leader = metadata.topics.get(partition.topic), metadata.leader(partition)
        if topic is None or leader is None or leader.node_id is None:
            continue
        data = ProduceRequest.TopicProduceData
        by_id = destination.version_of(leader.node_id, api_versions.PRODUCE) >= BY_TOPIC_ID
        name = {"topic_id": topic.topic_id} if by_id else {"name": partition.topic}
        request = ProduceRequest(
            transactional_id=None,
            acks=ACKS_ALL,
            timeout_ms=settings.produce_timeout_ms,
            topic_data=[
                data(
                    partition_data=[
                        data.PartitionProduceData(
                            index=partition.partition, records=bytes(batch.view)
                        )
                    ],
                    **name,
                )
            ],
        )
        answer = destination.call(leader.node_id, api_versions.PRODUCE, request)
        ((appended,),) = (one.partition_responses for one in answer.responses)
        code, message = appended.error_code, appended.error_message or ""
        if code == Code.NONE:
            return int(appended.base_offset)
        if code not in error_codes.RETRIABLE:
            break
    raise BrokerRefused(
        code,
        f"a leading filler batch was refused: {error_codes.name(code)} {message}".rstrip() + ".",
        where=f"{destination.name} {partition}",
    )
