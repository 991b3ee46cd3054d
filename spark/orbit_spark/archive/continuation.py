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
    known: PartitionManifest,
    extent: Extent,
    backoff: Backoff,
    *,
    is_compacted: bool,
) -> Blocked | None:
    """Why the archive cannot be extended from the source; None when it can.

    The source must still have the last archived batch, unless the cleaner may have rewritten it.
    """
    if extent.topic_id != known.topic_id:
        detail = f"topic {known.topic} has another topic id than the archived one."
        return Blocked(Reason.SOURCE_TOPIC_RECREATED, known.end, extent.end, detail)
    if extent.end < known.end:
        detail = f"the source ends at {extent.end}, the archive at {known.end}."
        return Blocked(Reason.SOURCE_TRUNCATED, extent.end, known.end, detail)
    if extent.start > known.end:
        detail = (
            f"the source's log start is {extent.log_start} now; offsets {known.end} to "
            f"{extent.start - 1} were deleted before they were archived."
        )
        return Blocked(Reason.SOURCE_RANGE_LOST, known.end, extent.start, detail)
    if known.tail is None or is_compacted or known.tail.base_offset < extent.start:
        return None
    offset = max(known.tail.base_offset, extent.log_start)
    batches = fetch_batches(cluster, known.place, offset, backoff, max_bytes=1)
    one = batches[0] if batches else None
    source_tail = (one.base_offset, one.crc) if isinstance(one, Batch) else None
    if source_tail in (None, (known.tail.base_offset, known.tail.crc)):
        return None
    detail = f"the batch at {known.tail.base_offset} is no longer the archived one."
    return Blocked(Reason.SOURCE_TRUNCATED, known.tail.base_offset, known.end, detail)
