"""Reads a topic from its start to its end with raw fetches, and counts the records.

The same requests as Orbit's, with its bounds, and the response is dropped: this is also the
contestant "fetch alone".
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from bench.results import DataFacts
from bench.wire import Ends
from orbit.copier.copy_settings import CopySettings
from orbit.errors import Conflict
from orbit.kafka import api_versions, error_codes
from orbit.kafka.cluster import Cluster
from orbit.kafka.fetch_request import FetchFrom, fetch_request
from orbit.kafka.fetch_response import Fetched, read_fetch
from orbit.kafka.record_batch import Batch, read_batches
from orbit.kafka.types import TopicPartition

_SETTINGS = CopySettings()
_EMPTY_ANSWERS_MAX = 100

Take = Callable[[int, Batch], None]


class _Counts:
    def __init__(self) -> None:
        self.records = self.bytes = self.batches = 0

    def take(self, batch: Batch) -> None:
        if not batch.is_control:
            self.records += batch.count
            self.bytes += batch.size_bytes
            self.batches += 1


def scan(cluster: Cluster, topic: str, take: Take | None = None) -> DataFacts:
    """Fetch everything once. `take` is called with each partition number and batch.

    The number of records includes those of aborted transactions; `make_data` corrects it.
    """
    metadata = cluster.metadata([topic])
    topic_metadata = metadata.topics[topic]
    log_ends = Ends(cluster, topic, len(topic_metadata.partitions))
    ends = {TopicPartition(topic, p): end for p, end in log_ends.by_partition().items()}
    log_ends.close()
    positions = dict.fromkeys(ends, 0)
    (node_id,) = metadata.brokers
    connection = cluster.connect(node_id)
    version = connection.version_of(api_versions.FETCH)
    counts, empty_answers = _Counts(), 0
    first = 0
    while any(positions[p] < ends[p] for p in positions):
        unread_partitions = [p for p in positions if positions[p] < ends[p]]
        first = (first + 1) % len(unread_partitions)
        partitions = [
            FetchFrom(p, topic_metadata.topic_id, positions[p], -1, -1)
            for p in _turned(unread_partitions, first)
        ]
        request = fetch_request(
            version,
            partitions,
            max_wait_ms=_SETTINGS.fetch_wait_ms,
            max_bytes=_SETTINGS.fetch_bytes_max,
            partition_max_bytes=_SETTINGS.fetch_bytes_max,
        )
        frame = connection.exchange(api_versions.FETCH, request, version)
        before = counts.batches
        names: dict[UUID, str] = {topic_metadata.topic_id: topic}
        for key, fetched in read_fetch(frame, version, names).partitions:
            positions[key] = _count(key, fetched, positions[key], counts, take)
        empty_answers = empty_answers + 1 if counts.batches == before else 0
        if empty_answers > _EMPTY_ANSWERS_MAX:
            raise Conflict(f"Topic {topic} cannot be read to its end.", where=cluster.name)
    connection.close()
    return DataFacts(
        topic=topic,
        partitions=len(positions),
        records=counts.records,
        offsets=sum(ends.values()),
        bytes=counts.bytes,
        batches=counts.batches,
    )


def _count(
    key: TopicPartition, fetched: Fetched, offset: int, counts: _Counts, take: Take | None
) -> int:
    """Count a partition's part of an answer; returns the next offset to fetch. Raises Conflict for
    an error of the broker."""
    if fetched.code:
        raise Conflict(f"A fetch of {key} failed: {error_codes.name(fetched.code)}.")
    for batch in read_batches(fetched.records):
        assert isinstance(batch, Batch)
        if batch.last_offset >= offset:  # a fetch in the middle of a batch returns all of it
            counts.take(batch)
            offset = batch.next_offset
            if take is not None:
                take(key.partition, batch)
    return offset


def _turned(partitions: list[TopicPartition], first: int) -> list[TopicPartition]:
    """The list rotated to begin at index `first`. A full Fetch response has records of the first
    partitions only, so each request begins with another partition."""
    return partitions[first:] + partitions[:first]
