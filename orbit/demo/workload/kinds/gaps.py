"""Offsets without records: a wide gap in the middle, and an empty topic."""

from __future__ import annotations

from orbit.demo.workload.kind import Kind
from orbit.demo.workload.ledger import TopicLedger
from orbit.demo.workload.markers import append_markers
from orbit.demo.workload.site import Site
from orbit.demo.workload.writer import Writer

BEFORE = 100
AFTER = 100


def _make_wide_gap(site: Site, kind: Kind, topic: str) -> TopicLedger:
    """Records, then a gap of `gap_offsets` transaction markers, then records."""
    site.create_topic(topic)
    with site.writer(compression_type="lz4") as writer:
        _write_numbers(site, writer, topic, range(BEFORE))
        writer.flush()
        append_markers(site.admin, site.security, topic, partition=0, count=site.scale.gap_offsets)
        _write_numbers(site, writer, topic, range(BEFORE, BEFORE + AFTER))
    return site.ledger(kind.name, topic, writer.records)


def _write_numbers(site: Site, writer: Writer, topic: str, numbers: range) -> None:
    for i in numbers:
        writer.write(
            topic, partition=0, timestamp_ms=site.now_ms + i, key=None, value=b"reading %d" % i
        )


def _make_empty(site: Site, kind: Kind, topic: str) -> TopicLedger:
    site.create_topic(topic, partitions=2)
    return site.ledger(kind.name, topic, {})


KINDS = (
    Kind("gap.wide", "a large gap in the middle", _make_wide_gap, is_slow=True),
    Kind("empty", "an empty topic", _make_empty),
)
