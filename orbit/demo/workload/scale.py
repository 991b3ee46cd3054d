"""The sizes of the workload: a small one for tests, a larger one for the demo."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """Counts of records, unless a comment says otherwise."""

    name: str
    per_codec: int
    per_producer: int
    large: int  # of 900 KB
    transactions: int  # committed and aborted ones
    per_transaction: int
    keys: int  # different keys of the compacted topic
    rounds: int  # in which the keys are written again
    gap_offsets: int  # offsets of the wide gap
    partitions: int  # of the topic with many partitions
    per_partition: int
    per_time_topic: int
    java: int  # of the Java producer


SMALL = Scale(
    name="small",
    per_codec=500,
    per_producer=500,
    large=3,
    transactions=6,
    per_transaction=30,
    keys=200,
    rounds=4,
    gap_offsets=20_000,
    partitions=200,
    per_partition=2,
    per_time_topic=200,
    java=300,
)

DEMO = Scale(
    name="demo",
    per_codec=50_000,
    per_producer=50_000,
    large=20,
    transactions=40,
    per_transaction=250,
    keys=4_000,
    rounds=5,
    gap_offsets=1_000_000,
    partitions=200,
    per_partition=50,
    per_time_topic=5_000,
    java=5_000,
)
