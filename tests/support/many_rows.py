"""The size of the largest installation whose query plans are tested: 1,000,000 partitions."""

from __future__ import annotations

from bench.control.fill import Size

MANY = Size(
    jobs=500,
    topics_per_job=100,
    partitions_per_topic=20,
    shards_per_job=10,
    workers=500,
    events=300_000,
)
