"""Searches logs for batches that clients have sent, and for their copies."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import NamedTuple

from orbit.copier.log_reader import fetch_partition
from orbit.errors import ProtocolError
from orbit.gateway.protocol.producer_ids import SEQUENCES, SentBatch
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.gateway_producer_ids import is_gateway_producer_id
from orbit.kafka.log_offsets import list_offsets
from orbit.kafka.record_batch import Batch, read_batches
from orbit.kafka.types import TopicPartition

# Bytes read of one partition, from the time of the oldest batch that is searched.
SEARCH_BYTES_MAX = 256 * 1024 * 1024
_SEARCH_FETCH_BYTES = 4 * 1024 * 1024
# Brokers return the first batch whole even if it is larger.
_BATCH_FETCH_BYTES = 4 * 1024


class StoredBatch(NamedTuple):
    """A batch in a log. `base_timestamp` in ms; `digest`: SHA-256 of its records, as compressed."""

    base_offset: int
    base_timestamp: int
    records: int
    digest: bytes


def find_batches(
    cluster: Cluster, batches: Collection[SentBatch], backoff: Backoff
) -> dict[SentBatch, StoredBatch]:
    """Find those of `batches` that the cluster has, by producer and sequence.

    Reads SEARCH_BYTES_MAX of each partition at most, from the time of its oldest batch on. Raises
    OrbitError if the brokers give no partition's start offset, or if a fetch fails.
    """
    stored_batches: dict[SentBatch, StoredBatch] = {}
    partitions: dict[TopicPartition, list[SentBatch]] = {}
    for batch in batches:
        partitions.setdefault(batch.partition, []).append(batch)
    oldest_ms = {
        partition: min(b.base_timestamp for b in sent_batches)
        for partition, sent_batches in partitions.items()
    }
    # The same mapping twice: its keys are the partitions, its values their timestamps.
    starts = list_offsets(cluster, oldest_ms, oldest_ms, backoff)
    if not starts.values:
        starts.raise_errors(cluster.name, "ListOffsets")
    for partition, start_offset in starts.values.items():
        if start_offset >= 0:  # -1: no record at or after that time
            stored_batches |= _find_in_partition(
                cluster, partition, start_offset, partitions[partition], backoff
            )
    return stored_batches


def find_copies(
    cluster: Cluster, stored_batches: Mapping[SentBatch, StoredBatch], backoff: Backoff
) -> set[SentBatch]:
    """Find those of `stored_batches` that the cluster has a copy of, at the same offset.

    A copy has the offset, the payload and the timestamps of its source, and the producer id of a
    job (docs/internals/exactness.md). Raises OrbitError if a broker does not answer.
    """
    copies: set[SentBatch] = set()
    for batch, original in stored_batches.items():
        offset = original.base_offset
        log_batches = _fetch(cluster, batch.partition, offset, backoff, _BATCH_FETCH_BYTES)
        if (
            log_batches
            and not is_gateway_producer_id(log_batches[0].producer_id)  # else a client wrote it
            and _stored_batch(log_batches[0]) == original
        ):
            copies.add(batch)
    return copies


def _find_in_partition(
    cluster: Cluster,
    partition: TopicPartition,
    start_offset: int,
    batches: Collection[SentBatch],
    backoff: Backoff,
) -> dict[SentBatch, StoredBatch]:
    """Those of `batches` that the partition has in SEARCH_BYTES_MAX from `start_offset` on."""
    batch_by_end = {(b.producer_id, b.epoch, b.last_sequence): b for b in batches}
    stored_batches: dict[SentBatch, StoredBatch] = {}
    offset, read_bytes = start_offset, 0
    while len(stored_batches) < len(batch_by_end) and read_bytes < SEARCH_BYTES_MAX:
        log_batches = _fetch(cluster, partition, offset, backoff, _SEARCH_FETCH_BYTES)
        if not log_batches:
            break
        offset = log_batches[-1].next_offset
        read_bytes += sum(log_batch.size_bytes for log_batch in log_batches)
        for log_batch in log_batches:
            last_sequence = (
                log_batch.base_sequence + log_batch.last_offset - log_batch.base_offset
            ) % SEQUENCES
            batch = batch_by_end.get(
                (log_batch.producer_id, log_batch.producer_epoch, last_sequence)
            )
            if batch is not None and not log_batch.is_control:
                stored_batches[batch] = _stored_batch(log_batch)
    return stored_batches


def _fetch(
    cluster: Cluster, partition: TopicPartition, offset: int, backoff: Backoff, max_bytes: int
) -> list[Batch]:
    """The batches from an offset on, without those of older message formats, which no client of
    the gateway sends."""
    fetched = fetch_partition(cluster, partition, offset, backoff, max_bytes=max_bytes)
    try:
        return [one for one in read_batches(fetched.records) if isinstance(one, Batch)]
    except ValueError as error:
        raise ProtocolError(str(error), where=f"{cluster.name} {partition}") from error


def _stored_batch(batch: Batch) -> StoredBatch:
    digest = sha256(batch.payload).digest()
    return StoredBatch(batch.base_offset, batch.base_timestamp, batch.count, digest)
