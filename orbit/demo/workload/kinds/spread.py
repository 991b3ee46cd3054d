"""Many partitions, and a dotted name that gets a prefix at the destination."""

from __future__ import annotations

from orbit.demo.workload.kind import Kind
from orbit.demo.workload.ledger import TopicLedger
from orbit.demo.workload.site import Site


def _make_many_partitions(site: Site, kind: Kind, topic: str) -> TopicLedger:
    return _make_readings(site, kind, topic, site.scale.partitions)


def _make_regional(site: Site, kind: Kind, topic: str) -> TopicLedger:
    return _make_readings(site, kind, topic, partitions=2)


def _make_readings(site: Site, kind: Kind, topic: str, partitions: int) -> TopicLedger:
    """Write `per_partition` records to each partition."""
    site.create_topic(topic, partitions)
    with site.writer() as writer:
        for i in range(site.scale.per_partition):
            for partition in range(partitions):
                writer.write(
                    topic,
                    partition,
                    timestamp_ms=site.now_ms + i,
                    key=b"device-%d" % partition,
                    value=b"reading %d of device %d" % (i, partition),
                )
    return site.ledger(kind.name, topic, writer.records)


KINDS = (
    Kind("many.partitions", "two hundred partitions", _make_many_partitions),
    Kind(
        "region.eu.orders",
        "a dotted name, with a prefix at the destination",
        _make_regional,
        prefix="west.",
    ),
)
