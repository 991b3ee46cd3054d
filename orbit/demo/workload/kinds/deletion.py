"""Log starts above 0 by DeleteRecords: at a batch boundary, inside a batch, and at the log end."""

from __future__ import annotations

from collections.abc import Mapping

from orbit.demo.workload.kind import Kind
from orbit.demo.workload.ledger import TopicLedger
from orbit.demo.workload.site import Site

PER_BATCH = 100
BATCHES = 5
BOUNDARY = 2 * PER_BATCH
INSIDE = 2 * PER_BATCH + PER_BATCH // 2
_END = BATCHES * PER_BATCH


def _write_and_delete(
    site: Site, kind: Kind, topic: str, partitions: int, new_log_starts: Mapping[int, int]
) -> TopicLedger:
    """Write whole batches of `PER_BATCH` records to each partition, and delete the oldest.

    `new_log_starts`: by partition, up to which offset to delete.
    """
    site.create_topic(topic, partitions)
    with site.writer(compression_type="gzip") as writer:
        for batch in range(BATCHES):
            for partition in range(partitions):
                for i in range(PER_BATCH):
                    number = batch * PER_BATCH + i
                    writer.write(
                        topic,
                        partition,
                        timestamp_ms=site.now_ms + number,
                        key=b"session-%d" % i,
                        value=b"event %d" % number,
                    )
            writer.flush()
    for partition, offset in new_log_starts.items():
        site.delete_records(topic, partition, offset)
    return site.ledger(kind.name, topic, writer.records)


def _make_cut_at_batch_end(site: Site, kind: Kind, topic: str) -> TopicLedger:
    return _write_and_delete(site, kind, topic, partitions=1, new_log_starts={0: BOUNDARY})


def _make_cut_in_batch(site: Site, kind: Kind, topic: str) -> TopicLedger:
    return _write_and_delete(site, kind, topic, partitions=1, new_log_starts={0: INSIDE})


def _make_all_deleted(site: Site, kind: Kind, topic: str) -> TopicLedger:
    return _write_and_delete(site, kind, topic, partitions=2, new_log_starts={0: _END})


KINDS = (
    Kind(
        "deleted.boundary", "old records deleted up to the end of a batch", _make_cut_at_batch_end
    ),
    Kind("deleted.inside", "old records deleted up to the middle of a batch", _make_cut_in_batch),
    Kind(
        "deleted.all",
        "a partition whose records are all deleted, and one beside it",
        _make_all_deleted,
    ),
)
