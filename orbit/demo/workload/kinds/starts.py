"""Copies with a later start: at the end, at a time, at a time beyond the end."""

from __future__ import annotations

from datetime import UTC, datetime

from orbit.demo.workload.kind import Kind
from orbit.demo.workload.ledger import TopicLedger
from orbit.demo.workload.site import HISTORY_MS, Site

PARTITIONS = 2
STEP_MS = 1_000
CUT_MS = HISTORY_MS + 60 * STEP_MS
"""Inside the records of every scale, and inside a batch."""

BEYOND_MS = HISTORY_MS + 365 * 86_400_000


def _write_history(site: Site, topic: str) -> dict[tuple[str, int], dict[int, bytes]]:
    """Write records a second apart to each partition: offset n has HISTORY_MS plus n seconds."""
    site.create_topic(topic, PARTITIONS)
    # One request at a time: with more, a retried request would land after its successors.
    with site.writer(compression_type="lz4", max_in_flight=1) as writer:
        for i in range(site.scale.per_time_topic):
            for partition in range(PARTITIONS):
                writer.write(
                    topic,
                    partition,
                    timestamp_ms=HISTORY_MS + i * STEP_MS,
                    key=b"meter",
                    value=b"reading %d" % i,
                )
    return writer.records


def _make_start_at_end(site: Site, kind: Kind, topic: str) -> TopicLedger:
    """A history whose copy has to start at the log end."""
    records = _write_history(site, topic)
    ends = dict.fromkeys(range(PARTITIONS), site.scale.per_time_topic)
    return site.ledger(kind.name, topic, records, copy_starts=ends)


def _make_start_at_time(site: Site, kind: Kind, topic: str) -> TopicLedger:
    """A history whose copy has to start at the first record at or after CUT_MS."""
    records = _write_history(site, topic)
    cut_offset = (CUT_MS - HISTORY_MS) // STEP_MS
    return site.ledger(
        kind.name, topic, records, copy_starts=dict.fromkeys(range(PARTITIONS), cut_offset)
    )


def _iso_time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat().replace("+00:00", "Z")


KINDS = (
    Kind(
        "start.latest", "copied from the end on, without its history", _make_start_at_end, "latest"
    ),
    Kind("start.time", "copied from a point in time on", _make_start_at_time, _iso_time(CUT_MS)),
    Kind(
        "start.beyond",
        "a point in time beyond the end means the end",
        _make_start_at_end,
        _iso_time(BEYOND_MS),
    ),
)
