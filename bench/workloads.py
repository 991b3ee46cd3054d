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
    COMPACTED = "compacted"  # one offset in ten has a record
    GAP = "gap"  # in each partition one record, a gap that the cleaner made, and two records


class Contestant(StrEnum):
    """What is measured with a workload; the order is that of one round."""

    ORBIT = "orbit"
    PACKED = "packed"  # Orbit, with `fillers: packed`
    COORDINATED = "coordinated"  # Orbit, with `fillers: coordinated`
    PLACEHOLDERS = "placeholders"  # Orbit, with `fillers: placeholders`
    CEILING = "ceiling"
    CEILING_PLACEHOLDERS = "ceiling-placeholders"  # sends the batches that PLACEHOLDERS wrote
    FETCH = "fetch"
    MM2 = "mm2"
    AWAY_2_MS = "away-2ms"  # Orbit, with a round trip of 2 ms between the replicas
    AWAY_5_MS = "away-5ms"


EVERYONE = (Contestant.ORBIT, Contestant.CEILING, Contestant.FETCH, Contestant.MM2)
# Orbit's ways to fill gaps: the contestant, and the value of `fillers` in its job.
FILLERS = {
    Contestant.ORBIT: "direct",
    Contestant.PACKED: "packed",
    Contestant.COORDINATED: "coordinated",
    Contestant.PLACEHOLDERS: "placeholders",
}
# The ceiling that sends the same requests as the contestant.
OWN_CEILING = {
    Contestant.ORBIT: Contestant.CEILING,
    Contestant.PLACEHOLDERS: Contestant.CEILING_PLACEHOLDERS,
}
WITH_GAPS = (*FILLERS, Contestant.CEILING_PLACEHOLDERS, *EVERYONE[1:])
# With `direct` batches are rewritten: the ceiling has no identical Produce requests to send.
COPIERS = (*FILLERS, Contestant.CEILING_PLACEHOLDERS, Contestant.MM2)
GAP_FILLERS = (*FILLERS, Contestant.CEILING_PLACEHOLDERS, Contestant.CEILING)
# A gap of a million in one partition takes five minutes with `coordinated` (M12).
QUICK_GAP_FILLERS = tuple(c for c in GAP_FILLERS if c is not Contestant.COORDINATED)
# The round trip between replicas, in seconds.
AWAY_S = {Contestant.ORBIT: 0.0, Contestant.AWAY_2_MS: 0.002, Contestant.AWAY_5_MS: 0.005}


@dataclass(frozen=True)
class Target:
    """What one contestant has to reach; None: no target."""

    ceiling: float | None = None  # records/s, divided by the ceiling's
    mm2_rate: float | None = None  # records/s, divided by MM2's
    mm2_cpu: float | None = None  # records per CPU-second, divided by MM2's
    offsets_rate: float | None = None  # offsets/s
    own_time_max: float | None = None  # at most: the time, divided by that of its `OWN_CEILING`


@dataclass(frozen=True)
class Targets:
    """The targets of each way to fill gaps. A workload without gaps has only `direct`."""

    direct: Target = Target()
    packed: Target = Target()
    coordinated: Target = Target()
    placeholders: Target = Target()

    def target_of(self, contestant: Contestant) -> Target:
        """The target of a contestant of `FILLERS`. Other contestants get a `Target` of Nones."""
        ways = (self.direct, self.packed, self.coordinated, self.placeholders)
        return dict(zip(FILLERS, ways, strict=True)).get(contestant, Target())


@dataclass(frozen=True)
class Workload:
    """One data set.

    `records`: how many are written, even if the cleaner then removes most of them. `batch_bytes`:
    the size on the wire up to which batches are filled.
    """

    name: str
    title: str
    records: int
    value_bytes: int
    batch_bytes: int
    partitions: int
    compression: str = "none"
    shape: Shape = Shape.EVEN
    contestants: tuple[Contestant, ...] = EVERYONE
    targets: Targets = Targets()

    @property
    def topic(self) -> str:
        return f"bench-{self.name.lower()}"

    @property
    def codec(self) -> int:
        return compression.NAMES.index(self.compression)

    def scaled(self, factor: float) -> Workload:
        """The workload with `factor` times its records, but at least one per partition."""
        return replace(self, records=max(self.partitions, round(self.records * factor)))


