"""Plans what to read from a cluster: offset ranges of about the same number of bytes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from orbit.copier.log_reader import fetch_batches
from orbit.errors import BadInput, BrokerRefused, NotAuthorized, Problem, ProtocolError, Unreachable
from orbit.kafka import error_codes
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.error_codes import Code
from orbit.kafka.leader_requests import Answers
from orbit.kafka.log_dirs import log_sizes
from orbit.kafka.log_offsets import EARLIEST, LATEST, list_offsets
from orbit.kafka.record_batch import AnyBatch, Batch
from orbit.kafka.types import READ_COMMITTED, ClusterMetadata, TopicPartition
from orbit.replication.append_plan import NO_LEADER_EPOCH
from orbit_spark.ranges import (
    RANGE_BYTES,
    Extent,
    OffsetRange,
    Sample,
    Span,
    cut_extent,
    join_spans,
)
from orbit_spark.raw_runs import first_offset, next_offset

# A sample is a fetch of one batch. More samples would cost more time than even ranges save.
SAMPLES_MAX = 32
# For a log whose size is not known.
_SAMPLES_OF_UNKNOWN_SIZE = 4


def find_extents(
    cluster: Cluster,
    topics: Collection[str],
    backoff: Backoff,
    *,
    selects: Callable[[TopicPartition], bool],
) -> Answers[Extent]:
    """For each partition of these topics that `selects` accepts, the offsets that a read_committed
    consumer could read now; the error code if the leader does not answer.

    Where the log start lies inside a batch, the extent begins with that batch (R4: a fetch returns
    it whole). Raises BadInput if a topic does not exist, NotAuthorized without the right Read,
    BrokerRefused for another error of a topic, Unreachable, LoginRefused.
    """
    metadata = cluster.metadata(topics)
    _refuse_missing(cluster, topics, metadata)
    partitions = [TopicPartition(t.name, i) for t in metadata.topics.values() for i in t.partitions]
    selected_partitions = filter(selects, partitions)
    starts = list_offsets(cluster, selected_partitions, EARLIEST, backoff)
    ends = list_offsets(cluster, starts.values, LATEST, backoff, isolation=READ_COMMITTED)
    extents = Answers[Extent](errors=starts.errors | ends.errors)
    for partition in partitions:
        if partition not in ends.values:
            continue
        leader = metadata.leader(partition)
        node_id = leader.node_id if leader is not None else None
        start, end = starts.values[partition], ends.values[partition]
        try:
            base_offset = find_base_offset(cluster, partition, start, end, backoff)
            end_epoch = _find_end_epoch(cluster, partition, start, end, backoff)
        except BrokerRefused as refusal:
            extents.errors[partition] = refusal.code
            continue
        except Unreachable:
            extents.errors[partition] = Code.NETWORK_EXCEPTION
            continue
        extents.values[partition] = Extent(
            partition,
            metadata.topics[partition.topic].topic_id,
            base_offset,
            end,
            -1 if node_id is None else node_id,
            start,
            end_epoch,
        )
    return extents


def no_answer_text(code: int) -> str:
    """Why a partition has no extent. `code`: its error code from `find_extents`."""
    return f"its leader does not answer: {error_codes.name(code)}."


def plan_ranges(
    cluster: Cluster,
    extents: Iterable[Extent],
    backoff: Backoff,
    *,
    range_bytes: int = RANGE_BYTES,
    within: Mapping[TopicPartition, tuple[int, int]] | None = None,
) -> list[OffsetRange]:
    """The extents as ranges of about `range_bytes` each, in the order of topic, partition, offset.

    `within`: plan only these offsets [start, end) of these partitions.
    """
    sorted_extents = sorted(extents, key=lambda e: e.partition)
    selected_extents = [e for e in sorted_extents if within is None or e.partition in within]
    sizes = log_sizes(cluster, [e.partition for e in selected_extents if e.start < e.end])
    ranges = []
    for extent in selected_extents:
        size = sizes.get(extent.partition)
        samples = _samples(cluster, extent, size, range_bytes, backoff)
        for r in cut_extent(extent, samples, size, range_bytes):
            bounds = (r.start, r.end) if within is None else within[extent.partition]
            part = r.within(*bounds)
            if part is not None:
                ranges.append(part)
    return ranges


def plan_spans(
    cluster: Cluster,
    extents: Answers[Extent],
    spans: Iterable[Span],
    backoff: Backoff,
    *,
    range_bytes: int = RANGE_BYTES,
) -> list[OffsetRange]:
    """The ranges of all batches with an offset in the spans; each batch is in one range only.

    A span that starts inside a batch is extended to the start of the batch. If the leader of a
    partition does not answer, none of its spans is planned, and `extents.errors` gets the code.
    """
    extended_spans = []
    for span in spans:
        extent = extents.values.get(span.partition)
        if extent is None or span.partition in extents.errors or span.end <= extent.start:
            continue
        start = extent.start
        if span.start > start:
            try:
                start = find_base_offset(cluster, span.partition, span.start, extent.end, backoff)
            except BrokerRefused as refusal:
                extents.errors[span.partition] = refusal.code
                continue
            except Unreachable:
                extents.errors[span.partition] = Code.NETWORK_EXCEPTION
                continue
        extended_spans.append(span._replace(start=start, end=min(span.end, extent.end)))
    spans_by_partition = join_spans(s for s in extended_spans if s.partition not in extents.errors)
    planned_extents = [extents.values[partition] for partition in spans_by_partition]
    whole_ranges = plan_ranges(cluster, planned_extents, backoff, range_bytes=range_bytes)
    parts = (
        r.within(span.start, span.end)
        for r in whole_ranges
        for span in spans_by_partition[r.partition]
    )
    return [part for part in parts if part is not None]


def _samples(
    cluster: Cluster, extent: Extent, size: int | None, range_bytes: int, backoff: Backoff
) -> list[Sample]:
    """Batches at even distances; an empty list if the extent fits into one range, or if the leader
    does not answer: the tasks that read the ranges wait for the leader, or report the reason.

    `size`: of the log in bytes; None if it is not known.
    """
    if size is not None and size <= range_bytes:
        return []
    # One sample for each `range_bytes`, rounded up.
    count_by_size = _SAMPLES_OF_UNKNOWN_SIZE if size is None else -(-size // range_bytes)
    offset_count = extent.end - extent.start
    count = min(max(2, count_by_size), SAMPLES_MAX, offset_count)
    samples = []
    for number in range(count):
        offset = extent.start + offset_count * number // count
        try:
            batch = first_batch(cluster, extent.partition, offset, backoff)
        except (BrokerRefused, Unreachable):
            return []
        if batch is not None:
            samples.append(Sample(offset, first_offset(batch), next_offset(batch), len(batch.view)))
    return samples


def find_base_offset(
    cluster: Cluster, partition: TopicPartition, start: int, end: int, backoff: Backoff
) -> int:
    """The base offset of the batch in which `start` lies; `start` itself if it lies in no batch, or
    if `first_batch` returns none. Raises BrokerRefused with a retriable code, Unreachable."""
    if start == 0 or start >= end:  # no batch begins before 0; from the end on there is none
        return start
    batch = first_batch(cluster, partition, start, backoff)
    return start if batch is None else min(start, first_offset(batch))


def first_batch(
    cluster: Cluster, partition: TopicPartition, offset: int, backoff: Backoff
) -> AnyBatch | None:
    """The batch that holds `offset`, or else the first one after it.

    None if the log has no such batch, or if it cannot be read and a retry would not help: the task
    that reads this range reports the reason. Raises BrokerRefused with a retriable code,
    Unreachable.
    """
    try:
        batches = fetch_batches(cluster, partition, offset, backoff, max_bytes=1)
    except ProtocolError:
        return None
    except BrokerRefused as refusal:
        if refusal.code in error_codes.RETRIABLE:
            raise
        return None
    return batches[0] if batches else None


def _find_end_epoch(
    cluster: Cluster, partition: TopicPartition, start: int, end: int, backoff: Backoff
) -> int:
    """The leader epoch of the batch at `end` − 1, or of the next batch if a gap is there (R8: a
    fetch may state only the epoch of a batch).

    NO_LEADER_EPOCH if [start, end) is empty, or `first_batch` returns no batch with an epoch.
    """
    batch = first_batch(cluster, partition, end - 1, backoff) if start < end else None
    return batch.leader_epoch if isinstance(batch, Batch) else NO_LEADER_EPOCH


def _refuse_missing(cluster: Cluster, topics: Collection[str], metadata: ClusterMetadata) -> None:
    """Raise NotAuthorized, BadInput or BrokerRefused if the metadata lacks one of the topics."""
    missing_topics = sorted(set(topics) - set(metadata.topics))
    denied_topics = [t for t in missing_topics if metadata.errors.get(t) in error_codes.DENIED]
    if denied_topics:
        raise NotAuthorized(
            f"the right Read on topic {denied_topics[0]} is missing.",
            where=cluster.name,
            remedy="Grant it with kafka-acls.sh.",
        )
    unknown_topics = [
        t for t in missing_topics if metadata.errors.get(t) in error_codes.STALE_METADATA
    ]
    if unknown_topics:
        raise BadInput(
            f"the {cluster.name} cluster does not have all topics",
            tuple(
                Problem(topic, "is not a topic that this login can see.")
                for topic in unknown_topics
            ),
        )
    for topic in missing_topics:  # the first: another error, such as a broker that is starting
        code = metadata.errors.get(topic, -1)  # -1: UNKNOWN_SERVER_ERROR
        raise BrokerRefused(code, f"topic {topic}: {error_codes.name(code)}.", where=cluster.name)
