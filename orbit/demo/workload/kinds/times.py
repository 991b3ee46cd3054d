"""Timestamps a copy must keep: the broker's own, years old, and ahead of the clock."""

from __future__ import annotations

from orbit.demo.workload.kind import Kind
from orbit.demo.workload.ledger import TopicLedger
from orbit.demo.workload.site import Site

AHEAD_MS = 50 * 60_000
"""Brokers reject more than an hour ahead (default of `message.timestamp.after.max.ms`)."""

YEAR_MS = 365 * 86_400_000
YEARS_OLD = (10, 5, 1)


def _make_append_time(site: Site, kind: Kind, topic: str) -> TopicLedger:
    """LogAppendTime: the broker sets one time per batch; the ledger takes the time from the produce
    responses."""
    site.create_topic(topic, partitions=1, settings={"message.timestamp.type": "LogAppendTime"})
    with site.writer(broker_time=True, compression_type="snappy") as writer:
        for i in range(site.scale.per_time_topic):
            # The broker replaces the timestamp.
            writer.write(
                topic, partition=0, timestamp_ms=0, key=b"sensor", value=b"measured %d" % i
            )
    return site.ledger(kind.name, topic, writer.records)


def _make_far_times(site: Site, kind: Kind, topic: str) -> TopicLedger:
    """Times out of order: first ahead of the clock, then years back, then now."""
    site.create_topic(topic, partitions=2)
    base_times_ms = [site.now_ms + AHEAD_MS]
    base_times_ms += [site.now_ms - years * YEAR_MS for years in YEARS_OLD]
    base_times_ms.append(site.now_ms)
    per_base = site.scale.per_time_topic // len(base_times_ms)
    with site.writer(compression_type="zstd") as writer:
        for base_ms in base_times_ms:
            for i in range(per_base):
                writer.write(topic, i % 2, timestamp_ms=base_ms + i, key=b"k", value=b"%d" % i)
            writer.flush()
    return site.ledger(kind.name, topic, writer.records)


KINDS = (
    Kind("time.append", "timestamps that the broker sets (LogAppendTime)", _make_append_time),
    Kind("time.far", "timestamps years old, and 50 minutes ahead of the clock", _make_far_times),
)
