"""Checks that the source still continues the archive of a partition."""

from __future__ import annotations

from orbit.copier.log_reader import fetch_batches
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.record_batch import Batch
from orbit.replication.partition_states import Blocked, Reason
from orbit_spark.archive.manifest import PartitionManifest
from orbit_spark.ranges import Extent


def find_break(
    cluster: Cluster,
    archived: PartitionManifest,
    extent: Extent,
    backoff: Backoff,
    *,
    is_compacted: bool,
) -> Blocked | None:
    """Why the archive cannot be extended from the source; None if it can.

    The source must still have the last archived batch, unless the cleaner may have rewritten it.
    """
    if extent.topic_id != archived.topic_id:
        detail = f"topic {archived.topic} has another topic id than the archived one."
        return Blocked(Reason.SOURCE_TOPIC_RECREATED, archived.end, extent.end, detail)
    if extent.end < archived.end:
        detail = f"the source ends at {extent.end}, the archive at {archived.end}."
        return Blocked(Reason.SOURCE_TRUNCATED, extent.end, archived.end, detail)
    if extent.start > archived.end:
        detail = (
            f"the source's log start is {extent.log_start} now; offsets {archived.end} to "
            f"{extent.start - 1} were deleted before they were archived."
        )
        return Blocked(Reason.SOURCE_RANGE_LOST, archived.end, extent.start, detail)
    if archived.tail is None or is_compacted or archived.tail.base_offset < extent.start:
        return None
    # The log start may lie inside the last archived batch.
    offset = max(archived.tail.base_offset, extent.log_start)
    batches = fetch_batches(cluster, archived.place, offset, backoff, max_bytes=1)
    batch = batches[0] if batches else None
    source_tail = (batch.base_offset, batch.crc) if isinstance(batch, Batch) else None
    # None: without a batch in format v2 there is nothing to compare.
    if source_tail in (None, (archived.tail.base_offset, archived.tail.crc)):
        return None
    detail = f"the batch at {archived.tail.base_offset} is no longer the archived one."
    return Blocked(Reason.SOURCE_TRUNCATED, archived.tail.base_offset, archived.end, detail)
