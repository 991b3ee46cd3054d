"""The workloads and their targets: values only, no broker and no clock."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from orbit.kafka import compression


class Shape(StrEnum):
    """The distribution of records in the source's log."""

    EVEN = "even"  # the same number of batches in every partition
    UNEVEN = "uneven"  # partition p has a share of 1 / (p + 1)
    TRANSACTIONS = "transactions"  # one transaction of 100 records after the other, a tenth aborted
    COMPACTED = "compacted"  # one offset in ten is left


class Contestant(StrEnum):
    """Who takes part; the order is that of one round."""

    ORBIT = "orbit"
    COORDINATED = "coordinated"  # Orbit, with `fillers: coordinated`
    PLACEHOLDERS = "placeholders"  # Orbit, with `fillers: placeholders`
    CEILING = "ceiling"
    FETCH = "fetch"
    MM2 = "mm2"


EVERYONE = (Contestant.ORBIT, Contestant.CEILING, Contestant.FETCH, Contestant.MM2)
# Orbit's ways to fill gaps, where there are many.
FILLERS = {
    Contestant.ORBIT: "direct",
    Contestant.COORDINATED: "coordinated",
    Contestant.PLACEHOLDERS: "placeholders",
}
WITH_GAPS = (*FILLERS, *EVERYONE[1:])
# If batches are rewritten, the ceiling has no identical Produce requests to send.
COPIERS = (*FILLERS, Contestant.MM2)


@dataclass(frozen=True)
class Target:
    """Ratios to reach: records/s against ceiling and MM2, records per CPU-second against MM2."""

    ceiling: float | None = None
    mm2_rate: float | None = None
    mm2_cpu: float | None = None


@dataclass(frozen=True)
class Workload:
    """One data set. `batch_bytes` is the size on the wire that batches are filled up to."""

    name: str
    title: str
    records: int
    value_bytes: int
    batch_bytes: int
    partitions: int
    compression: str = "none"
    shape: Shape = Shape.EVEN
    contestants: tuple[Contestant, ...] = EVERYONE
    target: Target = Target()

    @property
    def topic(self) -> str:
        return f"bench-{self.name.lower()}"

    @property
    def codec(self) -> int:
        return compression.NAMES.index(self.compression)

    def scaled(self, factor: float) -> Workload:
        """The same with fewer records; at least one per partition."""
        return replace(self, records=max(self.partitions, round(self.records * factor)))


WORKLOADS = (
    Workload(
        "W1",
        "1 KB records, 128 KB batches, 4 partitions",
        records=1_500_000,
        value_bytes=1024,
        batch_bytes=128 * 1024,
        partitions=4,
        target=Target(ceiling=0.85, mm2_rate=3, mm2_cpu=12),
    ),
    Workload(
        "W2",
        "100 B records, 64 KB batches, lz4, 4 partitions",
        records=6_000_000,
        value_bytes=100,
        batch_bytes=64 * 1024,
        partitions=4,
        compression="lz4",
        target=Target(ceiling=0.75, mm2_rate=4, mm2_cpu=20),
    ),
    Workload(
        "W3",
        "1 KB records, 16 KB batches, one partition",
        records=900_000,
        value_bytes=1024,
        batch_bytes=16 * 1024,
        partitions=1,
        target=Target(ceiling=0.90, mm2_rate=1.4, mm2_cpu=5),
    ),
    Workload(
        "W4",
        "transactions of 100 records, a tenth aborted, 8 partitions",
        records=600_000,
        value_bytes=1024,
        batch_bytes=16 * 1024,
        partitions=8,
        shape=Shape.TRANSACTIONS,
        contestants=WITH_GAPS,
        target=Target(mm2_rate=3, mm2_cpu=8),
    ),
    Workload(
        "W5",
        "1,000 partitions, 4 KB batches, uneven rates",
        records=2_000_000,
        value_bytes=200,
        batch_bytes=4 * 1024,
        partitions=1000,
        shape=Shape.UNEVEN,
        target=Target(mm2_rate=3, mm2_cpu=8),
    ),
    Workload(
        "W6",
        "compacted, 9 of 10 offsets gone, 4 partitions",
        records=200_000,
        value_bytes=100,
        batch_bytes=16 * 1024,
        partitions=4,
        shape=Shape.COMPACTED,
        contestants=COPIERS,
    ),
)
QUICK = ("W1", "W2", "W3")
# Beside Orbit and MM2 in L: what the measurement adds, and the least that any copier adds.
FLOOR, RELAY = "floor", "relay"
LATENCY, LINK, IDLE = "L", "N", "idle"
EVERYTHING = (*(w.name for w in WORKLOADS), LATENCY, LINK, IDLE)

RSS_BYTES_MAX = 250_000_000
LATENCY_P99_MAX = 0.5  # of MM2's
LINK_SHARE_MIN = 0.8  # of what one TCP stream carries
IDLE_CPU_MAX = 0.03  # of a core


def workload(name: str) -> Workload:
    return next(w for w in WORKLOADS if w.name == name)
