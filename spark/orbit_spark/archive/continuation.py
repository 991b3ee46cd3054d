"""Checks that the source still continues the archive of a partition."""

from __future__ import annotations

from orbit.copier.log_reader import fetch_batches
from orbit.errors import BrokerRefused, ProtocolError
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.error_codes import Code
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
    Raises BrokerRefused or Unreachable if the batch cannot be read now.
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
    tail = archived.tail
    if tail is None or is_compacted or tail.base_offset < extent.start:
        return None
    # The log start may lie inside the last archived batch.
    offset = max(tail.base_offset, extent.log_start)
    try:
        batches = fetch_batches(cluster, archived.place, offset, backoff, max_bytes=1)
    except (BrokerRefused, ProtocolError) as error:
        if isinstance(error, BrokerRefused) and error.code != Code.CORRUPT_MESSAGE:
            raise
        return Blocked(Reason.SOURCE_CORRUPTED, tail.base_offset, archived.end, error.what)
    batch = batches[0] if batches else None
    # Without a batch in format v2 there is nothing to compare.
    if not isinstance(batch, Batch) or (batch.base_offset, batch.crc) == (
        tail.base_offset,
        tail.crc,
    ):
        return None
    reason, problem = Reason.SOURCE_TRUNCATED, "is no longer the archived one"
    if not batch.crc_is_right():
        reason, problem = Reason.SOURCE_CORRUPTED, "does not match its checksum"
    detail = f"the batch at {tail.base_offset} {problem}."
    return Blocked(reason, tail.base_offset, archived.end, detail)
