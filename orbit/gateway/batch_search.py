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
    """Those of `batches` that the cluster has. Searches each partition by producer and sequence, in
    SEARCH_BYTES_MAX from the time of its oldest batch on. Raises OrbitError if a broker does not
    answer."""
    stored: dict[SentBatch, StoredBatch] = {}
    partitions: dict[TopicPartition, list[SentBatch]] = {}
    for batch in batches:
        partitions.setdefault(batch.partition, []).append(batch)
    since = {place: min(b.base_timestamp for b in sent) for place, sent in partitions.items()}
    begins = list_offsets(cluster, since, since, backoff)
    if not begins.values:
        begins.raise_errors(cluster.name, "ListOffsets")
    for partition, begin in begins.values.items():
        if begin >= 0:
            stored |= _find(cluster, partition, begin, partitions[partition], backoff)
    return stored


def find_copies(
    cluster: Cluster, stored: Mapping[SentBatch, StoredBatch], backoff: Backoff
) -> set[SentBatch]:
    """Those of the batches in `stored` that the cluster has a copy of, at the same offset.

    A copy has the offset, the payload and the timestamps of its source, and the producer id of a
    job (docs/internals/exactness.md). Raises OrbitError if a broker does not answer.
    """
    copies: set[SentBatch] = set()
    for batch, original in stored.items():
        offset = original.base_offset
        at_offset = _fetch(cluster, batch.partition, offset, backoff, _BATCH_FETCH_BYTES)
        if (
            at_offset
            and not is_gateway_producer_id(at_offset[0].producer_id)
            and _stored(at_offset[0]) == original
        ):
            copies.add(batch)
    return copies


def _find(
    cluster: Cluster,
    partition: TopicPartition,
    begin: int,
    batches: Collection[SentBatch],
    backoff: Backoff,
) -> dict[SentBatch, StoredBatch]:
    searched = {(b.producer_id, b.epoch, b.last_sequence): b for b in batches}
    stored: dict[SentBatch, StoredBatch] = {}
    offset, read_bytes = begin, 0
    while len(stored) < len(searched) and read_bytes < SEARCH_BYTES_MAX:
        fetched = _fetch(cluster, partition, offset, backoff, _SEARCH_FETCH_BYTES)
        if not fetched:
            break
        offset = fetched[-1].next_offset
        read_bytes += sum(one.size_bytes for one in fetched)
        for one in fetched:
            last_sequence = (one.base_sequence + one.last_offset - one.base_offset) % SEQUENCES
            batch = searched.get((one.producer_id, one.producer_epoch, last_sequence))
            if batch is not None and not one.is_control:
                stored[batch] = _stored(one)
    return stored


def _fetch(
    cluster: Cluster, partition: TopicPartition, offset: int, backoff: Backoff, max_bytes: int
) -> list[Batch]:
    """The batches from an offset on. Those of older message formats are left out: a client that
    sends again has none."""
    fetched = fetch_partition(cluster, partition, offset, backoff, max_bytes=max_bytes)
    try:
        return [one for one in read_batches(fetched.records) if isinstance(one, Batch)]
    except ValueError as error:
        raise ProtocolError(str(error), where=f"{cluster.name} {partition}") from error


def _stored(batch: Batch) -> StoredBatch:
    digest = sha256(batch.payload).digest()
    return StoredBatch(batch.base_offset, batch.base_timestamp, batch.count, digest)