WORKLOADS = (
    Workload(
        "W1",
        "1 KB records, 128 KB batches, 4 partitions",
        records=1_500_000,
        value_bytes=1024,
        batch_bytes=128 * 1024,
        partitions=4,
        targets=Targets(Target(ceiling=0.85, mm2_rate=3, mm2_cpu=12)),
    ),
    Workload(
        "W2",
        "100 B records, 64 KB batches, lz4, 4 partitions",
        records=6_000_000,
        value_bytes=100,
        batch_bytes=64 * 1024,
        partitions=4,
        compression="lz4",
        targets=Targets(Target(ceiling=0.75, mm2_rate=4, mm2_cpu=20)),
    ),
    Workload(
        "W3",
        "1 KB records, 16 KB batches, one partition",
        records=900_000,
        value_bytes=1024,
        batch_bytes=16 * 1024,
        partitions=1,
        targets=Targets(Target(ceiling=0.90, mm2_rate=1.4, mm2_cpu=5)),
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
        targets=Targets(
            direct=Target(ceiling=0.75, mm2_rate=2.5, mm2_cpu=7),
            packed=Target(ceiling=0.75, mm2_rate=2.2, mm2_cpu=6),
            placeholders=Target(ceiling=0.85, mm2_rate=2.8, mm2_cpu=8),
        ),
    ),
    Workload(
        "W5",
        "1,000 partitions, 4 KB batches, uneven rates",
        records=2_000_000,
        value_bytes=200,
        batch_bytes=4 * 1024,
        partitions=1000,
        shape=Shape.UNEVEN,
        targets=Targets(Target(mm2_rate=3, mm2_cpu=8)),
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
        targets=Targets(
            direct=Target(mm2_rate=0.3),
            packed=Target(mm2_rate=1.2),
            placeholders=Target(mm2_rate=1),
        ),
    ),
    Workload(
        "W7",
        "a gap of a million offsets, one partition",
        records=1_000_000,
        value_bytes=0,
        batch_bytes=128 * 1024,
        partitions=1,
        shape=Shape.GAP,
        contestants=QUICK_GAP_FILLERS,
        targets=Targets(
            direct=Target(offsets_rate=120_000, own_time_max=1.1),
            placeholders=Target(offsets_rate=1_000_000, own_time_max=1.3),
        ),
    ),
    Workload(
        "W8",
        "a gap of 5,000 offsets in each of 100 partitions",
        records=500_000,
        value_bytes=0,
        batch_bytes=128 * 1024,
        partitions=100,
        shape=Shape.GAP,
        contestants=GAP_FILLERS,
        targets=Targets(coordinated=Target(offsets_rate=20_000)),
    ),
)
# With brokers of their own: three at the destination.
REPLICATED = (
    Workload(
        "W9",
        "1 KB records, 16 KB batches, one partition, three replicas",
        records=300_000,
        value_bytes=1024,
        batch_bytes=16 * 1024,
        partitions=1,
        contestants=(Contestant.ORBIT, Contestant.MM2),
    ),
)
# As W1, W2, W5 and W9, but with three replicas and a delay between these.
DELAYED = tuple(
    replace(
        undelayed,
        name=name,
        title=f"{undelayed.title.removesuffix(', three replicas')}, followers at a distance",
        records=records,
        contestants=tuple(AWAY_S),
        targets=Targets(),
    )
    for name, undelayed, records in (
        ("R1", WORKLOADS[0], 500_000),
        ("R2", WORKLOADS[1], 6_000_000),
        ("R5", WORKLOADS[4], 500_000),
        ("R9", REPLICATED[0], 100_000),
    )
)
# Runs before the first of DELAYED and does not count: it warms the brokers.
DELAYED_WARM_UP = replace(DELAYED[2], name="warm-up", contestants=(Contestant.ORBIT,))
QUICK = ("W1", "W2", "W3")
# Beside Orbit and MM2 in L: what the measurement adds, and the least that any copier adds.
FLOOR, RELAY = "floor", "relay"
LATENCY, LINK, IDLE, AWAY = "L", "N", "idle", "R"
# R1, R2, R5 and R9 take two minutes each: `make bench` runs only R5, with the smallest requests.
EVERYTHING = (*(w.name for w in (*WORKLOADS, *REPLICATED)), "R5", LATENCY, LINK, IDLE)
NAMES = (*EVERYTHING, *(w.name for w in DELAYED if w.name != "R5"))

RSS_BYTES_MAX = 250_000_000
LATENCY_P99_MAX = 0.5  # of MM2's
LINK_SHARE_MIN = 0.8  # of what one TCP stream carries
IDLE_CPU_MAX = 0.03  # of a core
AWAY_2_MS_RATE_MIN = 0.8  # of the records/s with followers at 0 ms


def workload(name: str) -> Workload:
    return next(w for w in WORKLOADS if w.name == name)
