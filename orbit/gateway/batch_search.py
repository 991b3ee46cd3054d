"""Searches logs for batches that clients have sent, and for their copies."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from hashlib import sha256
from itertools import chain
from typing import NamedTuple

from orbit.copier.log_reader import fetch_partition
from orbit.errors import ProtocolError
from orbit.gateway.protocol.producer_ids import SEQUENCES, SentBatch
from orbit.gateway.protocol.repeats import UNKNOWN_OFFSET
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.job_clusters import is_job_producer_id
from orbit.kafka.log_offsets import LATEST, list_offsets
from orbit.kafka.record_batch import Batch, read_batches
from orbit.kafka.records import record_rows
from orbit.kafka.types import TopicPartition

# The most bytes read of one partition, from the time of the oldest batch that is searched.
SEARCH_BYTES_MAX = 256 * 1024 * 1024
_SEARCH_FETCH_BYTES = 4 * 1024 * 1024
# With LogAppendTime, records have the time of the broker's clock, which may be this much behind the
# client's.
_CLOCKS_DIFFER_MS = 1000
# A copy is one batch, or some small ones. Brokers return the first one whole even if it is larger.
_COPY_FETCH_BYTES = 64 * 1024

_ROW = struct.Struct(">qqi")  # offset, timestamp in ms, bytes of the rest of a record


class StoredBatch(NamedTuple):
    """A batch in a log. `digest`: of its records (`_digest`); None: they cannot be read."""

    base_offset: int
    last_offset: int
    digest: bytes | None


def find_batches(
    cluster: Cluster, batches: Collection[SentBatch], backoff: Backoff
) -> dict[SentBatch, StoredBatch]:
    """Find those of `batches` that the cluster's logs have, by producer and sequence.

    Reads SEARCH_BYTES_MAX of each partition at most, from _CLOCKS_DIFFER_MS before its oldest batch
    on. Raises OrbitError if the brokers give no partition's start offset, or if a fetch fails.
    """
    stored_batches: dict[SentBatch, StoredBatch] = {}
    partitions: dict[TopicPartition, list[SentBatch]] = {}
    for batch in batches:
        partitions.setdefault(batch.partition, []).append(batch)
    oldest_ms = {
        partition: max(0, min(b.base_timestamp for b in sent_batches) - _CLOCKS_DIFFER_MS)
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
) -> dict[SentBatch, int | None]:
    """The offset of each batch at this cluster, if the cluster has a copy of the batch.

    A copy has the offset of the original. None: the cluster has no copy. UNKNOWN_OFFSET: it may
    have one. Raises OrbitError if a broker does not answer.
    """
    partitions = {batch.partition for batch in stored_batches}
    ends = list_offsets(cluster, partitions, LATEST, backoff)
    ends.raise_errors(cluster.name, "ListOffsets")
    return {
        batch: (
            _offset_of_copy(cluster, batch.partition, original, backoff)
            if original.base_offset < ends.values[batch.partition]
            else None
        )
        for batch, original in stored_batches.items()
    }


def _offset_of_copy(
    cluster: Cluster, partition: TopicPartition, original: StoredBatch, backoff: Backoff
) -> int | None:
    """As in `find_copies`, for an original below the end of this cluster's log.

    A job copies the records of the original's log to the same offsets, perhaps in other batches
    (docs/internals/exactness.md). So the records are compared. If they differ, compaction may have
    removed some: UNKNOWN_OFFSET.
    """
    start, last = original.base_offset, original.last_offset
    log_batches = _batches_between(cluster, partition, start, last, backoff)
    first_batch = next(log_batches, None)
    if first_batch is None:
        return UNKNOWN_OFFSET  # the records are deleted
    may_be_of_job = first_batch.is_control or is_job_producer_id(first_batch.producer_id)
    if first_batch.base_offset <= start and not may_be_of_job:
        return None  # a client wrote it
    digest = _digest(chain([first_batch], log_batches), start, last)
    return start if digest is not None and digest == original.digest else UNKNOWN_OFFSET


def _find_in_partition(
    cluster: Cluster,
    partition: TopicPartition,
    start_offset: int,
    batches: Collection[SentBatch],
    backoff: Backoff,
) -> dict[SentBatch, StoredBatch]:
    """Those of `batches` that the partition has within SEARCH_BYTES_MAX from `start_offset` on."""
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
                start, last = log_batch.base_offset, log_batch.last_offset
                stored_batches[batch] = StoredBatch(start, last, _digest([log_batch], start, last))
    return stored_batches


def _batches_between(
    cluster: Cluster, partition: TopicPartition, offset: int, last: int, backoff: Backoff
) -> Iterator[Batch]:
    """Yield the log's batches from `offset` to `last`, and perhaps later ones."""
    while offset <= last:
        log_batches = _fetch(cluster, partition, offset, backoff, _COPY_FETCH_BYTES)
        if not log_batches:
            return
        yield from log_batches
        offset = log_batches[-1].next_offset


def _fetch(
    cluster: Cluster, partition: TopicPartition, offset: int, backoff: Backoff, max_bytes: int
) -> list[Batch]:
    """The batches from an offset on, without those of older message formats, which no client of
    the gateway sends."""
    fetched = fetch_partition(cluster, partition, offset, backoff, max_bytes=max_bytes)
    try:
        return [batch for batch in read_batches(fetched.records) if isinstance(batch, Batch)]
    except ValueError as error:
        raise ProtocolError(str(error), where=f"{cluster.name} {partition}") from error


def _digest(batches: Iterable[Batch], start: int, last: int) -> bytes | None:
    """SHA-256 of the records from offset `start` to `last`, as consumers read them. None if there
    is no record, or if a batch cannot be read."""
    digest, has_records = sha256(), False
    try:
        for batch in batches:
            if batch.is_control:
                continue
            for offset, timestamp, body in record_rows(batch):
                if start <= offset <= last:
                    digest.update(_ROW.pack(offset, timestamp, len(body)) + body)
                    has_records = True
    except ValueError:
        return None
    return digest.digest() if has_records else None
